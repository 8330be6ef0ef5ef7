"""What workers write to: it remembers the highest epoch of each item, as a log with a fence or a database does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.work_types import GivenItem


class Target:
    """``tell`` is called with what does not hold."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.writes = 0
        self._tell = tell
        self._fences: dict[str, tuple[int, str]] = {}
        """The highest epoch of each item, and who wrote under it."""
        self._open: dict[str, str] = {}
        """Items -> the transactional id under which something of them is open."""

    def fence(self, item: str) -> int:
        """The highest epoch that was written under."""
        return self._fences.get(item, (0, ""))[0]

    def write(self, item: str, epoch: int, member_id: str) -> None:
        """Refused where the epoch is not the highest."""
        fence, writer = self._fences.get(item, (0, ""))
        if epoch == fence and writer != member_id:
            self._tell(f"shared-epoch: {item}: {writer} and {member_id} write under {epoch}")
        if epoch >= fence:
            self.writes += 1
            self._fences[item] = epoch, member_id

    def take(self, given: GivenItem, transactional_id: str) -> None:
        """Its owner begins with it; what is open of it has to be its own, or named."""
        left = self._open.get(given.id, transactional_id)
        if left not in (transactional_id, *given.unended):
            self._tell(f"left-open: {given.id} is given with {given.unended}, and {left} has something open")
        self._open[given.id] = transactional_id

    def end(self, transactional_ids: Iterable[str]) -> None:
        """Nothing is open under these any more."""
        ended = set(transactional_ids)
        self._open = {item: id for item, id in self._open.items() if id not in ended}

    def forget(self) -> None:
        """What is open has ended by itself."""
        self._open.clear()

    def let_go(self, item: str) -> None:
        """Its owner has ended what it had open of it."""
        self._open.pop(item, None)
