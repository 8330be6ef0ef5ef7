"""
Where records enter a producer: open chunks by topic, the budget of ``buffer_memory``, and the token that guards both.

Both twins append to the chunks here, from any thread; the engine takes closed chunks on its loop. One rule: what
``GUARDED`` names is touched with the token held and in no other way. ``within`` holds it for a call, and a test runs
all producers with an intake that checks the rule.

The token is an attribute in a slot. Taking it is ``del token.free``, giving it back ``token.free = True``: a fifth of
what a ``threading.Lock`` costs, and as a section lasts microseconds and never waits it serves as well. It is sound
under Ctrl+C. Python runs handlers of signals behind calls, at starts of functions and at jumps backward only. These
statements are none of that, so nothing comes between the first and the ``try`` whose ``finally`` is the second. An
exception in the midst of a section leaves that section half done: ``mend`` puts it right.

The fast path of ``send`` is written out in the two shells, as a call would cost more than what it does; all else is
here.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from copy import copy
from types import FrameType
from typing import Any, Final, TypeVar

from headrace._core.chunk import NOWHERE, Chunk
from headrace._record_rules import Extra, RecordRules, Row, View
from headrace.delivery import Delivery
from headrace.errors import ClientClosed, HeadraceError, Internal, Rejected
from headrace.settings import ProducerSettings
from headrace_common.runtime.clock import Clock

GRANT_BYTES: Final = 256 << 10
"""Budget is given to chunks in such pieces."""

PARTITIONS_TOGETHER_MAX: Final = 64
"""A chunk is closed at batch_size times the partitions, at most so many."""

GUARDED: Final = ("available", "closed", "fast", "opened", "waiters", "woken")
"""Fields of ``Intake`` that are touched with the token held only."""

_NAP_SECONDS: Final = 0.0005
_NAPS_SHORT: Final = 10
"""So often a thread only gives way, as a section is over at once; then it sleeps between two looks."""
_NAPS_MAX: Final = 60_000
"""Half a minute: nobody holds the token for so long."""

T = TypeVar("T")


class Token:
    """Who has deleted ``free`` may touch what is guarded, and then sets it again; see the module's text."""

    __slots__ = ("free",)

    free: bool

    def __init__(self) -> None:
        self.free = True

    def take(self) -> None:
        """
        Wait for the token, and return with it, right before the ``try`` whose ``finally`` gives it back.

        Raises:
            Rejected: it is held further up on this very thread.
        """
        naps = 0
        while True:
            try:
                del self.free
                return
            except AttributeError:
                naps += 1
            if naps == _NAPS_SHORT and _interrupts_section(sys._getframe()):
                raise Rejected(
                    "a signal handler or finalizer called the producer that it has interrupted; note what to send, "
                    "and send it later"
                )
            if naps > _NAPS_MAX:
                raise Internal("the producer's token was not given back; make a new producer")
            time.sleep(0 if naps < _NAPS_SHORT else _NAP_SECONDS)


class Intake:
    """
    Open chunks and the budget. Methods that say so are called with the token held.

    Args:
        on_open: a chunk was opened; called with the token held, so it only notes that. Perhaps twice.
        on_close: a chunk was closed, and the engine was not told of one since its last ``look``; likewise.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        clock: Clock,
        *,
        on_open: Callable[[Chunk], None],
        on_close: Callable[[], None],
    ) -> None:
        self.token = Token()
        self.fast: dict[str, Chunk] = {}
        """Open chunks of topics that need nothing but an append; emptied to send callers the long way."""
        self.opened: dict[str, Chunk] = {}
        self.closed: deque[Chunk] = deque()
        self.topics: dict[str, View] = {}
        """What the engine knows; replaced by it."""
        self.available = settings.buffer_memory
        self.home = NOWHERE
        """Where the engine's loop runs."""
        self.failure: HeadraceError | None = None
        """Why nothing is taken any more."""
        self.gate: HeadraceError | None = None
        """Why nothing is taken now: no transaction is open."""
        self.rules = RecordRules(settings)
        self._settings = settings
        self._clock = clock
        self._on_open = on_open
        self._on_close = on_close
        self.waiters: list[Callable[[], None]] = []
        self.woken = False
        """The engine was told of closed chunks, and has not looked since."""

    # --- the token --------------------------------------------------------------------------------------------

    def within(self, section: Callable[[], T]) -> T:
        """
        What ``section`` gives, called with the token held. It never waits, and never comes here again.

        Raises:
            Rejected: a signal handler or a finalizer has interrupted a section of its own thread, and needs its end.
        """
        token = self.token
        token.take()
        try:
            return section()
        except BaseException:
            self.mend()
            raise
        finally:
            token.free = True

    def mend(self) -> None:
        """
        An exception has left a section in its midst (Ctrl+C may come between any two calls): what is half done is done
        or undone, and the engine told again. With the token held.
        """
        for chunk in self.closed:
            if self.opened.get(chunk.topic) is chunk:
                self._retire(chunk)
            self._return_room(chunk)
        for chunk in self.opened.values():
            chunk.mend()
            self._on_open(chunk)
        self.woken = False
        self._wake_engine()

    def _wake_engine(self) -> None:
        if not self.woken:
            self._on_close()
            self.woken = True

    # --- one record -------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raises: ``ClientClosed`` or what ended the producer."""
        if self.failure is not None:
            raise copy(self.failure)

    def orphan(self) -> None:
        """This is a forked child, and the producer its parent's. Whoever held the token is not here to give it back."""
        self.token.free = True
        self.failure = ClientClosed.by_fork("producer")

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
        chunk = self._new(view)
        chunk.granted = size
        chunk.mark(self._clock.now_ms())
        rows = len(values)
        self._note(chunk, 0, rows, extra)
        chunk.values, chunk.keys = values, keys
        self.available -= size
        self.closed += (chunk,)
        self._wake_engine()
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
        self.topics.setdefault(view.name, view)  # the topic may have been forgotten while the call waited
        return Chunk(
            view.name, opened_ms=self._clock.monotonic_ms(), record_max=self.rules.record_max(view), home=self.home
        )

    def chunk_bytes(self, view: View) -> int:
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
        chunk = self._new(view)
        chunk.granted = chunk.room = grant  # from here on without a call, so that nothing comes in between
        self.available -= grant
        self.opened[view.name] = chunk
        if self.rules.plain:
            self.fast[view.name] = chunk
        self._on_open(chunk)
        return chunk

    def close(self, chunk: Chunk) -> None:
        """Nothing more comes into ``chunk``. With the token held."""
        self.closed += (chunk,)  # first, so that ``mend`` sees what has begun
        self._retire(chunk)
        self._return_room(chunk)
        self._wake_engine()

    def _retire(self, chunk: Chunk) -> None:
        del self.opened[chunk.topic]
        if chunk.topic in self.fast:
            del self.fast[chunk.topic]

    def _return_room(self, chunk: Chunk) -> None:
        self.available += chunk.room
        chunk.granted -= chunk.room
        chunk.room = 0

    def close_all(self) -> None:
        """Close all open chunks. With the token held."""
        for chunk in list(self.opened.values()):
            self.close(chunk)

    # --- for the engine ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """The engine is awake. With the token held."""
        self.woken = False

    def pop_closed(self) -> Chunk | None:
        """The oldest closed chunk, if there is one. With the token held."""
        return self.closed.popleft() if self.closed else None

    def retire_if_open(self, chunk: Chunk) -> None:
        """The engine closes ``chunk``, unless that was done already, and looks at once. With the token held."""
        if self.opened.get(chunk.topic) is chunk:
            self.woken = True
            self.close(chunk)

    def review(self, known: Callable[[str], View | None]) -> None:
        """Believe of topics what the engine knows now; those that are no more are forgotten. With the token held."""
        for name in list(self.topics):
            view = known(name)
            if view is not None:
                self.topics[name] = view
            elif name in self.opened:
                self.close(self.opened[name])
            elif all(chunk.topic != name for chunk in self.closed):
                del self.topics[name]

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

    def add_or_wait(self, add: Callable[[], T | None], wake: Callable[[], None]) -> T | None:
        """What ``add`` gives; without room for it, have all on its way, and ``wake`` called when budget came back."""
        added = add()
        if added is None:
            self.close_all()
            self.waiters.append(wake)
        return added

    def give_back(self, size: int) -> None:
        """Budget of settled batches. With the token held."""
        self.available += size
        self._wake()

    def _wake(self) -> None:
        while self.waiters:
            self.waiters.pop()()


def closed_error(kind: str) -> ClientClosed:
    return ClientClosed(f"the {kind} is closed; make a new one")


def _interrupts_section(frame: FrameType | None) -> bool:
    """Whether the ``within`` that is on top of ``frame`` runs inside a section of the same thread."""
    while frame is not None and frame.f_code is not Intake.within.__code__:
        frame = frame.f_back
    while frame is not None and (outer := frame.f_back) is not None:
        if outer.f_code is Intake.within.__code__:
            return True
        fast_path = outer.f_code.co_name == "send" and outer.f_globals.get("__name__") == "headrace.producer"
        if fast_path and frame.f_code.co_name != "_send":
            return True
        frame = outer
    return False
