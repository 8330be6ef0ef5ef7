"""
Decides what becomes of requests between their arrival and their answer: bounded room, repeats, and which of them are
committed. No I/O; called by the web hook, by the reading of the split, and by its commits.

A request *waits* until it is handed over in a chunk, is *handed* until a commit covers it or its transaction is
aborted, and is then taken, or waits again. Its answer comes when it is taken, so its sender repeats what was not.
Numbers are those of one instance (``by``): a position of another one covers nothing of ours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace_connect.connectors.http.window import Window
from headrace_connect.plugin import Position

if TYPE_CHECKING:
    from headrace_connect.connectors.http.bodies import Body

_BY, _NUMBER, _IDS = "by", "n", "ids"


class Outcome(Enum):
    """What a sender is told."""

    TAKEN = "taken"
    LEFT = "left"
    """This instance ends; nobody knows whether it was committed."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A request whose records are to be written."""

    body: Body
    size: int
    """What it takes of the room."""
    received_ms: int
    headers: Sequence[tuple[str, bytes]] = ()
    digest: bytes | None = None
    """Of its id; None: it has none."""
    number: int = 0
    """Of those that were handed over; 0: it waits."""
    waiters: int = 0
    """Senders that want its answer."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Outcome | None = None

    def end(self, outcome: Outcome) -> None:
        """Tell all who wait."""
        self.outcome = outcome
        self.done.set()


class Room:
    """Of all requests of one instance together, from their first byte to their commit."""

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self._requests_max, self._bytes_max = requests_max, bytes_max
        self.requests = 0
        self.bytes = 0
        self.closed = False

    def enter(self) -> bool:
        """Take the room of one request, still without a byte; False: there is none."""
        if self.closed or self.requests >= self._requests_max:
            return False
        self.requests += 1
        return True

    def grow(self, count: int) -> bool:
        """Take the room of so many bytes more; False: there is none."""
        if self.bytes + count > self._bytes_max:
            return False
        self.bytes += count
        return True

    def leave(self, count: int) -> None:
        """Give the room of a request back, and its bytes."""
        self.requests -= 1
        self.bytes -= count


class Intake:
    """Of one split of one instance of the source."""

    def __init__(self, by: str, room: Room, window_size: int) -> None:
        """
        Args:
            by: a name that no other instance has.
        """
        self._by = by
        self._room = room
        self._window = Window(window_size)
        self._window_size = window_size
        self._number = 0
        self._waiting: deque[Arrival] = deque()
        self._handed: deque[Arrival] = deque()
        self._by_digest: dict[bytes, Arrival] = {}
        self._come = asyncio.Event()

    # --- requests -------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether there are requests to be handed over."""
        return bool(self._waiting)

    def offer(self, arrival: Arrival) -> Arrival | None:
        """
        A whole request, whose room is the intake's from now on.

        Returns:
            Whose outcome is its answer: its own, or that of the request with its id that is not committed yet. None:
            one with its id is committed.
        """
        if self._room.closed:
            self._room.leave(arrival.size)
            arrival.end(Outcome.LEFT)
            return arrival
        digest = arrival.digest
        first = self._by_digest.get(digest) if digest is not None else None
        if first is not None or (digest is not None and digest in self._window):
            self._room.leave(arrival.size)
            return first
        if digest is not None:
            self._by_digest[digest] = arrival
        self._waiting.append(arrival)
        self._come.set()
        return arrival

    def withdraw(self, arrival: Arrival) -> bool:
        """Nobody wants its answer any more: whether it could be taken out, and will not be written."""
        if arrival.waiters or arrival.number or arrival.outcome is not None:
            return False
        self._waiting.remove(arrival)
        self._forget(arrival)
        return True

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Behind what was handed over last."""
        return {_BY: self._by, _NUMBER: self._number, _IDS: self._window.to_text()}

    def resume(self, after: Position | None) -> None:
        """
        Reading begins behind this position: what it does not cover, and somebody wants, waits again, in its order.

        Raises:
            ValueError: it is no position.
        """
        number, ids = _checked(after)
        window = Window.from_text(self._window_size, ids)
        own = after is not None and after[_BY] == self._by
        left: deque[Arrival] = deque()
        for arrival in (*self._handed, *self._waiting):
            covered = own and 0 < arrival.number <= number
            if covered or (arrival.digest is not None and arrival.digest in window):
                self._take(arrival)
            elif not arrival.waiters:  # its sender was told that nobody knows, and has to ask again
                self._forget(arrival)
                arrival.end(Outcome.LEFT)
            else:
                arrival.number = 0
                left.append(arrival)
        self._handed.clear()
        self._waiting = left
        self._window, self._number = window, number if own else 0
        self._come.set() if left else self._come.clear()

    async def come(self) -> None:
        """Wait until there are requests to be handed over."""
        await self._come.wait()

    def hand(self, rows_max: int, bytes_max: int) -> list[Arrival]:
        """The next ones whose records have one type, within these bounds; at least one. They are in ``position``."""
        assert self._waiting, "there is something"
        kind = self._waiting[0].body.kind
        chosen: list[Arrival] = []
        rows = size = 0
        while self._waiting and self._waiting[0].body.kind == kind:
            arrival = self._waiting[0]
            if chosen and (rows + len(arrival.body.values) > rows_max or size + arrival.size > bytes_max):
                break
            rows, size = rows + len(arrival.body.values), size + arrival.size
            chosen.append(self._waiting.popleft())
        for arrival in chosen:
            self._number += 1
            arrival.number = self._number
            if arrival.digest is not None:
                self._window.add(arrival.digest)
        self._handed.extend(chosen)
        if not self._waiting:
            self._come.clear()
        return chosen

    def confirm(self, position: Position) -> None:
        """This is committed."""
        if position.get(_BY) == self._by:
            number, _ = _checked(position)
            while self._handed and self._handed[0].number <= number:
                self._take(self._handed.popleft())

    def close(self) -> None:
        """This instance ends: whoever still waits has to ask another one."""
        self._room.closed = True
        left = [*self._handed, *self._waiting]
        self._handed.clear()
        self._waiting.clear()
        for arrival in left:
            self._forget(arrival)
            arrival.end(Outcome.LEFT)

    def _take(self, arrival: Arrival) -> None:
        self._forget(arrival)
        arrival.end(Outcome.TAKEN)

    def _forget(self, arrival: Arrival) -> None:
        if arrival.digest is not None:
            self._by_digest.pop(arrival.digest, None)
        self._room.leave(arrival.size)


def _checked(position: Position | None) -> tuple[int, str]:
    """
    The number and the ids.

    Raises:
        ValueError: it is none of ours.
    """
    if position is None:
        return 0, ""
    values: tuple[Any, ...] = tuple(position.get(name) for name in (_BY, _NUMBER, _IDS))
    match values:
        case (str(), int(number), str(ids)) if number >= 0 and not isinstance(number, bool):
            return number, ids
    raise ValueError(f"{str(dict(position))[:200]} is no position of a web hook")
