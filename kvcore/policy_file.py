"""Policy file text -> PolicyDocument: rules and the order of the checks (DESIGN D2, D3, D16, D20).

The file format is the reference's, so that its users' files load unchanged. Beyond it: queue_policy `edf` and `lcfs`,
per class `admission` and `max_overtake_tokens`, and `arbitration` and `capacity` at top level or in a model profile.
The keys stand in `_policy_keys`. Nothing here reads a file: the caller does, and passes its text.

The first failing check wins, in this order: the whole text is read in file order (YAML, unknown, duplicate and missing
keys, types, number ranges); then the rules of the root profile; then those of each model profile in file order; then
those of worker_selection; then that anything is defined at all. Of several bad models, the first in file order is
reported. Whether admission policies can be built is another question, which `check_admission` answers: their types need
not be known where a file is read.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvcore import _policy_keys as keys
from kvcore import _yaml_marks as marks
from kvcore._yaml_marks import Place, Section
from kvcore.admission import Factory, InvalidParameter, build
from kvcore.errors import InvalidPolicy
from kvcore.policy import AdmissionSpec, Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile

_IDENTIFIER = re.compile(r"[A-Za-z0-9_.-]+")
_DEFAULT_SELECTOR = "default"
_ROOT_PROFILE_KEYS = keys.required(keys.PROFILE)


@dataclass(frozen=True)
class PolicyDocument:
    """A validated policy file.

    root: the profile of every model without one of its own; None if the file has none.
    models: profiles by exact model name, in file order. A model profile replaces the root wholesale; its classes,
        buckets and families are its own. Only `arbitration` and `capacity`, which are not part of the root profile's
        three keys, hold for the whole document: at top level they apply to the root profile and to every model
        profile that does not set its own.
    ignored_keys: top-level keys of the reference that were given and that kvcore does not use.
    admissions: in file order, the name of each class with an admission policy, and where it asks for it.
    """

    root: PolicyProfile | None = None
    models: Mapping[str, PolicyProfile] = field(default_factory=dict)
    ignored_keys: tuple[str, ...] = ()
    admissions: tuple[tuple[str, Section], ...] = field(default=(), compare=False, repr=False)

    def profile_for(self, model: str | None = None) -> PolicyProfile | None:
        """The exact model's profile, else the root's, else None: the synthetic profile is in force. Cost: O(1)."""
        if model is not None and model in self.models:
            return self.models[model]
        return self.root


def load_policy(text: str, source: str = "<policy>") -> PolicyDocument:
    """Read and validate the text of a policy file.

    source: what error messages call the text, usually the file's path.
    Raises: InvalidPolicy, with source, location, key and 1-based line, for the first thing that is wrong.
    Cost: O(len(text)); nothing is loaded when anything is wrong.
    """
    if not isinstance(text, str):
        raise TypeError(f"load_policy takes the text of a policy file, not {type(text).__name__}")
    top = Place(source, line=1)
    if text.endswith((".yaml", ".yml")) and not {":", "\n"} & set(text):
        raise top.error("this is the name of a file, it seems: load_policy takes what the file holds")
    node = marks.compose(text, source)
    if node is None or (marks.is_null(node) and node.value == ""):
        raise top.error("nothing is defined: the file is empty")
    root = marks.read_section(node, top.at(None, marks.line_of(node)), _ROOT, ())
    given = [key for key in _ROOT_PROFILE_KEYS if root.values.get(key) is not None]
    if given and len(given) < len(_ROOT_PROFILE_KEYS):
        missing = [key for key in _ROOT_PROFILE_KEYS if key not in given]
        raise root.at(given[0]).error(f"needs {' and '.join(missing)} beside it: the three come together or not at all")
    if given:
        _check_profile(root)
    models: dict[str, Section] = root.values.get("models") or {}
    for name, section in models.items():
        if name == "":
            raise section.place.error("a model name must not be empty")
        _check_profile(section)
    if root.values.get("worker_selection") is not None:
        _check_selection(root.values["worker_selection"])
    ignored = tuple([key for key in root.values if key in keys.IGNORED and root.values[key]])
    if not given and not models:
        if not ignored:
            raise top.error("nothing is defined: neither a root profile nor models")
        for key in ("arbitration", "capacity"):
            if root.values.get(key) is not None:
                raise root.at(key).error("no profile in this file to which it could apply")
    return PolicyDocument(
        root=_profile(root, root) if given else None,
        models={name: _profile(section, root) for name, section in models.items()},
        ignored_keys=ignored,
        admissions=tuple([
            (item.values["name"], item.values["admission"])
            for section in [*([root] if given else []), *models.values()]
            for item in section.values["policy_classes"] if item.values.get("admission") is not None
        ]),
    )


def check_admission(document: PolicyDocument, given: Mapping[str, Factory] | None = None) -> None:
    """Build the admission policy of every class of a loaded file, to see that it can be built; none is kept.

    `load_policy` cannot do this: types may come from whoever builds the scheduler. given: these types.
    Raises: InvalidPolicy for the first one that cannot be built, with the line of its type or of its parameter.
    """
    for class_name, section in document.admissions:
        try:
            build(_admission_spec(section), class_name, given or {})
        except InvalidPolicy as error:
            fault = error.__cause__
            if isinstance(fault, InvalidParameter):
                raise section.values["parameters"].at(fault.key).error(fault.reason) from error
            raise section.at("type").error(error.reason) from error


# Reading: structure and types, in file order.

# What a model profile must have, the root profile may leave out altogether, and null is a way to leave it out.
_ROOT: dict[str, marks.Reader] = {name: marks.optional(reader) for name, reader in keys.readers(keys.PROFILE).items()}
_ROOT |= {"models": keys.MODELS.reader()} | keys.readers(keys.IGNORED)


# Rules: what the reference calls validation, in its order.


def _check_identifier(name: str, place: Place) -> None:
    if not _IDENTIFIER.fullmatch(name):
        raise place.error(f"must be one or more of A-Z a-z 0-9 _ . -, not {marks.quote(name)}")


def _check_profile(profile: Section) -> None:
    default_family: str = profile.values["default_policy_family"]
    classes: list[Section] = profile.values["policy_classes"]
    buckets: list[Section] = profile.values["uncached_isl_buckets"]
    _check_identifier(default_family, profile.at("default_policy_family"))
    if not classes:
        raise profile.at("policy_classes").error("must list at least one class")
    if not buckets:
        raise profile.at("uncached_isl_buckets").error("must list at least one bucket")
    names = _check_buckets(buckets)
    class_lines: dict[str, int | None] = {}
    for item in classes:
        _check_class(item, names)
        name = item.values["name"]
        if name in class_lines:
            raise item.at("name").error(f"another class has this name, on line {class_lines[name]}")
        class_lines[name] = item.at("name").line
    families = dict.fromkeys([item.values["policy_family"] for item in classes if _is_matrix(item)])
    if default_family not in families:
        reason = f"no class serves the family {marks.quote(default_family)}"
        raise profile.at("default_policy_family").error(reason + marks.did_you_mean(default_family, families))
    _check_cells(profile, classes, families, names)


def _check_buckets(buckets: list[Section]) -> Collection[str]:
    """The bucket names, in order; a look-up costs O(1)."""
    floor = -1
    for bucket in buckets:
        tokens: int = bucket.values["min_tokens"]
        if floor < 0 and tokens != 0:
            raise bucket.at("min_tokens").error(f"the first bucket must start at 0, not {tokens}")
        if tokens <= floor:
            raise bucket.at("min_tokens").error(f"{tokens} is not above {floor}, where the bucket before it starts")
        floor = tokens
    lines: dict[str, int | None] = {}
    for bucket in buckets:
        name: str = bucket.values["bucket"]
        _check_identifier(name, bucket.at("bucket"))
        if name in lines:
            raise bucket.at("bucket").error(f"another bucket has this name, on line {lines[name]}")
        lines[name] = bucket.at("bucket").line
    return lines.keys()


def _is_matrix(item: Section) -> bool:
    return item.values.get("policy_family") is not None


def _check_class(item: Section, buckets: Collection[str]) -> None:
    values = item.values
    _check_identifier(values["name"], item.at("name"))
    least = keys.CLASS["quantum"].least
    if least is not None and values["quantum"] < least:
        raise item.at("quantum").error(f"must be {least}..{marks.WHOLE_MAX} (2^53), not {values['quantum']}")
    frac = values.get("prefill_busy_threshold_frac")
    if frac is not None and not (math.isfinite(frac) and frac >= 0):
        raise item.at("prefill_busy_threshold_frac").error(f"must be finite and >= 0, not {frac!r}")
    family: str | None = values.get("policy_family")
    bucket: str | None = values.get("cache_bucket")
    if (family is None) != (bucket is None):
        have, lack = ("cache_bucket", "policy_family") if family is None else ("policy_family", "cache_bucket")
        raise item.at(have).error(f"needs {lack} beside it; a class with neither is chosen by its name")
    if family is not None and bucket is not None:
        _check_identifier(family, item.at("policy_family"))
        _check_identifier(bucket, item.at("cache_bucket"))
        if bucket not in buckets:
            hint = marks.did_you_mean(bucket, buckets)
            raise item.at("cache_bucket").error(f"no bucket of this profile is called {marks.quote(bucket)}{hint}")
    if values.get("admission") is not None:
        _check_identifier(values["admission"].values["type"], values["admission"].at("type"))


def _check_cells(
    profile: Section, classes: list[Section], families: Collection[str], buckets: Collection[str],
) -> None:
    """Every family x bucket has exactly one class, and an explicit class does not hide a family."""
    served: dict[tuple[str, str], Section] = {}
    for item in classes:
        name = item.values["name"]
        if not _is_matrix(item):
            if name in families:
                raise item.at("name").error("an explicit class must not be called like a family")
            continue
        cell = (item.values["policy_family"], item.values["cache_bucket"])
        if cell in served:
            other = served[cell]
            raise item.at("cache_bucket").error(
                f"family {marks.quote(cell[0])} in bucket {marks.quote(cell[1])} is already served by class "
                f"{marks.quote(other.values['name'])} on line {other.place.line}"
            )
        served[cell] = item
    for family in families:
        for bucket in buckets:
            if (family, bucket) not in served:
                reason = f"no class serves family {marks.quote(family)} in bucket {marks.quote(bucket)}"
                raise profile.at("policy_classes").error(reason)


def _check_selection(selection: Section) -> None:
    """Instances are named, once each, and a stage names one of them."""
    stages = {key: value for key, value in selection.values.items() if key != "instances" and value is not None}
    instances: list[Section] = selection.values.get("instances", [])
    if not stages and not instances:
        raise selection.place.error("names neither a stage nor an instance")
    lines: dict[str, int | None] = {}
    for item in instances:
        name = item.values["name"]
        for key in ("name", "type"):
            _check_identifier(item.values[key], item.at(key))
        if name == _DEFAULT_SELECTOR:
            raise item.at("name").error(f"{_DEFAULT_SELECTOR} is reserved")
        if name in lines:
            raise item.at("name").error(f"another instance has this name, on line {lines[name]}")
        lines[name] = item.at("name").line
    known = [_DEFAULT_SELECTOR, *lines]
    for stage, name in stages.items():
        if name not in known:
            hint = marks.did_you_mean(name, known)
            raise selection.at(stage).error(f"no instance is called {marks.quote(name)}{hint}")


# Building, and saying what was built.


def _profile(section: Section, root: Section) -> PolicyProfile:
    return PolicyProfile(
        classes=tuple([_class(item.values) for item in section.values["policy_classes"]]),
        buckets=tuple([
            CacheBucket(item.values["bucket"], item.values["min_tokens"])
            for item in section.values["uncached_isl_buckets"]
        ]),
        default_policy_family=section.values["default_policy_family"],
        arbitration=section.values.get("arbitration") or root.values.get("arbitration") or Arbitration.EXACT,
        capacity=section.values.get("capacity") or root.values.get("capacity") or Capacity.ADVISORY,
    )


def _class(values: dict[str, Any]) -> PolicyClass:
    changed: dict[str, Any] = {}
    if values.get("prefill_busy_threshold_frac") is not None:
        changed["prefill_busy_threshold_frac"] = values["prefill_busy_threshold_frac"] + 0.0  # -0.0 becomes 0.0
    if values.get("admission") is not None:
        changed["admission"] = _admission_spec(values["admission"])
    return PolicyClass(**values | changed)


def _admission_spec(admission: Section) -> AdmissionSpec:
    return AdmissionSpec(admission.values["type"], admission.values["parameters"].values)


def describe(document: PolicyDocument) -> dict[str, Any]:
    """The policy in effect as a JSON-ready value, in the layout of a policy file and with every default spelled out.

    Written as JSON it is itself a policy file that loads to the same profiles, as long as keys of admission parameters
    are short enough for YAML (1,024 characters as written). Ignored keys are not in it.
    """
    absent = dict.fromkeys([*_ROOT_PROFILE_KEYS, "arbitration", "capacity"])
    root = absent if document.root is None else _describe_profile(document.root)
    return {**root, "models": {name: _describe_profile(profile) for name, profile in document.models.items()}}


def _describe_profile(profile: PolicyProfile) -> dict[str, Any]:
    return {
        "default_policy_family": profile.default_policy_family,
        "uncached_isl_buckets": [{"bucket": item.name, "min_tokens": item.min_tokens} for item in profile.buckets],
        "policy_classes": [_describe_class(item) for item in profile.classes],
        "arbitration": profile.arbitration.value,
        "capacity": profile.capacity.value,
    }


def _describe_class(item: PolicyClass) -> dict[str, Any]:
    described = {key: getattr(item, key) for key in keys.CLASS}
    described["queue_policy"] = item.queue_policy.value
    if item.admission is not None:
        described["admission"] = {"type": item.admission.type, "parameters": copy.deepcopy(item.admission.parameters)}
    return described
