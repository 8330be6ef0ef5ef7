"""
The chain of a node's events: each has the SHA-256 of the one before. Who changes, removes, adds or moves one must make
all behind it anew, and cannot make their seals. A chain is of one start of one node with one key for its seals.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace_common.core.audit.canonical import write_line
from headrace_common.core.errors import Rejected
from headrace_common.core.image import NodeKey
from headrace_common.core.node_rules import node_key_of

VERSION: Final = 1
GENESIS: Final = "0" * 64
"""Stands for the event before the first."""
START_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Start:
    """One life of a node with one session key."""

    node: NodeKey
    id: str
    """1 to ``START_CHARS_MAX`` printable characters; another one for each start."""

    def __post_init__(self) -> None:
        if not (0 < len(self.id) <= START_CHARS_MAX and self.id.isascii() and self.id.isprintable()):
            raise Rejected(f"{self.id[:80]!r} is no id of a start")

    def __str__(self) -> str:
        return f"{self.node} (start {self.id})"


class Link(NamedTuple):
    """An event in its place."""

    seq: int
    digest: str
    """SHA-256 of ``line``, as 64 hexadecimal digits."""
    line: bytes


def digest_of(line: bytes) -> str:
    """What the next event says of this one."""
    return hashlib.sha256(line).hexdigest()


def start_fields(start: Start) -> dict[str, Any]:
    return {"node": str(start.node), "start": start.id}


def read_start(fields: dict[str, Any]) -> Start:
    """
    The inverse of ``start_fields``.

    Raises:
        Rejected: it names no start of a node.
    """
    node, id = fields.get("node"), fields.get("start")
    if not isinstance(node, str) or not isinstance(id, str):
        raise Rejected("a line of the audit names its node and that one's start")
    return Start(node_key_of(node), id)


class Chain:
    """Puts events in their place. One task."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.length = 0
        """Also the ``seq`` of the next event."""
        self.head = GENESIS
        """The digest of the last event."""

    def append(self, fields: dict[str, Any]) -> Link:
        """
        The event with these fields as the next of the chain.

        Raises:
            Rejected: as ``write_line``; the chain is as it was.
        """
        place = {"v": VERSION, **start_fields(self.start), "seq": self.length, "prev": self.head}
        assert place.keys().isdisjoint(fields), "an event does not name its place"
        line = write_line({**place, **fields})
        link = Link(self.length, digest_of(line), line)
        self.length, self.head = link.seq + 1, link.digest
        return link
