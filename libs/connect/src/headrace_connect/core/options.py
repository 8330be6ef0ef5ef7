"""
Settings of converters and transforms: a table of each, read from texts as Kafka Connect writes them.

``read`` collects everything that is wrong; whoever calls it tells all of it at once (``InvalidOptions``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final

from headrace_common.core.errors import ErrorCode, InvalidConfig

_SHOWN_CHARS_MAX: Final = 80
TEXT_CHARS_MAX: Final = 100_000
"""The longest value of a setting."""


class OptionType(StrEnum):
    """Kafka's names of what a setting takes."""

    STRING = "STRING"
    LIST = "LIST"
    BOOLEAN = "BOOLEAN"
    INT = "INT"
    PASSWORD = "PASSWORD"


REQUIRED: Final = object()
"""The default of what must be given."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting."""

    name: str
    """Behind the prefix; ``name.*`` is a family: all keys that begin so, as a mapping."""
    doc: str
    type: OptionType = OptionType.STRING
    default: Any = None
    """``REQUIRED``, or the value where nothing is given."""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a configuration."""

    key: str
    """The whole key; empty: it lies between several keys."""
    message: str
    """Begins with the key where there is one, and says what would be right; shows no secret."""


class InvalidOptions(InvalidConfig, code=ErrorCode.INVALID_CONFIG):
    """Settings of converters or transforms are wrong; ``problems`` has all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.message for problem in problems))


class BadOption(Exception):
    """The value of a setting is wrong, though of the right type; raised by what is configured."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


NULL_DEFAULT: Final = Option(
    "replace.null.with.default",
    "Accepted and means nothing here: columns have no defaults.",
    OptionType.BOOLEAN,
    True,
)
"""Kafka's; converters have put defaults in their places when columns come to a transform."""


def read(
    options: Iterable[Option], given: Mapping[str, str], prefix: str, what: str, problems: list[Problem]
) -> dict[str, Any] | None:
    """
    The values of settings, by their names without the prefix.

    Args:
        given: keys with their prefix; only those that begin with ``prefix`` are looked at.
        what: whose settings they are, for messages: "MaskField".
        problems: what is wrong is added here.

    Returns:
        None where something is wrong.
    """
    known = {option.name: option for option in options}
    found = len(problems)
    values: dict[str, Any] = {
        option.name: {} if option.name.endswith(".*") else option.default for option in known.values()
    }
    for key, text in given.items():
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        option = known.get(name)
        family = next((one for one in known if one.endswith(".*") and name.startswith(one[:-1])), None)
        if option is not None:
            values[name] = _value(option, key, text, problems)
        elif family is not None:
            values[family][name.removeprefix(family[:-1])] = text
        else:
            problems.append(Problem(key, f"{key[:_SHOWN_CHARS_MAX]} is not a setting of {what}{near(name, known)}"))
    for name, option in known.items():
        if values[name] is REQUIRED:
            problems.append(Problem(prefix + name, f"{prefix}{name} is missing; {what} needs it: {option.doc}"))
    return values if len(problems) == found else None


def near(word: str, known: Iterable[str]) -> str:
    """``; is X meant?``, or which there are."""
    names = sorted(known)
    found = get_close_matches(word[:_SHOWN_CHARS_MAX], names, n=1, cutoff=0.6)
    if found:
        return f"; is {found[0]} meant?"
    return f"; there are: {', '.join(names)}" if names else "; it has none"


def _value(option: Option, key: str, text: str, problems: list[Problem]) -> Any:
    def wrong(wanted: str) -> None:
        problems.append(Problem(key, f"{key}: {text[:_SHOWN_CHARS_MAX]!r} is not {wanted}"))

    if len(text) > TEXT_CHARS_MAX:
        problems.append(Problem(key, f"{key} is {len(text)} characters long; {TEXT_CHARS_MAX} is the most"))
        return None
    match option.type:
        case OptionType.BOOLEAN:
            if text.strip().lower() not in ("true", "false"):
                wrong("true or false")
            return text.strip().lower() == "true"
        case OptionType.INT:
            try:
                return int(text)
            except ValueError:
                wrong("a whole number")
                return None
        case OptionType.LIST:
            parts = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
            if option.default is REQUIRED and not parts:
                wrong("a list with something in it; write names with commas between")
            if "" in parts:
                wrong("a list: there is nothing between two commas")
            return parts
    if option.choices and text not in option.choices:
        problems.append(
            Problem(key, f"{key} is not a known value: {text[:_SHOWN_CHARS_MAX]!r}{near(text, option.choices)}")
        )
    return text
