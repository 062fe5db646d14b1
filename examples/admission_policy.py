"""An admission policy of your own: at most so many requests of a class at a time, the others in order of arrival.

A policy is an object with the calls of `AdmissionPolicy`. It has no clock and asks nobody: all that it goes by is what
it is told, so a journal can be played again. A policy file names it,

    admission: {type: max_in_flight, parameters: {requests: 8}}

and whoever builds a scheduler says what that is: `Scheduler(config, admission={"max_in_flight": MaxInFlight})`. Or it
is found wherever your package is installed, also by `kvcore policy check`, through an entry point in pyproject.toml:

    [project.entry-points."kvcore.admission"]
    max_in_flight = "your_package:MaxInFlight"
"""

from __future__ import annotations

from collections.abc import Mapping

from kvcore.admission import AdmissionPolicy, AdmissionView, Answers, Decision, Defer, MakeReady, Ready, whole_numbers


class MaxInFlight(AdmissionPolicy):
    """At most `requests` of the class queue or run at a time."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        # What this raises of bad parameters is reported with the class, the parameter and its line in the file.
        self.most = whole_numbers(parameters, {"requests": 1}, required=["requests"])["requests"]
        self.in_flight: list[str] = []
        self.deferred: list[str] = []

    def decide(self, view: AdmissionView) -> Decision:
        if len(self.in_flight) < self.most:
            self.in_flight.append(view.request_id)
            return Ready()
        self.deferred.append(view.request_id)
        return Defer()

    def released(self, request_id: str, now_ns: int) -> Answers:
        if request_id in self.deferred:  # else it has just been let go from here as well
            self.deferred.remove(request_id)
            self.in_flight.append(request_id)
        return None

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        return self.aborted(request_id, now_ns)

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        (self.deferred if request_id in self.deferred else self.in_flight).remove(request_id)
        if not self.deferred or len(self.in_flight) >= self.most:
            return None
        self.in_flight.append(self.deferred.pop(0))
        return [MakeReady(self.in_flight[-1])]

    # Snapshots and digests of a scheduler hold the state of its policies.

    def dump(self) -> object:
        return {"in_flight": [*self.in_flight], "deferred": [*self.deferred]}

    def load(self, value: object) -> None:
        match value:
            case {"in_flight": [*in_flight], "deferred": [*deferred]}:
                self.in_flight, self.deferred = in_flight, deferred
            case _:
                raise ValueError("max_in_flight has no such state")
