"""The text form of PostgreSQL's arrays."""

from __future__ import annotations

import re
from typing import Final

_ITEM: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^",{}\\]+)', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


def items_of(text: bytes) -> list[bytes | None]:
    """
    The items of an array of one dimension that begins at 1; None: null.

    Raises:
        ValueError: it has more dimensions, another first index, or is no array.
    """
    if not (text.startswith(b"{") and text.endswith(b"}")) or len(text) < 2:
        raise ValueError("an array that does not begin at index 1 is no list" if text[:1] == b"[" else "is no array")
    end = len(text) - 1
    items: list[bytes | None] = []
    at = 1
    while at < end:
        item = _ITEM.match(text, at, end)
        if item is None:
            nested = text[at : at + 1] == b"{"
            raise ValueError("an array of several dimensions is no list" if nested else "is no array")
        quoted, plain = item.groups()
        if quoted is not None:
            items.append(_ESCAPED.sub(rb"\1", quoted))
        else:
            items.append(None if plain == b"NULL" else plain)
        at = item.end()
        if at < end and (text[at : at + 1] != b"," or at + 1 == end):
            raise ValueError("is no array")
        at += 1
    return items
