"""
What the leader writes: the records of each command, and new generations of tasks where there is something else to do.

All records of a change are one transaction. Nothing is written that would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace_connect.core.splitting import share
from headrace_connect_worker.core.herd import ConnectorState, HerdState, TaskSet
from headrace_connect_worker.core.records import (
    ConfigRecord,
    ConnectorConfigured,
    RestartDropped,
    RestartSaid,
    SplitSpec,
    TargetSet,
    TargetState,
    TaskConfigured,
    TaskDropped,
    TasksCommitted,
    Work,
)
from headrace_connect_worker.core.refusals import BadCommand, Conflict, NoSuchConnector

CONNECTORS_MAX: Final = 1_000
TASKS_MAX: Final = 10_000
"""Of all connectors."""
CONFIG_BYTES_MAX: Final = 256 << 10
"""Of a configuration, keys and values."""
_TASKS: Final = "tasks.max"

Draw = Callable[[int], int]
"""The next generation above a number."""


# --- commands -------------------------------------------------------------------------------------------------------


def put_config(
    state: HerdState, name: str, config: Mapping[str, str], *, only_new: bool, target: TargetState | None
) -> Sequence[ConfigRecord]:
    """
    Create a connector or change it. There has to be room for a task of it.

    Raises:
        Refusal: nothing is written.
    """
    known = state.connectors.get(name)
    if known is not None and only_new:
        raise Conflict(f"Connector {name} already exists")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in config.items())
    if size > CONFIG_BYTES_MAX:
        raise BadCommand(f"the configuration has {size} bytes; {CONFIG_BYTES_MAX} is the most")
    if config.get("name", name) != name:
        raise BadCommand(f"the configuration has the name {config['name'][:100]!r}, and the connector is {name!r}")
    if known is None and len(state.connectors) >= CONNECTORS_MAX:
        raise BadCommand(f"there are {len(state.connectors)} connectors; {CONNECTORS_MAX} is the most")
    if known is None and state.places >= TASKS_MAX:
        raise BadCommand(
            f"the connectors have {state.places} tasks, and {TASKS_MAX} is the most: delete connectors, or lower "
            "their tasks.max"
        )
    if known is not None and known.config == dict(config):
        return []
    records: list[ConfigRecord] = [ConnectorConfigured(name, dict(config))]
    if known is None:
        records.append(TargetSet(name, target or TargetState.STARTED))
    return records


def delete(state: HerdState, name: str) -> Sequence[ConfigRecord]:
    """
    Delete a connector and all that is said of it.

    Raises:
        NoSuchConnector: there is none.
    """
    find(state, name)
    tasks = [TaskDropped(name, task) for task in state.task_numbers(name)]
    return [
        *tasks,
        TasksCommitted(name, None),
        TargetSet(name, None),
        RestartDropped(name),
        ConnectorConfigured(name, None),
    ]


def set_target(
    state: HerdState, name: str, target: TargetState, work: Work | None, draw: Draw
) -> Sequence[ConfigRecord]:
    """
    Start, pause or stop a connector; with the tasks that it has then, if that is known.

    Raises:
        NoSuchConnector: there is none.
    """
    known = find(state, name)
    if known.target is target:
        return []
    then = ConnectorState(name, known.config, known.config_offset, target, known.tasks)
    return [TargetSet(name, target), *tasks_due(state, then, work, draw)]


def restart(
    state: HerdState, name: str, *, connector: bool, tasks: Sequence[int] | None, only_failed: bool
) -> Sequence[ConfigRecord]:
    """
    Have it begin anew.

    Raises:
        NoSuchConnector: there is no such connector, or no such task.
    """
    known = find(state, name)
    count = 0 if known.tasks is None else len(known.tasks.shares)
    for task in tasks or ():
        if not 0 <= task < count:
            raise NoSuchConnector(f"Connector {name} has no task {task}; it has {count}")
    return [RestartSaid(name, connector, None if tasks is None else tuple(sorted(set(tasks))), only_failed)]


def find(state: HerdState, name: str) -> ConnectorState:
    """
    A connector.

    Raises:
        NoSuchConnector: there is none.
    """
    known = state.connectors.get(name)
    if known is None:
        raise NoSuchConnector(f"Connector {name} not found")
    return known


# --- generations ----------------------------------------------------------------------------------------------------


def tasks_due(
    state: HerdState, connector: ConnectorState, work: Work | None, draw: Draw, *, fenced: bool = False
) -> Sequence[ConfigRecord]:
    """
    A new generation of a connector's tasks, where the one there is does not do what is to be done.

    Args:
        work: what its watcher has found; counts only for the configuration that there is now.
        fenced: a newer owner has fenced the tasks: the same again, in a higher generation.
    """
    shares = _wanted(state, connector, work)
    if shares is None:
        return []
    tasks = connector.tasks
    if tasks is not None and not fenced and _is_done_by(tasks, connector, shares):
        return []
    generation = draw(state.generation_max(connector.name))
    name = connector.name
    return [
        *(TaskConfigured(name, number, generation, splits) for number, splits in enumerate(shares)),
        *(TaskDropped(name, number) for number in state.task_numbers(name) if number >= len(shares)),
        TasksCommitted(name, len(shares), generation, connector.config_offset, dict(connector.config)),
    ]


def _wanted(state: HerdState, connector: ConnectorState, work: Work | None) -> Sequence[tuple[SplitSpec, ...]] | None:
    """The splits of each task; None: nobody knows yet what there is to do."""
    if connector.target is TargetState.STOPPED:
        return []
    if work is None or work.config_offset != connector.config_offset:
        return None
    most = min(_tasks_max(connector.config), _room(state, connector))
    if work.kind == "sink":
        return [()] * min(most, work.tasks)
    by_id = {split.id: split for split in work.splits}
    before = {} if connector.tasks is None else connector.tasks.shares
    at = {split.id: number for number, splits in enumerate(before) for split in splits}
    return [tuple(by_id[id] for id in ids) for ids in share(sorted(by_id), most, at)]


def shortage(state: HerdState, connector: ConnectorState, work: Work | None) -> str:
    """Why a connector has fewer tasks than it could use; empty: it has all."""
    if work is None or work.config_offset != connector.config_offset or connector.target is TargetState.STOPPED:
        return ""
    wanted = min(_tasks_max(connector.config), work.tasks if work.kind == "sink" else len(work.splits))
    room = _room(state, connector)
    if wanted <= room:
        return ""
    there = "1 is there and does" if room == 1 else f"{room} are there and do"
    return (
        f"{wanted} tasks are wanted; {there} the work of all: {TASKS_MAX} is the most for all connectors. "
        "Delete connectors, or lower their tasks.max; the others follow then"
    )


def _room(state: HerdState, connector: ConnectorState) -> int:
    """How many tasks it may have, beside all others."""
    return max(1, TASKS_MAX - state.places + connector.places)


def _is_done_by(tasks: TaskSet, connector: ConnectorState, shares: Sequence[tuple[SplitSpec, ...]]) -> bool:
    if len(tasks.shares) != len(shares):
        return False
    if not shares:
        return True
    if tasks.config_offset != connector.config_offset:
        return False
    return all(
        {split.id: split.detail for split in one} == {split.id: split.detail for split in other}
        for one, other in zip(tasks.shares, shares, strict=True)
    )


def _tasks_max(config: Mapping[str, str]) -> int:
    """REST has validated it; what was written without REST counts as one."""
    try:
        return int(config.get(_TASKS, "1"))
    except ValueError:
        return 1
