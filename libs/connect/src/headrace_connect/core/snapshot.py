"""
Reads tables in chunks beside the stream of their changes, so that both together give the tables' state.

The algorithm is DBLog's (Andreakis and Papapanagiotou, 2020): a chunk is read between two marks in the WAL, and a row
whose key changed between them is dropped in favour of the change. A commit is in the WAL before other sessions see it
(it may wait for a standby), so a row is also dropped if its key was changed by a transaction that came in the stream
and that the chunk's snapshot does not see. The connector ``postgres-cdc`` owns one ``Snapshots`` per connection.

A chunk's rows belong where its high mark stands in the stream, behind all transactions that came before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

Key = tuple[bytes, ...]
"""The text forms of the columns of a key, as sessions with equal settings write them."""
MARK_PREFIX: Final = "headrace-snapshot"
"""The prefix of marks, for ``pg_logical_emit_message``."""


@dataclass(frozen=True, slots=True)
class Visible:
    """What ``pg_current_snapshot()`` says: which transactions a session sees."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Visible:
        """From its text form, ``xmin:xmax:xip,xip``."""
        xmin, xmax, in_progress = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in in_progress.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether it sees what a transaction did that has committed; ``xid`` is short, as in Begin."""
        widened = widen(xid, self.xmax)
        return widened < self.xmin or (widened < self.xmax and widened not in self.in_progress)


def widen(xid: int, near: int) -> int:
    """The transaction with these last 32 bits that is the nearest one to ``near``."""
    return near + ((xid - near + 2**31) & 0xFFFF_FFFF) - 2**31


class Edge(Enum):
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Mark:
    """A message in the WAL, one on each side of a chunk."""

    chunk: str
    edge: Edge

    def encode(self) -> bytes:
        return f"{self.edge.value} {self.chunk}".encode()

    @classmethod
    def decode(cls, content: bytes) -> Mark | None:
        """None: another program wrote it."""
        edge, _, chunk = content.decode(errors="replace").partition(" ")
        return cls(chunk, Edge(edge)) if edge in ("low", "high") else None


@dataclass(frozen=True, slots=True)
class TableAdded:
    """A table shall be read, anew or on from a key; one that is being read begins again."""

    table: str
    after: Key | None = None


@dataclass(frozen=True, slots=True)
class TableRemoved:
    table: str


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    number: int
    next_xid: int
    """From ``pg_current_xact_id()``, called before ``visible`` was taken: greater than all given before the call."""
    visible: Visible


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """The rows themselves stay with the caller until ``EmitChunk`` or ``DropChunk``."""

    chunk: str
    visible: Visible
    """Of the transaction that read it."""
    keys: Sequence[Key]
    last: bool
    """No row of the table has a greater key: it gave fewer rows than the limit."""


@dataclass(frozen=True, slots=True)
class MarkSeen:
    """A mark came in the stream."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class Streamed:
    """A committed transaction, or a piece of one, came in the stream, whether its changes were used or skipped."""

    xid: int
    keys: Mapping[str, Collection[Key] | None]
    """By table: keys before and after each change; None: all (a truncation)."""


Event = TableAdded | TableRemoved | SnapshotRead | ChunkRead | MarkSeen | Streamed


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Call ``pg_current_xact_id()`` and then, in a transaction of its own, take ``pg_current_snapshot()``."""

    number: int
    pause: bool
    """The last answer was not enough: wait a moment first."""


@dataclass(frozen=True, slots=True)
class WriteMark:
    """Write the mark to the WAL; done before the next effect for the same chunk begins."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """
    Read up to ``limit`` rows with keys greater than ``after``, in the order of the key, in one REPEATABLE READ
    transaction that also takes ``pg_current_snapshot()``.

    Its first statement is LOCK TABLE … IN ACCESS SHARE MODE: a table that is rewritten between snapshot and reading
    looks empty. It may be repeated until ``ChunkRead`` is told.
    """

    chunk: str
    table: str
    after: Key | None
    limit: int


@dataclass(frozen=True, slots=True)
class EmitChunk:
    """Send the rows of ``places``, and with them, in one commit, how far the table has come."""

    chunk: str
    table: str
    places: Sequence[int]
    """Of the chunk's rows, ascending."""
    after: Key | None
    """Where to go on after a restart."""
    done: bool


@dataclass(frozen=True, slots=True)
class DropChunk:
    """Forget the chunk's rows; they are read again if they are still wanted."""

    chunk: str


Effect = ReadSnapshot | WriteMark | ReadChunk | EmitChunk | DropChunk


@dataclass(slots=True)
class _Changed:
    """Keys of a table that a transaction changed."""

    xid: int
    keys: set[Key] | None
    """None: all, or too many to remember."""
    between: bool
    """It came behind the low mark of the chunk that is being read."""


@dataclass(slots=True)
class _Chunk:
    id: str
    low_seen: bool = False
    read: ChunkRead | None = None


@dataclass(slots=True)
class _Table:
    name: str
    after: Key | None
    since: int
    """The first ReadSnapshot that was asked for after the table was added."""
    unknown: set[int] | None = None
    """Short xids of transactions that may have committed before the table was added and are not visible yet: which
    keys they changed is not known. None: no snapshot has said yet."""
    streamed: set[int] = field(default_factory=set)
    """Short xids that came in the stream meanwhile, of which the keys are known."""
    changed: list[_Changed] = field(default_factory=list)
    keys: int = 0
    """How many there are in ``changed``."""
    chunk: _Chunk | None = None

    @property
    def waits(self) -> bool:
        """Until a snapshot sees more."""
        return bool(self.unknown is None or self.unknown or any(change.keys is None for change in self.changed))

    def remember(self, xid: int, keys: Collection[Key] | None) -> None:
        between = self.chunk is not None and self.chunk.low_seen
        self.changed.append(_Changed(xid, None if keys is None else set(keys), between))
        self.keys += len(keys or ())

    def forget(self, visible: Visible) -> None:
        """What one snapshot sees, all later ones see."""
        self.changed = [change for change in self.changed if not visible.sees(change.xid)]
        self.keys = sum(len(change.keys or ()) for change in self.changed)
        if self.unknown:
            self.unknown = {xid for xid in self.unknown if not visible.sees(xid)}


class Snapshots:
    """
    Which chunk is read next, and which of its rows count.

    Tables need a key: the columns of their replica identity, or the primary key where the identity is full. Up to
    ``parallel_max`` tables are read at a time, in the order in which they were added, one chunk of each.
    """

    def __init__(self, generation: str, *, chunk_rows: int, parallel_max: int = 1, keys_max: int = 1_000_000) -> None:
        """
        Args:
            generation: differs from that of every other ``Snapshots``, earlier ones of the connector too.
            keys_max: of changed keys to remember, of all tables; where there are more, chunks are read again.
        """
        self._generation = generation
        self._chunk_rows = chunk_rows
        self._parallel_max = parallel_max
        self._keys_max = keys_max
        self._tables: dict[str, _Table] = {}
        self._chunks = 0
        self._asked = 0
        self._asking = False

    @property
    def waits_for(self) -> Mapping[str, Collection[int]]:
        """By table, the open or hidden transactions (short xids) that must end before its first chunk, for a status."""
        return {table.name: table.unknown for table in self._tables.values() if table.unknown}

    @property
    def idle(self) -> bool:
        """All tables are read. Keys of transactions need not be told."""
        return not self._tables

    def handle(self, event: Event) -> list[Effect]:
        """Take an event and return what must now be done, in order."""
        match event:
            case TableAdded(name, after):
                dropped = self._remove(name)
                self._tables[name] = _Table(name, after, self._asked + 1)
                return [*dropped, *self._proceed()]
            case TableRemoved(name):
                return [*self._remove(name), *self._proceed()]
            case SnapshotRead():
                return self._learn(event)
            case Streamed():
                self._remember(event)
                return []
            case ChunkRead(id_):
                table = self._reading(id_)
                if table is None or table.chunk is None:
                    return [DropChunk(id_)]
                table.chunk.read = event
                self._forget(event.visible)
                return [WriteMark(Mark(id_, Edge.HIGH))]
            case MarkSeen(mark):
                return self._pass(mark)

    def _remove(self, name: str) -> list[Effect]:
        table = self._tables.pop(name, None)
        return [DropChunk(table.chunk.id)] if table is not None and table.chunk is not None else []

    def _reading(self, chunk: str) -> _Table | None:
        return next((table for table in self._tables.values() if table.chunk and table.chunk.id == chunk), None)

    def _forget(self, visible: Visible) -> None:
        """A table whose chunk is being read may use a snapshot that is older than this one."""
        for table in self._tables.values():
            if table.chunk is None:
                table.forget(visible)

    def _learn(self, event: SnapshotRead) -> list[Effect]:
        if event.number != self._asked:
            return []
        self._asking = False
        visible = event.visible
        for table in self._tables.values():
            if table.unknown is None and table.since <= event.number:
                hidden = {*visible.in_progress, *range(visible.xmax, event.next_xid)}
                table.unknown = {xid & 0xFFFF_FFFF for xid in hidden if xid < event.next_xid} - table.streamed
                table.streamed.clear()
        self._forget(visible)
        return self._proceed(pause=True)

    def _remember(self, event: Streamed) -> None:
        for table in self._tables.values():
            if table.unknown is None:
                table.streamed.add(event.xid)
            else:
                table.unknown.discard(event.xid)
            if table.name not in event.keys:
                continue
            keys = event.keys[table.name]
            if keys is not None and sum(other.keys for other in self._tables.values()) + len(keys) > self._keys_max:
                keys = None
            table.remember(event.xid, keys)

    def _pass(self, mark: Mark) -> list[Effect]:
        table = self._reading(mark.chunk)
        if table is None or table.chunk is None:
            return []
        if mark.edge is Edge.LOW:
            table.chunk.low_seen = True
            return []
        assert table.chunk.read is not None, "the high mark is written after the chunk was read"
        return [*self._finish(table, table.chunk, table.chunk.read), *self._proceed()]

    def _finish(self, table: _Table, chunk: _Chunk, read: ChunkRead) -> list[Effect]:
        """The high mark: which rows are as the stream left them?"""
        changed = [change.keys for change in table.changed if change.between or not read.visible.sees(change.xid)]
        table.chunk = None
        table.forget(read.visible)
        for change in table.changed:
            change.between = False
        if None in changed or not chunk.low_seen:
            return [DropChunk(chunk.id)]
        stale = {key for keys in changed if keys for key in keys}
        places = [place for place, key in enumerate(read.keys) if key not in stale]
        table.after = read.keys[-1] if read.keys else table.after
        if read.last:
            del self._tables[table.name]
        return [EmitChunk(chunk.id, table.name, places, table.after, read.last)]

    def _proceed(self, *, pause: bool = False) -> list[Effect]:
        effects: list[Effect] = []
        free = self._parallel_max - sum(table.chunk is not None for table in self._tables.values())
        idle = [table for table in self._tables.values() if table.chunk is None]
        for table in [table for table in idle if not table.waits][:free]:
            self._chunks += 1
            table.chunk = _Chunk(f"{self._generation}-{self._chunks}")
            low = Mark(table.chunk.id, Edge.LOW)
            effects += [WriteMark(low), ReadChunk(table.chunk.id, table.name, table.after, self._chunk_rows)]
        if not self._asking and any(table.waits for table in idle):
            self._asking = True
            self._asked += 1
            effects.append(ReadSnapshot(self._asked, pause))
        return effects
