"""
Gathers what a tap says into chunks that end at a STATE: everything before it, of all streams, is committed with it.

What comes behind the last STATE waits for the next one, within a limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.singer import messages
from headrace_connect.connectors.singer.lines import Line
from headrace_connect.connectors.singer.messages import NotAMessage, RecordMessage, SchemaMessage, StateMessage
from headrace_connect.connectors.singer.position import Place, StateTooLarge
from headrace_connect.connectors.singer.repeats import Edge, Repeats
from headrace_connect.connectors.singer.schemas import UnfitSchema
from headrace_connect.connectors.singer.shapes import Extra, Shape, Types
from headrace_connect.plugin import BadItem, Chunk

_log: Final = logging.getLogger(__name__)
ROWS_AT_ONCE: Final = 2_000
"""Records become columns when there are so many: they take less memory then."""
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Rules:
    """What becomes of records."""

    topic_of: Callable[[str], str]
    """Of a stream."""
    takes: Callable[[str], bool]
    """Whether a stream is chosen."""
    types: Types = "schema"
    extra: Extra = "refuse"
    drops_repeats: bool = True
    bookmarks: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Replication keys that the catalog names, by stream, where SCHEMA names none."""


@dataclass(slots=True, eq=False)
class _Group:
    """Records of one stream and one schema, in their order."""

    shape: Shape
    records: list[RecordMessage] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    times: list[int | None] = field(default_factory=list)
    bad: list[BadItem] = field(default_factory=list)

    def convert(self) -> None:
        """Records become columns."""
        records, lines, self.records, self.lines = self.records, self.lines, [], []
        if not records:
            return
        values, keys, failed = self.shape.convert([one.record for one in records])
        self.values.append(values)
        self.keys.append(keys)
        self.times += [_millis(one.extracted) for row, one in enumerate(records) if row not in failed]
        stream = self.shape.message.stream
        for row, why in sorted(failed.items()):
            self.bad.append(BadItem(lines[row].text, f"line {lines[row].number}, stream {stream}: {why}"))

    def extend(self, other: _Group) -> None:
        """With what came behind it."""
        self.values += other.values
        self.keys += other.keys
        self.times += other.times
        self.bad += other.bad

    def to_chunk(self, topic: str, position: Mapping[str, Any]) -> Chunk:
        """Everything; ``convert`` was called."""
        times = self.times if any(time is not None for time in self.times) else None
        keys = _joined(self.keys) if self.shape.message.keys else None
        return Chunk(_joined(self.values), position, topic, keys, times, bad=self.bad)


def _joined(parts: Sequence[Any]) -> Any:
    if parts and isinstance(parts[0], pa.Array):
        return pa.concat_arrays(parts)
    return [one for part in parts for one in part]


@dataclass(slots=True, eq=False)
class _Gathered:
    """Groups, and what belongs to no stream."""

    groups: dict[Shape, _Group] = field(default_factory=dict)
    bad: list[BadItem] = field(default_factory=list)

    def add(self, other: _Gathered) -> None:
        self.bad += other.bad
        for shape, group in other.groups.items():
            group.convert()
            if shape in self.groups:
                self.groups[shape].extend(group)
            else:
                self.groups[shape] = group


class Collector:
    """Of one run of a tap."""

    def __init__(self, place: Place, rules: Rules) -> None:
        self._place = place
        """As of what was taken last."""
        self._rules = rules
        self._shapes: dict[str, Shape | str] = {}
        """By stream; a text says what is wrong with its schema."""
        self._repeats: dict[str, Repeats] = {}
        self._open = _Gathered()
        self._ready = _Gathered()
        self._next: Place | None = None
        """Behind what is ready."""
        self.open_bytes = 0
        """Of lines behind the last STATE."""
        self.open_rows = 0
        self.repeats = 0
        """Records that were left out, because the run before had sent them."""

    @property
    def ready(self) -> bool:
        """Whether there was a STATE since the last ``take``."""
        return self._next is not None

    def feed(self, line: Line) -> None:
        """
        The tap has written this.

        Raises:
            InvalidConfig: it sends what cannot be taken: BATCH, a state without end.
        """
        if line.cut:
            self._refuse(line, f"has {line.bytes} bytes, and line.bytes.max is less")
            return
        try:
            message = messages.parse(line.text, self._is_exact)
        except NotAMessage as wrong:
            self._refuse(line, str(wrong))
            return
        match message:
            case RecordMessage():
                self._take_record(message, line)
            case SchemaMessage():
                self._take_schema(message)
            case StateMessage(value):
                self._take_state(value)
            case messages.BatchMessage(stream):
                raise InvalidConfig(
                    f"the tap sends BATCH messages for the stream {stream[:_SHOWN]}, which name files instead of "
                    "records: leave batch_config out of its configuration"
                )

    def take(self) -> Chunk:
        """Everything up to the last STATE; there was one."""
        assert self._next is not None, "a STATE came"
        self._place, self._next = self._next, None
        gathered, self._ready = self._ready, _Gathered()
        return self._chunk(gathered)

    def take_open(self) -> Chunk:
        """What came behind the last STATE, without a position of its own: ``ready`` is false."""
        assert self._next is None, "what is ready goes first"
        self._place = Place(self._place.state, self._edges(self._place))
        gathered = _Gathered()
        gathered.add(self._open)
        self._open, self.open_bytes, self.open_rows = _Gathered(), 0, 0
        return self._chunk(gathered)

    @property
    def untold(self) -> list[str]:
        """Streams with more records of the last bookmark than are told: they may come again in the next run."""
        return [stream for stream, one in self._repeats.items() if one.is_full]

    @property
    def place(self) -> Place:
        """Behind what was taken last."""
        return self._place

    def _is_exact(self, stream: str) -> bool:
        shape = self._shapes.get(stream)
        return isinstance(shape, Shape) and shape.exact

    def _refuse(self, line: Line, why: str) -> None:
        self.open_bytes += len(line.text)
        self._open.bad.append(BadItem(line.text, f"line {line.number} of the tap {why}"))

    def _take_record(self, message: RecordMessage, line: Line) -> None:
        stream = message.stream
        if not self._rules.takes(stream):
            return
        shape = self._shapes.get(stream)
        if not isinstance(shape, Shape):
            why = f"its schema cannot be used: {shape}" if shape else "there was no SCHEMA of it before"
            self._refuse(line, f"is a RECORD of {stream[:_SHOWN]}, and {why}")
            return
        if self._is_repeat(shape, message):
            self.repeats += 1
            return
        group = self._open.groups.get(shape)
        if group is None:
            group = self._open.groups[shape] = _Group(shape)
        group.records.append(message)
        group.lines.append(line)
        self.open_rows += 1
        self.open_bytes += len(line.text)
        if len(group.records) >= ROWS_AT_ONCE:
            group.convert()

    def _is_repeat(self, shape: Shape, message: RecordMessage) -> bool:
        of = shape.message
        bookmark = of.bookmarks[0] if len(of.bookmarks) == 1 else self._rules.bookmarks.get(of.stream)
        if not self._rules.drops_repeats or not of.keys or bookmark is None or len(of.bookmarks) > 1:
            return False
        if of.stream not in self._repeats:
            self._repeats[of.stream] = Repeats(self._place.edges.get(of.stream))
        return self._repeats[of.stream].is_repeat(message.record.get(bookmark), message.record)

    def _take_schema(self, message: SchemaMessage) -> None:
        known = self._shapes.get(message.stream)
        if not self._rules.takes(message.stream) or (isinstance(known, Shape) and known.message == message):
            return
        if isinstance(known, Shape):
            _log.warning("the schema of the stream %s has changed", message.stream[:_SHOWN])
        try:
            self._shapes[message.stream] = Shape.of(message, self._rules.types, self._rules.extra)
        except UnfitSchema as wrong:
            self._shapes[message.stream] = str(wrong)

    def _take_state(self, value: Any) -> None:
        self._next = Place(value, self._edges(self._next or self._place))
        self._ready.add(self._open)
        self._open, self.open_bytes, self.open_rows = _Gathered(), 0, 0

    def _edges(self, before: Place) -> Mapping[str, Edge]:
        """Of everything that was fed."""
        edges = {name: one.edge() for name, one in self._repeats.items()}
        return {**before.edges, **{name: edge for name, edge in edges.items() if edge is not None}}

    def _chunk(self, gathered: _Gathered) -> Chunk:
        try:
            position = self._place.to_json()
        except StateTooLarge as wrong:
            raise InvalidConfig(str(wrong)) from None
        topic_of = self._rules.topic_of
        parts = [group.to_chunk(topic_of(shape.message.stream), position) for shape, group in gathered.groups.items()]
        first = parts[0] if parts else Chunk([], position)
        return replace(first, further=parts[1:], bad=[*first.bad, *gathered.bad], boundary=True)


def _millis(extracted: str | None) -> int | None:
    if extracted is None:
        return None
    try:
        moment = datetime.fromisoformat(extracted)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
