"""
Hands items over to other workers: connector after connector, a few at a time.

All at once would stand still until the last of them has started elsewhere, for all starts share the machine. So each
stands still only for as long as its own move takes. Where others are slow, or there are none, the rest ends at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace_common.runtime.clock import Deadline, limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect_worker.core.placing import TaskItem, WatcherItem, parse
from headrace_connect_worker.core.records import RunState
from headrace_connect_worker.engine.following import Following
from headrace_connect_worker.engine.place import Place

SIDE_BY_SIDE: Final = 2
"""Connectors that are on their way."""
MOVE_MS_MAX: Final = 2_000.0
"""So long the next connectors wait for one that does not run elsewhere yet."""
ALL_MS_MAX: Final = 10_000.0
"""Then the rest ends at once."""
_BEGINS: Final = frozenset({None, RunState.UNASSIGNED, RunState.STARTING})


@dataclass(slots=True)
class _Batch:
    queue: deque[list[str]]
    """Of each connector its items."""
    deadline: Deadline
    in_time: bool = True
    """Others have taken over what they were to take over."""

    @property
    def wait_ms(self) -> float:
        return max(0.0, min(MOVE_MS_MAX, self.deadline.left_ms)) if self.in_time else 0.0


class Handing:
    """Of one worker."""

    def __init__(
        self, following: Following, place: Place, holds: Callable[[str], bool], end: Callable[[str], None]
    ) -> None:
        """
        Args:
            holds: whether something of an item runs here.
            end: has it end here; it is given up then.
        """
        self._following = following
        self._place = place
        self._holds = holds
        self._end = end

    async def hand_over(self, items: Collection[str]) -> None:
        """End these. They may not have ended yet when this returns: it waits for them for a bounded time."""
        batch = _Batch(deque(_by_connector(items)), Deadline(ALL_MS_MAX))
        async with TaskRunner() as runner:
            movers = [runner.start(self._move(batch), name="hand items over") for _ in range(SIDE_BY_SIDE)]
            await asyncio.wait(movers)

    async def _move(self, batch: _Batch) -> None:
        while batch.queue:
            items = batch.queue.popleft()
            for item in items:
                self._end(item)
            try:
                async with limit_ms(batch.wait_ms):
                    await self._following.until(partial(self._have_moved, items))
            except TimeoutError:
                batch.in_time = False

    def _have_moved(self, items: Collection[str]) -> bool:
        return all(self._has_moved(item) for item in items)

    def _has_moved(self, item: str) -> bool:
        """Whether it runs elsewhere. Nobody waits for who watches and who leads."""
        if self._holds(item):
            return False
        match parse(item):
            case TaskItem(name, task):
                connector = self._following.state.connectors.get(name)
                if connector is None or connector.tasks is None or task >= len(connector.tasks.shares):
                    return True
                status = self._following.statuses.task(name, task)
                return status is not None and status.worker_id != self._place.worker_id and status.state not in _BEGINS
            case _:
                return True


def _by_connector(items: Iterable[str]) -> Iterable[list[str]]:
    """Those with tasks first: nobody waits for the others."""
    found: dict[str, list[str]] = {}
    for item in sorted(items):
        parsed = parse(item)
        found.setdefault(parsed.name if isinstance(parsed, TaskItem | WatcherItem) else "", []).append(item)
    return sorted(found.values(), key=lambda own: not any(isinstance(parse(item), TaskItem) for item in own))
