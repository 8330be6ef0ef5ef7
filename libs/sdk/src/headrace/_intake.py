"""
Where records enter a producer: open chunks by topic, the budget of ``buffer_memory``, and the token that guards both.

Both twins append to the chunks here, from any thread; the engine takes closed chunks on its loop. What is shared is
guarded by a token, a list of one element: taking it is ``pop``, giving it back ``append``, which costs a third of a
``threading.Lock`` and, as a critical section lasts a microsecond and never waits, serves as well. The fast path of
``send`` is written out in the two shells, as a call would cost more than what it does; all else is here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, Final, NamedTuple

from headrace._core.chunk import Chunk
from headrace._record_rules import RecordRules, Row, View
from headrace._runtime import Clock
from headrace.delivery import Delivery
from headrace.errors import (
    ClientClosed,
    HeadraceError,
)
from headrace.settings import ProducerSettings

GRANT_BYTES: Final = 256 << 10
"""Budget is given to chunks in such pieces."""

PARTITIONS_TOGETHER_MAX: Final = 64
"""A chunk is closed at batch_size times the partitions, at most so many."""

_NAPS_MAX: Final = 4_000
_NAP_SECONDS: Final = 0.0005


class Token:
    """Holds the token for a ``with`` block."""

    __slots__ = ("_one",)

    def __init__(self, one: list[None]) -> None:
        self._one = one

    def __enter__(self) -> None:
        one = self._one
        naps = 0
        while True:
            try:
                one.pop()
            except IndexError:
                naps += 1
                if naps > _NAPS_MAX:  # the holder was killed by Ctrl+C in between two instructions
                    return
                time.sleep(0 if naps < 10 else _NAP_SECONDS)
                continue
            return

    def __exit__(self, *_: object) -> None:
        self._one.append(None)


class Intake:
    """
    Open chunks and the budget. Methods that say so are called with the token held.

    Args:
        on_open: a chunk was opened; called with the token held, so it only notes that.
        on_close: a chunk was closed; likewise.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        clock: Clock,
        *,
        on_open: Callable[[Chunk], None],
        on_close: Callable[[], None],
    ) -> None:
        self.one: list[None] = [None]
        self.hold = Token(self.one)
        self.fast: dict[str, Chunk] = {}
        """Open chunks of topics that need nothing but an append; emptied to send callers the long way."""
        self.opened: dict[str, Chunk] = {}
        self.closed: deque[Chunk] = deque()
        self.topics: dict[str, View] = {}
        """What the engine knows; replaced by it."""
        self.available = settings.buffer_memory
        self.home = 0
        """The thread of the engine's loop."""
        self.failure: HeadraceError | None = None
        """Why nothing is taken any more."""
        self.gate: HeadraceError | None = None
        """Why nothing is taken now: no transaction is open."""
        self.rules = RecordRules(settings)
        self._settings = settings
        self._clock = clock
        self._on_open = on_open
        self._on_close = on_close
        self._waiters: list[Callable[[], None]] = []

    # --- one record -------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raises: ``ClientClosed`` or what ended the producer."""
        if self.failure is not None:
            raise self.failure

    def check_open(self) -> None:
        """Raises: as ``check_alive``, or why no record is taken now."""
        self.check_alive()
        if self.gate is not None:
            raise copy(self.gate)

    def add(self, view: View, row: Row) -> Delivery | None:
        """Append ``row``; None when the budget has no room. With the token held."""
        self.check_open()
        chunk = self._room_for(view, row.size)
        if chunk is None:
            return None
        chunk.room -= row.size
        chunk.mark(self._clock.now_ms())
        delivery = Delivery()
        delivery._chunk = chunk
        delivery._row = at = len(chunk.values)
        if row.partition is not None:
            chunk.name_partition(at, at + 1, row.partition)
        if row.timestamp_ms is not None:
            chunk.stamps.append((at, at + 1, row.timestamp_ms))
        if row.headers:
            chunk.headers[at] = row.headers
        chunk.values.append(row.value)
        chunk.keys.append(row.key)
        return delivery

    # --- many records -----------------------------------------------------------------------------------------

    def add_lists(
        self, view: View, values: list[Any], keys: list[Any] | None, extra: Extra, size: int
    ) -> tuple[Chunk, int, int] | None:
        """Append rows of ``size`` bytes in all; None when the budget has no room. With the token held."""
        self.check_open()
        chunk = self._room_for(view, size)
        if chunk is None:
            return None
        chunk.room -= size
        chunk.mark(self._clock.now_ms())
        start = len(chunk.values)
        end = start + len(values)
        self._note(chunk, start, end, extra)
        chunk.values.extend(values)
        chunk.keys.extend([None] * len(values) if keys is None else keys)
        return chunk, start, end

    def add_arrays(self, view: View, values: Any, keys: Any, extra: Extra, size: int) -> tuple[Chunk, int, int] | None:
        """The same with Arrow arrays, as a closed chunk of their own, in order after what is open."""
        self.check_open()
        if self.available < size:
            return None
        open_one = self.opened.get(view.name)
        if open_one is not None:
            self.close(open_one)
        self.available -= size
        chunk = self._new(view)
        chunk.granted = size
        chunk.mark(self._clock.now_ms())
        rows = len(values)
        self._note(chunk, 0, rows, extra)
        chunk.values, chunk.keys = values, keys
        self.closed.append(chunk)
        self._on_close()
        return chunk, 0, rows

    def _note(self, chunk: Chunk, start: int, end: int, extra: Extra) -> None:
        if extra.partitions is not None:
            if isinstance(extra.partitions, int):
                chunk.name_partition(start, end, extra.partitions)
            else:
                chunk.partitions.append((start, end, extra.partitions))
        if extra.timestamps_ms is not None:
            chunk.stamps.append((start, end, extra.timestamps_ms))
        if hasattr(extra.headers, "type"):
            assert not start, "a column of headers comes with a chunk of its own"
            chunk.header_column = extra.headers
        elif extra.headers is not None:
            chunk.headers.update((at, each) for at, each in enumerate(extra.headers, start) if each)

    # --- chunks and budget ------------------------------------------------------------------------------------

    def _new(self, view: View) -> Chunk:
        return Chunk(
            view.name, opened_ms=self._clock.monotonic_ms(), record_max=self.rules.record_max(view), home=self.home
        )

    def chunk_bytes(self, view: View) -> int:
        """A chunk of this topic is closed here."""
        together = self._settings.batch_size * min(view.partitions, PARTITIONS_TOGETHER_MAX)
        return min(together, self._settings.buffer_memory // 4)

    def _room_for(self, view: View, size: int) -> Chunk | None:
        """The open chunk of the topic with room for ``size`` more bytes; None when the budget has none."""
        chunk = self.opened.get(view.name)
        if chunk is not None and chunk.room < size:
            limit = self.chunk_bytes(view) - chunk.granted
            grant = min(max(GRANT_BYTES, size - chunk.room), limit, self.available)
            if chunk.room + grant >= size:
                self.available -= grant
                chunk.granted += grant
                chunk.room += grant
            else:
                self.close(chunk)
                chunk = None
        if chunk is not None:
            return chunk
        grant = min(max(GRANT_BYTES, size), max(self.chunk_bytes(view), size), self.available)
        if grant < size:
            return None
        chunk = self.opened[view.name] = self._new(view)
        self.available -= grant
        chunk.granted = chunk.room = grant
        if self.rules.plain:
            self.fast[view.name] = chunk
        self._on_open(chunk)
        return chunk

    def close(self, chunk: Chunk) -> None:
        """Nothing more comes into ``chunk``. With the token held."""
        del self.opened[chunk.topic]
        self.fast.pop(chunk.topic, None)
        self.available += chunk.room
        chunk.granted -= chunk.room
        chunk.room = 0
        self.closed.append(chunk)
        self._on_close()

    def close_all(self) -> None:
        """Close all open chunks. With the token held."""
        for chunk in list(self.opened.values()):
            self.close(chunk)

    def fail(self, error: HeadraceError) -> None:
        """Take nothing any more; what is open is closed. With the token held."""
        self.failure = self.failure or error
        self.close_all()
        self._wake()

    def shut(self, why: HeadraceError) -> None:
        """Take nothing until ``gate`` is None again; what is open is closed. With the token held."""
        self.gate = why
        self.close_all()
        self._wake()

    def wait_for_room(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when budget came back. With the token held."""
        self._waiters.append(wake)

    def give_back(self, size: int) -> None:
        """Budget of settled batches. With the token held."""
        self.available += size
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()


class Extra(NamedTuple):
    """What ``send_many`` was given beside values and keys."""

    partitions: Any
    """One for all, or an array of one for each; -1: it is left to the key."""
    timestamps_ms: Any
    headers: Any
    """Lists of pairs, or an Arrow array (``_bulk_tables``); None: nobody has any."""

    def cut(self, start: int, end: int) -> Extra:
        """For rows ``start`` to ``end``."""
        partitions, stamps = self.partitions, self.timestamps_ms
        return Extra(
            partitions if partitions is None or isinstance(partitions, int) else partitions[start:end],
            stamps if stamps is None or isinstance(stamps, int) else stamps[start:end],
            None if self.headers is None else self.headers[start:end],
        )


def closed_error(kind: str) -> ClientClosed:
    """Why a closed client refuses."""
    return ClientClosed(f"the {kind} is closed; make a new one")
