"""What admission policies are given from outside and must check: parameters out of a policy file, dumps of their state.

Never here: what a parameter or a dump means; that is the policy's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvcore import _yaml_marks as marks
from kvcore.policy import NUMBER_MAX


class InvalidParameter(ValueError):
    """A parameter that a policy cannot use. key: its name; reason: one phrase, which says what is allowed."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{marks.printable(key)}: {reason}")
        self.key = key
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Parameter:
    """A whole number that a built-in policy takes. about: what it means, and what follows where it is left out."""

    least: int
    about: str
    is_required: bool = False


def numbers_of(parameters: Mapping[str, object], known: Mapping[str, Parameter]) -> dict[str, int]:
    """The parameters of a policy that takes these. Raises: InvalidParameter."""
    least = {name: item.least for name, item in known.items()}
    return whole_numbers(parameters, least, [name for name, item in known.items() if item.is_required])


def whole_numbers(
    parameters: Mapping[str, object], least: Mapping[str, int], required: Collection[str],
) -> dict[str, int]:
    """The parameters of a policy all of whose parameters are whole numbers up to 2^53; those left out are not in it.

    least: the smallest value of each parameter that the policy knows. None counts as left out, as in a policy file.
    Raises: InvalidParameter for the first unknown key or bad value, then for the first required one that is not there.
    """
    found = {}
    for key, value in parameters.items():
        if key not in least:
            hint = marks.did_you_mean(str(key), least) or "; known are " + ", ".join(least)
            raise InvalidParameter(str(key), f"unknown key{hint}")
        if value is None:
            continue
        if type(value) is not int or not least[key] <= value <= NUMBER_MAX:
            shown = marks.printable(repr(value))
            raise InvalidParameter(key, f"must be a whole number, {least[key]}..{NUMBER_MAX} (2^53), not {shown}")
        found[key] = value
    for key in required:
        if key not in found:
            raise InvalidParameter(key, "is required")
    return found


# Dumps. They come out of files, so nothing about them is certain: ValueError says what a value must be.


def dumped_record(value: object, *keys: str) -> list[object]:
    """The values of these keys, which must be all there are."""
    if type(value) is not dict or set(value) != set(keys):
        raise ValueError(f"must be a mapping of {', '.join(keys)}")
    return [value[key] for key in keys]


def dumped_list(value: object) -> list[object]:
    """The list that the value must be."""
    if type(value) is not list:
        raise ValueError("must be a list")
    return value


def dumped_text(value: object) -> str:
    """The text that the value must be."""
    if type(value) is not str:
        raise ValueError("must be text")
    return value


def dumped_number(value: object) -> int:
    """The whole number >= 0 that the value must be."""
    if type(value) is not int or value < 0:
        raise ValueError("must be a whole number >= 0")
    return value


def dumped_flag(value: object) -> bool:
    """The truth value that the value must be."""
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value
