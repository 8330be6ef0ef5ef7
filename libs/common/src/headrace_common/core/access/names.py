"""What a name may be, of principals and of resources: checked where one is made and again where one is matched."""

from __future__ import annotations

from typing import Final
from unicodedata import category, combining, is_normalized

from headrace_common.core.errors import Rejected

_SHOWN_CHARS_MAX: Final = 80
WILDCARD: Final = "*"
_UNSEEN: Final = frozenset(
    map(
        chr,
        [
            0x034F,  # combining grapheme joiner
            *(0x115F, 0x1160, 0x3164, 0xFFA0),  # fillers of Hangul
            *(0x17B4, 0x17B5),  # inherent vowels of Khmer
            *(0x180B, 0x180C, 0x180D, 0x180F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)),  # variation selectors
            0x2800,  # the empty pattern of Braille
        ],
    )
)
"""Printable to Python, and drawn as nothing or as a blank."""


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


def find_look_fault(name: str) -> str | None:
    """
    What is wrong with the looks of a name, as ``find_fault``: spaces that nobody sees, and printable characters that
    are drawn as nothing. Letters of other scripts that look like others stay: they are names of people.
    """
    if name != name.strip(" ") or "  " in name:
        return "begins or ends with a space, or has two in a row"
    if not name.isascii() and not _UNSEEN.isdisjoint(name):
        return "has a character that is drawn as nothing"
    if combining(name[0]) or category(name[0]) == "Me":
        return "begins with a mark that is drawn on a letter before it"
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
