"""
Changes to ``config.toml`` that leave all else of it as its owner wrote it, comments too. Pure.

Python reads TOML and does not write it; two changes are needed: which profile is chosen, and one whole section.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from headrace.finding import CHOSEN

_SECTION: Final = re.compile(r"\s*\[")
_CHOSEN: Final = re.compile(rf"\s*(?:{CHOSEN}|\"{CHOSEN}\"|'{CHOSEN}')\s*=")


def choose_profile(text: str, name: str | None) -> str:
    """The text that names this profile to be taken; None: no profile."""
    lines = text.splitlines()
    top = next((at for at, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    kept = [line for line in lines[:top] if not _CHOSEN.match(line)]
    chosen = [] if name is None else [f"{CHOSEN} = {json.dumps(name)}"]
    while kept and not kept[-1].strip():
        kept.pop()
    gap = [""] if lines[top:] and (kept or chosen) else []
    return _join([*kept, *chosen, *gap, *lines[top:]])


def put_profile(text: str, name: str, section: Mapping[str, str]) -> str:
    """The text with this section, in the place of one of the same name."""
    made = [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    lines = text.splitlines()
    start, end = _section(lines, name)
    if start == end:
        return _join([*lines, *([""] if lines and lines[-1].strip() else []), *made])
    comments = [line for line in lines[start + 1 : end] if line.lstrip().startswith("#")]
    rest = lines[end:]
    return _join([*lines[:start], *made, *comments, *([""] if rest else []), *rest])


def drop_profile(text: str, name: str) -> str:
    """The text without this section and what is in it; comments right above the next one are of that one."""
    lines = text.splitlines()
    start, end = _section(lines, name)
    while end < len(lines) and end - 1 > start and lines[end - 1].startswith("#"):
        end -= 1
    return _join([*lines[:start], *lines[end:]])


def _section(lines: list[str], name: str) -> tuple[int, int]:
    """From its header to before the next one; both are the end where there is none."""
    header = re.compile(rf"\s*\[\s*(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')\s*\]")
    start = next((at for at, line in enumerate(lines) if header.match(line)), len(lines))
    return start, next((at for at in range(start + 1, len(lines)) if _SECTION.match(lines[at])), len(lines))


def _join(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
