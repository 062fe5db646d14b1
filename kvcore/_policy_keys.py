"""Every key of a policy file: what may stand there, whether it must, and what it means.

Owns the tables by which `policy_file` reads a file and from which the documentation's list of keys is made: a key that
is not here is unknown to both. Rules between keys are `policy_file`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import yaml

from kvcore import _yaml_marks as marks
from kvcore._yaml_marks import Place, Reader, Section
from kvcore.policy import Arbitration, Capacity, QueuePolicy


@dataclass(frozen=True)
class Key:
    """One key.

    read: makes a value of what is written, or says what is wrong.
    kind: what may be written, in words.
    about: what it means.
    least: the smallest whole number that is allowed; None where it takes no number.
    is_required: its mapping must have it.
    takes_null: null stands for its absence.
    below: the keys of the mapping, or of each mapping of the list, that stands there; empty where none is known.
    """

    read: Reader
    kind: str
    about: str
    least: int | None = None
    is_required: bool = False
    takes_null: bool = True
    below: Mapping[str, Key] = field(default_factory=dict)

    def reader(self) -> Reader:
        """What reads the value, null included."""
        return marks.optional(self.read) if self.takes_null else self.read


def readers(keys: Mapping[str, Key]) -> dict[str, Reader]:
    """What reads the value of each key."""
    return {name: key.reader() for name, key in keys.items()}


def required(keys: Mapping[str, Key]) -> tuple[str, ...]:
    """The keys that must be there, in the order of the table."""
    return tuple([name for name, key in keys.items() if key.is_required])


def _text(about: str, is_required: bool = False) -> Key:
    return Key(marks.text, "text", about, is_required=is_required, takes_null=not is_required)


def _whole(about: str, least: int = 0, is_required: bool = False) -> Key:
    kind = f"whole number, {least} to 2^53"
    return Key(marks.whole, kind, about, least, is_required=is_required, takes_null=not is_required)


def _one_of(members: type[Enum], about: str, takes_null: bool = True) -> Key:
    values = ", ".join([f"`{member.value}`" for member in members])
    return Key(marks.choice(members), f"one of {values}", about, takes_null=takes_null)


def _list_of(
    what: str, name_key: str, kind: str, about: str, keys: Mapping[str, Key], is_required: bool = True
) -> Key:
    read = marks.sections(what, name_key, readers(keys), required(keys))
    return Key(read, kind, about, is_required=is_required, takes_null=False, below=keys)


# Readers of what is neither a scalar nor a list of sections.


def _admission(node: yaml.Node, place: Place) -> Section:
    here = place.within("admission", place.line)
    found = marks.read_section(marks.mapping(node, place), here, readers(ADMISSION), required(ADMISSION))
    if found.values.get("parameters") is None:
        found.values["parameters"] = Section(here.within("parameters", here.line), {}, {})
    return found


def _parameters(node: yaml.Node, place: Place) -> Section:
    """Parameters of any names and kinds: what they mean is known only to the type."""
    parameters = place.within("parameters", place.line)
    values, places = {}, {}
    for key, here, value in marks.pairs(marks.mapping(node, place), parameters):
        values[key] = marks.tree(value, here, marks.json_scalar)
        places[key] = here
    return Section(parameters, values, places)


def _models(node: yaml.Node, place: Place) -> dict[str, Section]:
    found = {}
    for name, here, value in marks.pairs(marks.mapping(node, place), place.within("models", place.line)):
        profile = Place(place.source, f"model {marks.quote(name)}", None, here.line)
        found[name] = marks.read_section(value, profile, readers(PROFILE), required(PROFILE))
    return found


def _selection(node: yaml.Node, place: Place) -> Section:
    here = place.within("worker_selection", place.line)
    return marks.read_section(marks.mapping(node, place), here, readers(SELECTION), required(SELECTION))


def _any_mapping(node: yaml.Node, place: Place) -> bool:
    return _ignored(marks.mapping(node, place), place)


def _ignored(node: yaml.Node, place: Place) -> bool:
    """Whether anything was given; its content only has to be well formed."""
    marks.tree(node, place.within(str(place.key), place.line), marks.text)
    return not marks.is_null(node)


# The tables, innermost first.

ADMISSION: dict[str, Key] = {
    "type": _text(
        "Which admission policy: a built-in one, one that a package has installed, or one given to `Scheduler`.",
        is_required=True),
    "parameters": Key(_parameters, "mapping", "What it is built with; what may stand here is the type's to say."),
}
BUCKET: dict[str, Key] = {
    "min_tokens": _whole(
        "A request falls into the last bucket that its uncached prompt tokens reach. The first bucket starts at 0, "
        "each further one above the one before it.", is_required=True),
    "bucket": _text("Its name, different from all others.", is_required=True),
}
CLASS: dict[str, Key] = {
    "name": _text(
        "Its name, different from all others. A class without `policy_family` and `cache_bucket` is chosen by it.",
        is_required=True),
    "policy_family": _text("The family that it serves, in one bucket: together with `cache_bucket` or not at all."),
    "cache_bucket": _text("The bucket of its family. Every family needs exactly one class per bucket."),
    "queue_policy": _one_of(
        QueuePolicy,
        "Order inside the class: first come, first served; highest priority per prompt token to compute first; "
        "earliest deadline first; last come, first served. Strict priorities go before all of them.", takes_null=False),
    "quantum": _whole(
        "Prompt tokens to compute that the class earns per round of deficit round robin: its share, in relation to the "
        "quanta of the others that have work waiting.", least=1, is_required=True),
    "prefill_busy_threshold": _whole(
        "A rank with more prompt tokens under way is busy for this class, which waits while all are. Without this and "
        "the next key the class never waits, unless capacity is strict."),
    "prefill_busy_threshold_frac": Key(
        marks.real, "number, 0 or more",
        "The same, as a part of the worker's `max_batched_tokens`: a rank above either is busy."),
    "request_queue_limit_per_worker": _whole(
        "With so many requests waiting, times the number of workers, further ones are refused: QUEUE_FULL_REQUESTS."),
    "raw_isl_token_queue_limit_per_worker": _whole(
        "The same for the prompt tokens of what waits: QUEUE_FULL_RAW_TOKENS. The request that crosses the limit is "
        "let in."),
    "cached_token_queue_limit_per_worker": _whole(
        "The same for those of them that are cached: QUEUE_FULL_CACHED_TOKENS."),
    "max_overtake_tokens": _whole(
        "A waiting request is overtaken by at most so many tokens of younger requests of its class."),
    "admission": Key(
        _admission, "mapping", "Who of the class may queue for capacity now, and who is held back.", below=ADMISSION),
}
PROFILE: dict[str, Key] = {
    "default_policy_family": _text(
        "The family of a request that names no class and no family, or an unknown one.", is_required=True),
    "uncached_isl_buckets": _list_of(
        "bucket", "bucket", "list of buckets",
        "How families are split by the prompt tokens that no worker has cached. One bucket: no split.", BUCKET),
    "policy_classes": _list_of("class", "name", "list of classes", "The classes that share the fleet.", CLASS),
    "arbitration": _one_of(
        Arbitration,
        "Deficit round robin as it should be, or with the deviations of the router whose files these are, to compare."),
    "capacity": _one_of(
        Capacity,
        "Whether `total_kv_blocks` and `max_requests` of a worker advise or bind. Strict: nothing is dispatched beyond "
        "them; it waits, whatever its class, and what no worker could ever hold is refused as TOO_LARGE."),
}
MODELS = Key(
    _models, "mapping of profiles by model name",
    "Profiles of single models, each complete. One replaces the root's; only `arbitration` and `capacity` are taken "
    "from the root where it has none.", below=PROFILE)
INSTANCE: dict[str, Key] = {
    "name": _text("Its name, different from all others and not `default`.", is_required=True),
    "type": _text("What kind of selector it is.", is_required=True),
    "parameters": Key(_any_mapping, "mapping", "What it is built with.", takes_null=False),
}
SELECTION: dict[str, Key] = {
    stage: _text("The selector of this stage: `default`, or the name of an instance.")
    for stage in ("aggregated", "prefill", "decode", "encode")
} | {"instances": _list_of("instance", "name", "list of instances", "Selectors.", INSTANCE, is_required=False)}
#: Keys of the reference that say nothing about queues: worker_selection is checked, of the others only that it is YAML.
IGNORED: dict[str, Key] = {
    "worker_selection": Key(
        _selection, "mapping", "Checked and not used: workers are selected as `SelectionWeights` says.",
        below=SELECTION),
} | {
    name: Key(_ignored, "anything", "Read and ignored: it is of no concern to queues.", takes_null=False)
    for name in ("router", "request_classifier")
}
