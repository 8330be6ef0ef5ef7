"""
Finds out what a cluster has of an app, and carries out the steps of ``plan.reset``.

No worker may run meanwhile. Each start of the app looks for the mark after it is a member of the group, and a reset
looks for members after it has set the mark, so one sees the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from headrace.records import TopicPartition
from headrace_common.core.errors import NonEmptyGroup, Rejected
from headrace_common.runtime.failpoints import failpoint
from headrace_streams.core.state import changelog
from headrace_streams.core.state.store import Changes
from headrace_streams.plan.known import CHANGELOG, REPARTITION, Known, apps_of, is_internal
from headrace_streams.plan.nodes import reset_topic
from headrace_streams.plan.reset import (
    Delete,
    Drop,
    Forget,
    Mark,
    Place,
    Standing,
    Step,
    Unmark,
    owner_of,
    without,
)
from headrace_streams.ports import InternalTopic, ListedTopic, Stored, Upkeep

_FOREVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}


async def survey(upkeep: Upkeep, app: str, own: Iterable[str] = (), outside: Iterable[str] = ()) -> Standing:
    """
    What there is of an app.

    Args:
        own: topics that its program makes for itself; others are known by their names and settings.
        outside: topics that its program reads and writes, which belong to others.

    Raises:
        Rejected: the mark's topic is somebody's.
    """
    listed = await upkeep.topics()
    groups = await upkeep.groups()
    own = set(own)
    fitting = {topic for topic in listed if is_internal(topic, app)} | own
    known = {name: await upkeep.known(name) for name in sorted(apps_of(fitting) & groups.keys() | {app})}
    shared = _shared(app, fitting - set(outside), known, own)
    alone = {topic: found for topic, found in listed.items() if topic not in shared}
    internal, foreign = _internal(app, alone, known, own, set(outside))
    mark = reset_topic(app)
    if mark in listed and not await upkeep.is_empty(mark):
        raise Rejected(
            f"there are records in the topic {mark}, which the app {app} needs for itself: give the app another name, "
            "or delete the topic if nobody needs it"
        )
    positions = await upkeep.committed(app) if app in groups else {}
    return Standing(
        app,
        internal,
        foreign,
        shared,
        known[app],
        {tp: at for tp, at in positions.items() if tp.topic not in internal},
        await upkeep.progress(_partitions(internal, CHANGELOG)),
        groups.get(app, 0),
        mark in listed,
        {tp: positions.get(tp, -1) for tp in _partitions(internal, REPARTITION)},
    )


def _partitions(topics: Mapping[str, int], suffix: str) -> list[TopicPartition]:
    """Of those of the topics whose names end so."""
    return [
        TopicPartition(topic, number)
        for topic, count in topics.items()
        if topic.endswith(suffix)
        for number in range(count)
    ]


def _shared(app: str, topics: Iterable[str], known: Mapping[str, Known], own: Collection[str]) -> dict[str, str]:
    """Internal topics of the app that are another's too, as its group says, by the other's name."""
    return {
        topic: other.app
        for topic in topics
        for other in known.values()
        if other.app != app and other.has(topic) and (topic in own or known[app].has(topic))
    }


def _internal(
    app: str,
    listed: Mapping[str, ListedTopic],
    known: Mapping[str, Known],
    own: Collection[str],
    outside: Collection[str],
) -> tuple[dict[str, int], list[str]]:
    """The app's internal topics, and those that look like ones and may be another's."""
    internal: dict[str, int] = {}
    foreign = []
    for topic, found in listed.items():
        if topic in own:
            internal[topic] = found.facts.partitions
        elif is_internal(topic, app) and topic not in outside:
            if _is_of(app, topic, known) and made_by_streams(topic, found.configs):
                internal[topic] = found.facts.partitions
            else:
                foreign.append(topic)
    return internal, sorted(foreign)


def _is_of(app: str, topic: str, known: Mapping[str, Known]) -> bool:
    """
    By what groups say; where none does, by the names, unless an app runs that it may be of: that one may have made it
    just now, or another version of its program.
    """
    if known[app].has(topic):
        return True
    others = [other for other in known.values() if other.app != app and is_internal(topic, other.app)]
    if any(other.has(topic) or (other.works and other.members) for other in others):
        return False
    return owner_of(topic, known) == app


def made_by_streams(topic: str, configs: Mapping[str, str]) -> bool:
    """Whether a topic is set up as an internal one is. Others only have such a name."""
    compacts = configs.get("cleanup.policy") == "compact"
    return _FOREVER.items() <= configs.items() and compacts == topic.endswith(CHANGELOG)


async def carry_out(upkeep: Upkeep, app: str, steps: Iterable[Step]) -> None:
    """
    Do the steps, each when the one before is done.

    Raises:
        NonEmptyGroup: a worker of the app runs; nothing was changed.
        HeadraceError: a step failed; of a whole reset the mark is left, and the next one does all of it again.
    """
    await _check_empty(upkeep, app)
    for step in steps:
        await _do(upkeep, app, step)
        failpoint(f"streams.reset.{type(step).__name__.lower()}")


async def _check_empty(upkeep: Upkeep, app: str) -> None:
    members = await upkeep.members(app)
    if members:
        raise NonEmptyGroup(
            f"the app {app} runs: its group has {members} {'members' if members > 1 else 'member'}; stop all workers "
            "first, and wait until `headrace group describe` shows none"
        )


async def _do(upkeep: Upkeep, app: str, step: Step) -> None:
    match step:
        case Mark(topic):
            await upkeep.make([InternalTopic(topic, 1, compacted=False)])
            try:
                await _check_empty(upkeep, app)
            except NonEmptyGroup:
                await upkeep.delete(topic)
                raise
        case Delete(topic) | Unmark(topic):
            await upkeep.delete(topic)
        case Forget(positions):
            await upkeep.forget(app, list(positions))
        case Place():
            await upkeep.make([InternalTopic(name, count, compacted=True) for name, count in step.changelogs.items()])
            await in_transaction(upkeep, app, step.positions, lambda: _place(upkeep, step))
        case Drop():
            await _drop(upkeep, app, step)


async def in_transaction(
    upkeep: Upkeep, app: str, positions: Mapping[TopicPartition, int], write: Callable[[], Awaitable[None]]
) -> None:
    """
    What is written and the group's positions, as one unit. A worker that starts from now on waits until it has ended;
    one that started before is seen.

    Raises:
        NonEmptyGroup: a worker of the app runs; nothing was changed.
    """
    try:
        await upkeep.begin(app, positions)
        await _check_empty(upkeep, app)
        await write()
        await upkeep.commit()
    except BaseException:
        await upkeep.abort()
        raise


async def _place(upkeep: Upkeep, step: Place) -> None:
    for partition, progress in step.progress.items():
        await upkeep.take_over(partition)
        await upkeep.append(partition, changelog.rows({}, progress))


async def _drop(upkeep: Upkeep, app: str, step: Drop) -> None:
    prefix = changelog.prefix(step.store)
    found: dict[TopicPartition, Stored] = {}
    for partition in step.changelogs:
        await upkeep.take_over(partition)
        found[partition] = await upkeep.read(partition, prefix)

    async def write() -> None:
        if await upkeep.ends(step.changelogs) != {partition: stored.end for partition, stored in found.items()}:
            raise Rejected(f"a worker of {app} has written to its state meanwhile; nothing was changed, try again")
        for partition, stored in found.items():
            deleted: Changes = [(key[len(prefix) :], None) for key in stored.keys]
            rows = changelog.rows({step.store: deleted}, without(stored.progress, step.store))
            await upkeep.append(partition, rows)

    positions = {
        TopicPartition(topic, task.partition): at
        for task, stored in found.items()
        for topic, at in stored.progress.positions.items()
    }
    await in_transaction(upkeep, app, positions, write)
