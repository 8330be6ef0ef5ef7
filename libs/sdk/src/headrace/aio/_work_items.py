"""
Items of a work group as a loop gets them: each once, when it is given, with a flag that says when to stop.

Both twins. What comes is taken on the loop thread, at once, so that flags are set while a loop's body runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from headrace.aio._work import Work
from headrace.errors import HeadraceError
from headrace.work_types import GivenItem, WorkChange


class Flag(Protocol):
    """``threading.Event`` or ``asyncio.Event``."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...


F = TypeVar("F", bound=Flag)


class OwnedItem(Generic[F]):
    """An item that this member does."""

    def __init__(self, given: GivenItem, revoked: F, work: Work) -> None:
        self._given = given
        self._work = work
        self.revoked = revoked
        """Set when the item is to be stopped: then ``release`` it."""
        self.lost = False
        """Set with ``revoked`` where others have the item by now: commit nothing of it."""

    @property
    def id(self) -> str:
        return self._given.id

    @property
    def epoch(self) -> int:
        """
        Above that of every earlier owner: the fencing token of what is written for the item. It grows when ``refused``
        was told a higher one.
        """
        return self._given.epoch

    @property
    def unended(self) -> tuple[str, ...]:
        """Transactional ids of earlier owners that were put out and may have left a transaction open."""
        return self._given.unended

    def release(self) -> None:
        """Nothing runs of it any more. If it was not revoked, this member gets it again."""
        self._work.give_up((self.id,))

    def refused(self, token: int) -> None:
        """What was written under ``epoch`` was refused, as ``token`` is higher: ``epoch`` is raised above it soon."""
        self._work.report(None, {self.id: token}, ())

    def __repr__(self) -> str:
        return f"<item {self.id!r}, epoch {self.epoch}{', revoked' if self.revoked.is_set() else ''}>"


class ItemQueue(Generic[F]):
    """
    See the module's text.

    Args:
        make_flag: not set yet.
        run: calls what it is given where flags may be set, soon.
        arrived: called, where flags are set, when there may be something in the queue.
    """

    def __init__(
        self,
        work: Work,
        make_flag: Callable[[], F],
        run: Callable[[Callable[[], Any]], object],
        arrived: Callable[[], object],
    ) -> None:
        self.failure: HeadraceError | None = None
        self._work = work
        self._make_flag = make_flag
        self._run = run
        self._arrived = arrived
        self._lock = threading.Lock()
        self._looking = self._again = False
        self._owned: dict[str, OwnedItem[F]] = {}
        self._waiting: deque[OwnedItem[F]] = deque()

    def look(self) -> None:
        """There may be news; on any thread. One looks, and once more for those that came meanwhile."""
        with self._lock:
            self._again = True
            if self._looking:
                return
            self._looking = True
        while self._more():
            try:
                while (change := self._work.poll()) is not None:
                    self._take(change)
            except HeadraceError as error:
                self.failure = error
        if self._waiting or self.failure is not None:
            self._run(self._arrived)

    def _more(self) -> bool:
        with self._lock:
            self._looking = again = self._again
            self._again = False
            return again

    def pop(self) -> OwnedItem[F] | None:
        """The next item that was given and not yet taken."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _take(self, change: WorkChange) -> None:
        unseen: list[str] = []
        with self._lock:
            for given in change.raised:
                self._owned[given.id]._given = given
            for id in sorted(change.revoked | change.lost):
                item = self._owned.pop(id)
                item.lost = id in change.lost
                self._run(item.revoked.set)
                if item in self._waiting:
                    self._waiting.remove(item)
                    unseen.append(id)
            for given in change.assigned:
                item = self._owned[given.id] = OwnedItem(given, self._make_flag(), self._work)
                self._waiting.append(item)
        if unseen:
            self._work.give_up(unseen)
