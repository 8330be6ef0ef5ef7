"""
Sessions by key: the accumulators of each as a slot of columns, bounds beside them.

All sessions that are open are in memory. In the changelog a session is named by its start and key, so one whose start
changes, or that another takes in, is deleted under its old name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace_streams.core.state.slots import START_BYTES, Columns, Layout, prefix_of, start_of
from headrace_streams.core.state.store import NOTHING, Changes, Cold, Whole


@dataclass(slots=True, eq=False)
class Session:
    """Rows of one key, none of which is further than the gap from the next."""

    key: bytes
    slot: int
    start: int
    """Of its earliest row, ms."""
    last: int
    """Of its newest row, ms."""
    named: int | None = None
    """Its start as the cold tier has it."""
    open: bool = True


class SessionStore(Whole, Columns):
    """Satisfies ``Store``."""

    key_at = START_BYTES

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._cold: Cold = NOTHING
        self._free: list[int] = []
        self._gone: set[bytes] = set()
        self.by_key: dict[bytes, list[Session]] = {}

    def open(self, cold: Cold) -> None:
        self._cold = cold
        self.clear()
        self._free, self._gone, self.by_key = [], set(), {}
        rows = list(cold.scan())
        if not rows:
            return
        unpacked = self.layout.unpack([value for _, value in rows])
        for place, (key, _) in enumerate(rows):
            start, last = start_of(key), int(unpacked[-1][place])
            session = self.add(key[START_BYTES:], start)
            session.last, session.named = last, start
            for column, kept in zip(self.columns, unpacked, strict=True):
                column[session.slot] = kept[place]

    def sessions(self) -> list[Session]:
        """Those that are open, by start and key."""
        found = [session for of_key in self.by_key.values() for session in of_key]
        return sorted(found, key=lambda session: (session.start, session.key))

    def add(self, key: bytes, time: int) -> Session:
        """A new one, without rows."""
        if self._free:
            slot = self._free.pop()
            self.keys[slot] = key
        else:
            slot = len(self.keys)
            self.keys.append(key)
            self.grow(slot + 1)
        session = Session(key, slot, time, time)
        self.by_key.setdefault(key, []).append(session)
        return session

    def begin_at(self, session: Session, start: int) -> None:
        """It begins earlier than was known."""
        self._unname(session)
        session.start = start

    def close(self, session: Session) -> None:
        """It is no session any more; its slot stays as it is until ``release``."""
        self._unname(session)
        session.open = False
        of_key = self.by_key[session.key]
        of_key.remove(session)
        if not of_key:
            del self.by_key[session.key]

    def release(self, sessions: Iterable[Session]) -> None:
        """What these held was read."""
        slots = [session.slot for session in sessions]
        self.reset(np.array(slots, np.int64))
        self._free.extend(slots)

    def _unname(self, session: Session) -> None:
        if session.named is not None:
            self._gone.add(prefix_of(session.named) + session.key)
            session.named = None

    def _dirty(self) -> list[Session]:
        return [session for session in self.sessions() if self.dirty[session.slot]]

    def changes(self) -> Changes:
        dirty = self._dirty()
        values = self.layout.pack(self.columns, np.array([session.slot for session in dirty], np.int64))
        written = {prefix_of(s.start) + s.key: value for s, value in zip(dirty, values, strict=True)}
        deleted: dict[bytes, bytes | None] = dict.fromkeys(self._gone)
        return sorted((deleted | written).items())

    def settle(self) -> None:
        for session in self._dirty():
            session.named = session.start
        self.dirty[:] = False
        self._gone = set()

    def drop(self) -> None:
        self.open(self._cold)
