"""What a name may be, of principals and of resources: checked where one is made and again where one is matched."""

from __future__ import annotations

from typing import Final
from unicodedata import is_normalized

from headrace_common.core.errors import Rejected

_SHOWN_CHARS_MAX: Final = 80
WILDCARD: Final = "*"


def find_fault(name: str, chars_max: int) -> str | None:
    """
    What is wrong with a name, as the rest of a sentence; None: nothing is.

    Printable characters alone: a name with a newline, a zero-width or a direction mark would forge lines of logs. One
    normal form alone (NFC): two names that look the same are the same.
    """
    if not 0 < len(name) <= chars_max:
        return f"has {len(name)} characters; it has 1 to {chars_max}"
    if name == WILDCARD:
        return "stands for all and is the name of none"
    if not name.isprintable():
        return "has control characters, or others that are not printable"
    if not name.isascii() and not is_normalized("NFC", name):
        return "is not in Unicode's normal form NFC"
    return None


def check_name(what: str, name: str, chars_max: int) -> None:
    """
    Check the name of a ``what``.

    Raises:
        Rejected: nothing can have this name.
    """
    if not isinstance(name, str):
        raise Rejected(f"the name of a {what} is text, not {type(name).__name__}")
    fault = find_fault(name, chars_max)
    if fault is not None:
        raise Rejected(f"{what} {name[:_SHOWN_CHARS_MAX]!r} {fault}")
