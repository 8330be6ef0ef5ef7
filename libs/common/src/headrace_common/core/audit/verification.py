"""
Proves that the events of many nodes are those that the nodes have written, or says where they are not.

Lines come as they stand in the topic: those of one node in the order in which it wrote them, which one partition keeps.
The same line again is a repeat of a writer and means nothing. What cannot be known is no proof: events that no seal
covers, starts whose key nobody announced, and the end of a start that has not sealed its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from headrace_common.core.audit.canonical import read_line
from headrace_common.core.audit.chain import GENESIS, VERSION, Start, digest_of, read_start
from headrace_common.core.audit.seals import Check, Seal, message_of, read_seal
from headrace_common.core.errors import Rejected
from headrace_common.core.image import NodeKey
from headrace_common.core.moments import TIMESTAMP_MS_MAX

FINDINGS_MAX: Final = 1_000
STARTS_MAX: Final = 5_000
REPEATS_MAX: Final = 1_000
"""The latest events of a start with which one that comes again is compared."""


class Found(Enum):
    """What is wrong. The value is whether it is proven that somebody, or a fault, has changed what was written."""

    proven: bool

    UNREADABLE = "a line that no node has written", True
    CHANGED = "an event or a seal was changed", True
    MISSING = "events are missing", True
    SEAL_MISSING = "a seal is missing", True
    OUT_OF_ORDER = "a line is not in its place", True
    FORGED = "a seal was not signed by the node", True
    AFTER_END = "something comes after the last seal of a start that has ended", True
    TOO_MANY_STARTS = "there are more starts than can be looked at; narrow the time", False
    UNANNOUNCED = "a start that nobody has announced, so its seals cannot be checked", False
    MAYBE_MISSING = "events are missing; they may be older than what is kept", False
    NOT_SEALED = "events that no seal covers, so they may have been changed", False
    NOT_ENDED = "a start without its last seal: it crashed, or its end was removed", False
    TWO_AT_ONCE = "two starts of one node at one time: its id is given twice, or its clock was set back", False

    def __new__(cls, text: str, proven: bool) -> Found:
        self = object.__new__(cls)
        self._value_ = text
        self.proven = proven
        return self


class Finding(NamedTuple):
    """One thing that is wrong, and where."""

    found: Found
    start: Start | None
    """None: the line does not say."""
    first: int | None
    """The ``seq`` of the first and last event that it is about; None: it is about no single ones."""
    last: int | None


class Announced(NamedTuple):
    """What others have written of a start: its registration is an event of the controller."""

    key: bytes
    """Checks its seals."""
    time_ms: int
    """Unix time."""
    events: int = 0
    """So many there are at least, as a node that runs says itself; without it a missing end of a start that has not
    ended cannot be told from silence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found."""

    findings: tuple[Finding, ...]
    """At most ``FINDINGS_MAX``, in the order in which they were found."""
    findings_more: int
    changed: bool
    """Something is proven to be another than was written."""
    events: int
    seals: int
    repeats: int

    @property
    def proven(self) -> bool:
        """Everything is as it was written, and nothing is missing."""
        return not self.findings


@dataclass(slots=True)
class _Track:
    """How far one start has been followed."""

    key: bytes | None
    begins: int
    """The first event that is there."""
    next: int
    head: str
    """The digest of the event before ``next``."""
    sealed: int
    """The event after the last one that a seal covers."""
    last_seal: Seal | None = None
    first_ms: int = TIMESTAMP_MS_MAX
    last_ms: int = 0
    latest: dict[int, str] = field(default_factory=dict)
    """Digests of the latest events; in their order, so the oldest is first."""

    def advance(self, seq: int, head: str) -> None:
        self.next, self.head = seq + 1, head
        self.latest[seq] = head
        if len(self.latest) > REPEATS_MAX:
            del self.latest[next(iter(self.latest))]


def verify(
    lines: Iterable[bytes], announced: Mapping[Start, Announced], check: Check, kept_since_ms: int | None = None
) -> Verdict:
    """See ``Verifier``."""
    verifier = Verifier(announced, check, kept_since_ms)
    for line in lines:
        verifier.take(line)
    return verifier.finish()


class Verifier:
    """Takes lines one by one; holds at most 200 KiB for each start, however many events it has. One task."""

    def __init__(self, announced: Mapping[Start, Announced], check: Check, kept_since_ms: int | None = None) -> None:
        """
        Args:
            announced: all starts that there have been since ``kept_since_ms``, and those before it as far as known.
            kept_since_ms: Unix time from which on the topic has everything; what is older may be deleted. None:
                nothing has been deleted yet.
        """
        self._announced = announced
        self._check = check
        self._kept_since_ms = kept_since_ms
        self._tracks: dict[Start, _Track] = {}
        self._findings: list[Finding] = []
        self._findings_more = 0
        self._changed = False
        self._events = self._seals = self._repeats = 0

    def take(self, line: bytes) -> None:
        """The next line of the topic; of nodes that write into several partitions, one partition after the other."""
        try:
            fields = read_line(line)
            if "signature" in fields:
                self._take_seal(*read_seal(fields))
            else:
                self._take_event(_place(fields), digest_of(line))
        except Rejected:
            self._find(Found.UNREADABLE, None)

    def finish(self) -> Verdict:
        """After the last line."""
        for start, announced in self._announced.items():
            if start not in self._tracks:
                self._find_missing(start, announced.time_ms)
        for start, track in self._tracks.items():
            if start in self._announced and track.next < self._announced[start].events:
                self._find(Found.MISSING, start, track.next, self._announced[start].events - 1)
            if track.key is not None and track.sealed < track.next:
                self._find(Found.NOT_SEALED, start, track.sealed, track.next - 1)
        self._compare_starts()
        return Verdict(
            tuple(self._findings), self._findings_more, self._changed, self._events, self._seals, self._repeats
        )

    def _take_event(self, place: _Place, digest: str) -> None:
        start, seq, prev, time_ms = place
        self._events += 1
        track = self._tracks.get(start) or self._begin(start, seq, GENESIS if seq == 0 else prev, time_ms)
        if track is None:
            return
        track.first_ms, track.last_ms = min(track.first_ms, time_ms), max(track.last_ms, time_ms)
        if seq < track.next:
            self._compare(start, track, seq, digest)
            return
        if seq > track.next:
            self._find(Found.MISSING, start, track.next, seq - 1)
        elif prev != track.head:
            self._find(Found.CHANGED, start, max(0, seq - 1), seq)
        if track.last_seal is not None and track.last_seal.ends:
            self._find(Found.AFTER_END, start, seq, seq)
        track.advance(seq, digest)

    def _take_seal(self, seal: Seal, signature: bytes) -> None:
        start = seal.start
        self._seals += 1
        announced = self._announced.get(start)
        if announced is not None and not self._check(announced.key, message_of(seal), signature):
            self._find(Found.FORGED, start, seal.first, seal.last)
            return
        track = self._tracks.get(start) or self._begin(start, seal.last + 1, seal.head, seal.time_ms, seal.first)
        if track is None or track.key is None:
            return
        if seal == track.last_seal:
            self._repeats += 1
        elif seal.first <= seal.last < track.sealed:
            self._compare(start, track, seal.last, seal.head)
        else:
            self._follow(start, track, seal)

    def _follow(self, start: Start, track: _Track, seal: Seal) -> None:
        """A seal that has not been seen."""
        if seal.last >= track.next:
            self._find(Found.MISSING, start, track.next, seal.last)
            track.advance(seal.last, seal.head)
        elif track.latest.get(seal.last, seal.head) != seal.head:
            self._find(Found.CHANGED, start, seal.first, seal.last)
        elif seal.last < track.next - 1:
            self._find(Found.OUT_OF_ORDER, start, seal.first, seal.last)
        if seal.first != track.sealed and (track.last_seal is not None or seal.first > track.begins):
            self._find(Found.SEAL_MISSING, start, track.sealed, max(track.sealed, seal.first - 1))
        if track.last_seal is not None and track.last_seal.ends:
            self._find(Found.AFTER_END, start, seal.first, seal.last)
        track.sealed, track.last_seal = seal.last + 1, seal

    def _compare(self, start: Start, track: _Track, seq: int, digest: str) -> None:
        """Something of an event that has been passed."""
        known = track.latest.get(seq)
        if known == digest:
            self._repeats += 1
        else:
            self._find(Found.OUT_OF_ORDER if known is None else Found.CHANGED, start, seq, seq)

    def _begin(self, start: Start, seq: int, head: str, time_ms: int, sealed: int | None = None) -> _Track | None:
        """
        The first line of a start.

        Args:
            seq: the first event that is there, or may be there next.
            head: the digest of the one before.
            sealed: the first event of the seal, where the line is one.
        """
        if len(self._tracks) >= STARTS_MAX:
            self._find(Found.TOO_MANY_STARTS, start)
            return None
        announced = self._announced.get(start)
        if announced is None:
            self._find(Found.UNANNOUNCED, start)
        if seq > 0:
            self._find_missing(start, time_ms, 0, seq - 1)
        key = None if announced is None else announced.key
        track = self._tracks[start] = _Track(key, seq, seq, head, seq if sealed is None else sealed)
        track.latest[seq - 1] = head
        return track

    def _find_missing(self, start: Start, time_ms: int, first: int | None = None, last: int | None = None) -> None:
        """``time_ms``: what is missing is of before, or began then."""
        if self._kept_since_ms is None:
            self._find(Found.MISSING, start, first, last)
        elif time_ms > self._kept_since_ms:
            self._find(Found.MAYBE_MISSING, start, first, last)

    def _compare_starts(self) -> None:
        nodes: dict[NodeKey, list[Start]] = {}
        for start, track in self._tracks.items():
            if track.last_ms:
                nodes.setdefault(start.node, []).append(start)
        for starts in nodes.values():
            starts.sort(key=lambda start: self._tracks[start].first_ms)
            for start in starts[:-1]:
                track = self._tracks[start]
                if track.last_seal is None or not track.last_seal.ends:
                    self._find(Found.NOT_ENDED, start)
            until_ms = 0
            for start in starts:
                track = self._tracks[start]
                if track.first_ms < until_ms:
                    self._find(Found.TWO_AT_ONCE, start)
                until_ms = max(until_ms, track.last_ms)

    def _find(self, found: Found, start: Start | None, first: int | None = None, last: int | None = None) -> None:
        self._changed |= found.proven
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(Finding(found, start, first, last))
        else:
            self._findings_more += 1


class _Place(NamedTuple):
    """What an event says of its place."""

    start: Start
    seq: int
    prev: str
    time_ms: int


def _place(fields: dict[str, Any]) -> _Place:
    if not fields.keys() >= {"v", "seq", "prev", "time"} or fields["v"] != VERSION:
        raise Rejected("this is no event, or one of another version")
    place = _Place(read_start(fields), fields["seq"], fields["prev"], fields["time"])
    numbers = type(place.seq) is int and place.seq >= 0 and type(place.time_ms) is int and place.time_ms > 0
    if not numbers or not isinstance(place.prev, str):
        raise Rejected("an event says its place by a number, a digest and a time")
    return place
