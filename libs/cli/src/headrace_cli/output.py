"""
How commands print data: a table for people, JSON or YAML for programs. Pure but for ``show``.

Tables are plain text in columns, never cut off, so that they can be read through a pipe too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

# What YAML readers take for something else than a string.
_YAML_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_YAML_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})


class Output(StrEnum):
    """What ``-o`` takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def show(data: Any, output: Output, columns: Sequence[str] = (), *, empty: str = "nothing there") -> None:
    """
    Print ``data`` (plain dicts, lists and scalars) on stdout.

    Args:
        columns: keys to show as a table's columns, in this order; without them those of the first row.
        empty: what to say instead of a table without rows; on stderr, so that pipes get nothing.
    """
    if output is not Output.TABLE:
        text = json.dumps(data, indent=2, default=str) + "\n" if output is Output.JSON else to_yaml(data)
        sys.stdout.write(text)
    elif isinstance(data, Mapping):
        sys.stdout.write(key_values(data))
    elif not data:
        sys.stderr.write(f"{empty}\n")
    else:
        sys.stdout.write(table(data, columns or list(data[0])))
    sys.stdout.flush()


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Columns under their names; numbers to the right."""
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    titles = [name.replace("_", " ").upper() for name in columns]
    widths = [max(len(title), *(len(line[i]) for line in cells)) for i, title in enumerate(titles)]
    right = [_numbers([row.get(name) for row in rows]) for name in columns]

    def line(texts: Sequence[str]) -> str:
        parts = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(titles), *map(line, cells)]) + "\n"


def _numbers(values: Sequence[Any]) -> bool:
    """Whether a column holds numbers; some may be missing, but not all."""
    there = [value for value in values if value is not None]
    return bool(there) and all(isinstance(value, int | float) for value in there)


def key_values(data: Mapping[str, Any]) -> str:
    """One ``name: value`` a line; below them lists of rows, as tables under their names."""
    tables = {name: rows for name, rows in data.items() if isinstance(rows, list) and rows and _is_row(rows[0])}
    values = {name.replace("_", " ") + ":": value for name, value in data.items() if name not in tables}
    width = max(map(len, values), default=0)
    lines = [f"{name.ljust(width)} {cell(value)}" for name, value in values.items()]
    for name, rows in tables.items():
        lines += ["", f"{name.replace('_', ' ')}:", table(rows, list(rows[0])).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _is_row(value: Any) -> bool:
    return isinstance(value, Mapping)


def cell(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if is_problem(value):
        return str(value["code"])
    if isinstance(value, list | tuple):
        return _visible(",".join(map(str, value))) or "-"
    if isinstance(value, Mapping):
        return _visible(",".join(f"{k}={v}" for k, v in value.items())) or "-"
    return _visible(str(value).replace("\n", " "))


def is_problem(value: Any) -> bool:
    """Whether this is an error as ``core.problems`` has it; people are shown its code."""
    return isinstance(value, Mapping) and "code" in value and "detail" in value


def _visible(text: str) -> str:
    """Names may hold anything; what would move the cursor or colour the terminal is shown as its escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def to_yaml(data: Any) -> str:
    """Plain data as YAML 1.2; strings that could be read as something else are quoted."""
    return "\n".join(_yaml_lines(data)) + "\n"


def _yaml_lines(data: Any) -> list[str]:
    if isinstance(data, Mapping) and data:
        lines: list[str] = []
        for key, value in data.items():
            inner = _yaml_lines(value)
            if _nested(value):
                lines += [f"{_yaml_scalar(str(key))}:", *(f"  {line}" for line in inner)]
            else:
                lines.append(f"{_yaml_scalar(str(key))}: {inner[0]}")
        return lines
    if isinstance(data, list | tuple) and data:
        lines = []
        for item in data:
            first, *rest = _yaml_lines(item)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_yaml_scalar(data)]


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _yaml_scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _YAML_PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS
        return value if plain else json.dumps(value)
    if isinstance(value, Mapping | list | tuple):
        return "{}" if isinstance(value, Mapping) else "[]"
    return json.dumps(value, default=str)


def bytes_for_people(count: int) -> str:
    """``1536`` → ``1.5 KiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes everything")


def moment_for_people(ms: int | None) -> str | None:
    """A moment in ms since 1970 → ``2026-11-21T10:00:00Z``."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age_for_people(ms: int) -> str:
    """A time that has passed, in its two largest units: ``3d 4h``, ``5m 2s``; clocks differ, so never below 0."""
    seconds = max(0, ms) // 1_000
    amounts = ((seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    first = next((i for i, (amount, _) in enumerate(amounts) if amount), len(amounts) - 1)
    return " ".join(f"{amount}{unit}" for amount, unit in amounts[first : first + 2])


def format_count(number: int, what: str) -> str:
    """``1 broker``, ``3 brokers``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
