"""
The work group's items: ``leader``, ``c/NAME`` for each connector (its watcher) and ``t/NAME/N`` for each of its tasks.

Names are percent-encoded, as in all ids of Connect. The leader and watchers are declared to have a state, which nobody
ever has: so they stay while their owner lives. Else they would be moved about to even out tasks, which are heavier, and
whatever is created would disturb them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from headrace.work_types import Declaration, WorkItem, declare
from headrace_common.core.ids import in_ids
from headrace_connect_worker.core.herd import HerdState

LEADER: Final = "leader"
TASK_WEIGHT: Final = 2_000
"""More than the leader and the watchers of all connectors: tasks are shared by their number."""
NOTHING: Final = declare((), version=1)
"""What a worker declares that leaves: it is older than all others, so it does not count, and its own items are none."""


@dataclass(frozen=True, slots=True)
class WatcherItem:
    """``c/NAME``."""

    name: str


@dataclass(frozen=True, slots=True)
class TaskItem:
    """``t/NAME/N``."""

    name: str
    task: int


def watcher_id(name: str) -> str:
    """The item of a connector's watcher."""
    return f"c/{in_ids(name)}"


def task_id(name: str, task: int) -> str:
    """The item of a task."""
    return f"t/{in_ids(name)}/{task}"


def parse(item: str) -> WatcherItem | TaskItem | None:
    """What an item is; None: the leader."""
    if item == LEADER:
        return None
    kind, _, rest = item.partition("/")
    if kind == "c":
        return WatcherItem(unquote(rest))
    assert kind == "t", "there are no others"
    name, _, task = rest.partition("/")
    return TaskItem(unquote(name), int(task))


def list_items(state: HerdState) -> tuple[WorkItem, ...]:
    """All that there is to do, in one order."""
    items = [WorkItem(LEADER, stateful=True)]
    for name, connector in sorted(state.connectors.items()):
        items.append(WorkItem(watcher_id(name), stateful=True))
        count = 0 if connector.tasks is None else len(connector.tasks.shares)
        items += [WorkItem(task_id(name, task), TASK_WEIGHT) for task in range(count)]
    return tuple(items)


def declaration_of(state: HerdState, items: tuple[WorkItem, ...]) -> Declaration:
    """
    What a worker declares that has read the config topic to ``state.offset``, its end at that moment.

    Whoever has read as far declares the same under the same version, so the newest reader's counts.
    """
    return declare(items, version=state.offset + 2)
