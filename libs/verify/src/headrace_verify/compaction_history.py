"""
The history that the compacted variant of the checker judges: what it is made of, and how it is written down.

Records have a key, and a number that no other record has, deletions too; so each record that is read can be told from
every other. A log is one partition. Times are of one monotonic clock that all processes share, in ns.

Chaos tests record histories, ``headrace_verify.checker_compaction`` judges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import orjson

from headrace_verify.checker import Outcome

Log = str
"""The name of a partition."""


class Kind(Enum):
    """What somebody who reads a log wants of it."""

    READER = "reader"
    """Reads while others write."""
    FINAL = "final"
    """Reads from the first offset to the end when nothing is written any more."""
    REPLICA = "replica"
    """The same, from one replica alone."""


class Point(NamedTuple):
    """A record as it was read."""

    offset: int
    key: str
    number: int
    deletes: bool
    """It has no value: its key is deleted."""


@dataclass(frozen=True, slots=True)
class Write:
    """One record sent."""

    process: int
    log: Log
    key: str
    number: int
    deletes: bool
    outcome: Outcome
    """``FAIL``: nobody who reads what is committed may see it, as it is aborted, say."""
    offset: int | None
    """Known when it was acknowledged."""
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Began:
    """A process reads a log from ``position`` on; what it read of it before has no tie to what it reads now."""

    process: int
    log: Log
    position: int
    time_ns: int
    kind: Kind = Kind.READER
    first: bool = False
    """``position`` is what it was told to be the first offset there is."""


@dataclass(frozen=True, slots=True)
class Read:
    """It read on from ``before`` to ``after``, and the committed records there were those."""

    process: int
    log: Log
    before: int
    after: int
    points: tuple[Point, ...]
    time_ns: int
    """When it had them."""


@dataclass(frozen=True, slots=True)
class Told:
    """A process was told that ``lost`` to ``position`` - 1 are gone, and that it goes on at ``position``."""

    process: int
    log: Log
    lost: int
    position: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Handed:
    """Members of a group got these."""

    process: int
    """Of the member."""
    log: Log
    points: tuple[Point, ...]
    time_ns: int


@dataclass(frozen=True, slots=True)
class GroupAt:
    """The group whose members are ``processes`` began at ``start``, and has in the end committed ``position``."""

    processes: tuple[int, ...]
    log: Log
    start: int
    position: int


Event = Write | Began | Read | Told | Handed | GroupAt

_NAMES: Final = {each.__name__: each for each in (Write, Began, Read, Told, Handed, GroupAt)}
_ENUMS: Final = {"outcome": Outcome, "kind": Kind}


def to_line(event: Event) -> bytes:
    """One event as one line of JSON, without its end."""
    return orjson.dumps([type(event).__name__, event], default=tuple)


def from_lines(lines: Iterable[bytes]) -> Iterator[Event]:
    """
    The inverse of ``to_line``, line by line.

    Raises:
        ValueError: a line is none of these.
    """
    for line in lines:
        name, fields = _entry(line)
        for field, of in _ENUMS.items():
            if field in fields:
                fields[field] = of(fields[field])
        if "points" in fields:
            fields["points"] = tuple(Point(*point) for point in fields["points"])
        if "processes" in fields:
            fields["processes"] = tuple(fields["processes"])
        yield _NAMES[name](**fields)


def _entry(line: bytes) -> tuple[str, dict[str, Any]]:
    entry = orjson.loads(line)
    if not isinstance(entry, list) or not entry or entry[0] not in _NAMES:
        raise ValueError(f"this is no event of such a history: {line[:80]!r}")
    return entry[0], entry[1]
