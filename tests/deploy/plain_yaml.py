"""
Reads the part of YAML that rule files are written in: block mappings and lists, plain and double-quoted scalars, and
comments on lines of their own. Anything else is an error, so nothing is read here as Prometheus would not read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):(?: (.*))?")
_PLAIN_END = re.compile(r": |:$| #")
_INDICATORS = tuple("!&*?|>@`%{}[],#'\"")

Line = tuple[int, str]


def read(text: str) -> Any:
    """Raises: ValueError, with the line."""
    lines = [
        (len(line) - len(line.lstrip(" ")), line.strip())
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if "\t" in text:
        raise ValueError("tabs do not indent in YAML")
    value, rest = _block(lines, 0)
    if rest:
        raise ValueError(f"left over: {rest[0]}")
    return value


def _block(lines: Sequence[Line], indent: int) -> tuple[Any, Sequence[Line]]:
    if not lines or lines[0][0] != indent:
        raise ValueError(f"a block at column {indent} is missing at {lines[:1]}")
    return _items(lines, indent) if lines[0][1].startswith("- ") else _mapping(lines, indent)


def _items(lines: Sequence[Line], indent: int) -> tuple[list[Any], Sequence[Line]]:
    items = []
    while lines and lines[0][0] == indent and lines[0][1].startswith("- "):
        inner = [(indent + 2, lines[0][1][2:]), *lines[1:]]
        value, lines = _mapping(inner, indent + 2)
        items.append(value)
    return items, lines


def _mapping(lines: Sequence[Line], indent: int) -> tuple[dict[str, Any], Sequence[Line]]:
    found: dict[str, Any] = {}
    while lines and lines[0][0] == indent and not lines[0][1].startswith("- "):
        match = _KEY.fullmatch(lines[0][1])
        if match is None:
            raise ValueError(f"no key: {lines[0][1]}")
        key, text = match[1], match[2]
        if key in found:
            raise ValueError(f"{key} is there twice")
        lines = lines[1:]
        if text is None:
            found[key], lines = _block(lines, lines[0][0] if lines and lines[0][0] > indent else -1)
        else:
            found[key] = _scalar(text)
    return found, lines


def _scalar(text: str) -> str:
    if text.startswith('"'):
        return str(json.loads(text))
    if text.startswith(_INDICATORS) or _PLAIN_END.search(text):
        raise ValueError(f"quote it: {text}")
    return text
