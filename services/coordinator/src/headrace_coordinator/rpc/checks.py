"""Bounds of names and lists in what clients ask."""

from __future__ import annotations

from typing import Final

from headrace_common.core.errors import Rejected

NAME_CHARACTERS_MAX: Final = 255
"""Of member ids, instance ids, client ids, racks, assignors and reasons."""


def check_name(text: str, what: str) -> str:
    if len(text) > NAME_CHARACTERS_MAX:
        raise Rejected(f"the {what} has {len(text)} characters; {NAME_CHARACTERS_MAX} is the most")
    return text


def check_count(count: int, most: int, what: str, least: int = 0) -> None:
    if not least <= count <= most:
        raise Rejected(f"the request has {count} {what}; {least} to {most} are allowed")
