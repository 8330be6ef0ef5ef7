"""
Declares a setting once: its default and what it takes. Its check, the message of a wrong value, and the help follow.

Settings are fields of dataclasses. Services read theirs with ``runtime.env``, clients with ``headrace.settings``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any, Final

from headrace_common.core.errors import InvalidConfig

ID_MAX: Final = 2**31 - 1
"""Largest id of a node."""
LIMIT: Final = "limit"
"""Marks a field that is no setting; see ``limit``."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def setting(
    default: Any = MISSING, *, low: float | None = None, high: float | None = None, choices: Sequence[str] | None = None
) -> Any:
    """A field with its bounds, which are inclusive, or the words it takes. None is taken where it is the default."""
    return field(default=default, metadata={"low": low, "high": high, "choices": choices})


def limit(default: Any) -> Any:
    """A field beside settings that no process is given: it is always the default, but in tests."""
    return field(default=default, metadata={LIMIT: True})


def takes(declared: Field[Any]) -> str:
    """``0 to 600000``, ``1 or more``, ``debug, info``; empty where the type says all."""
    low, high, choices = (declared.metadata.get(name) for name in ("low", "high", "choices"))
    if choices is not None:
        return ", ".join(choices)
    if low is None and high is None:
        return ""
    if high is None:
        return f"{low} or more"
    return f"{high} or less" if low is None else f"{low} to {high}"


def find_problem(declared: Field[Any], value: Any, name: str | None = None) -> str | None:
    """What is wrong with this value of a setting, which may be known by another ``name``; None: nothing is."""
    name = name or declared.name
    low, high, choices = (declared.metadata.get(name) for name in ("low", "high", "choices"))
    if value is None and declared.default is None:
        return None
    if low is not None or high is not None:
        taken, kind = ((int, float), "number") if "float" in str(declared.type) else ((int,), "whole number")
        if isinstance(value, bool) or not isinstance(value, taken) or value != value:  # noqa: PLR0124 - not a number
            return f"{name} takes a {kind}, not {value!r}"
        if (low is not None and value < low) or (high is not None and value > high):
            return f"{name} takes {takes(declared)}, not {value!r}"
    if choices is not None and value not in choices:
        return f"{name} takes {takes(declared)}, not {value!r}"
    return None


def check(settings: Any, *rules: tuple[bool, str]) -> None:
    """
    Check every field of a dataclass, and what has to hold besides: pairs of what holds and what is said if it does not.

    Raises:
        InvalidConfig: all that is wrong, in one text.
    """
    found = (find_problem(declared, getattr(settings, declared.name)) for declared in fields(settings))
    wrong = [*(text for text in found if text is not None), *(text for holds, text in rules if not holds)]
    if wrong:
        raise InvalidConfig("; ".join(wrong))
