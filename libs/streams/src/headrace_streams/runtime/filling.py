"""
Gives an app that has not begun what it would have after its history: output, state and positions, as one unit.

Whoever has computed that (Spark) calls ``place``; the app goes on from there as from a commit of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.records import TopicPartition
from headrace_common.core.errors import Rejected
from headrace_common.runtime.failpoints import failpoint
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import NO_TIME
from headrace_streams.core.state.changelog import CONTROL, Progress, check_sizes
from headrace_streams.core.state.store import Changes
from headrace_streams.core.task import sender_name
from headrace_streams.core.time import Watermarks
from headrace_streams.plan.cut import Assembly
from headrace_streams.plan.nodes import repartition_topic
from headrace_streams.plan.reset import Standing
from headrace_streams.ports import Positions, Upkeep
from headrace_streams.runtime.resetting import in_transaction


@dataclass(frozen=True, slots=True)
class History:
    """What an app has made of its topics up to some positions."""

    positions: Positions
    """Of the topics of others that it reads: where it goes on."""
    outputs: Sequence[Output]
    rows: Mapping[TopicPartition, Changes]
    """Of its stores, by the partition of a changelog."""
    progress: Mapping[TopicPartition, Progress]
    """Of each task with state, by the partition of its changelog."""


def check_new(standing: Standing) -> None:
    """
    Raises:
        Rejected: the app has begun already; or a topic of its own is another app's too.
    """
    standing.check_alone()
    if standing.marked or standing.positions or standing.progress:
        raise begun(standing.app)


def begun(app: str) -> Rejected:
    """An app that has done something is not given its history."""
    return Rejected(
        f"the app {app} has begun already; only an app without positions and state can be given its history: "
        f"headrace streams reset {app} --execute"
    )


def watermarks(assembly: Assembly, newest: Mapping[TopicPartition, int]) -> dict[tuple[str, int], Watermarks]:
    """
    Event times of all tasks, by sub-topology and partition, when all has been read.

    Args:
        newest: the greatest time of each partition that has rows, ms; the others count as idle.
    """
    found: dict[tuple[str, int], Watermarks] = {}
    for part in assembly.parts:
        for partition in range(assembly.tasks_of(part)):
            times = {topic: newest.get(TopicPartition(topic, partition), NO_TIME) for topic in part.topics}
            for hop in part.hops:
                sender = assembly.sender_of(hop)
                topic = repartition_topic(assembly.app, hop.name)
                for number in range(assembly.tasks_of(sender)):
                    times[sender_name(topic, number)] = found[sender.name, number].now
            marks = found[part.name, partition] = Watermarks(times, tables=part.tables)
            for name, time in times.items():
                marks.reached(name, time)
                if time == NO_TIME:
                    marks.is_idle(name)
    return found


async def place(upkeep: Upkeep, app: str, history: History) -> None:
    """
    Write all of it; a reader of committed records sees all or nothing.

    Raises:
        NonEmptyGroup: a worker of the app runs.
        Rejected: the app has begun meanwhile; nothing was changed.
        StateFailed: a row of state is larger than a changelog takes.
    """
    for rows in history.rows.values():
        check_sizes(rows)

    async def write() -> None:
        for partition in history.progress:
            await upkeep.take_over(partition)
        if await upkeep.progress(list(history.progress)):
            raise begun(app)
        for partition, progress in history.progress.items():
            await upkeep.append(partition, [*history.rows.get(partition, []), (CONTROL, progress.encode())])
        for output in history.outputs:
            await upkeep.send(output)
        failpoint("streams.filled")

    await in_transaction(upkeep, app, history.positions, write)
