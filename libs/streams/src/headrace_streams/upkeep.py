"""What ``headrace streams`` asks about apps and changes of them: each call has clients of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from headrace import aio
from headrace.group_types import GroupDescription, PartitionLag
from headrace.records import TopicPartition
from headrace_common.core.errors import NotFound, Rejected, UnknownTopicOrPartition
from headrace_common.core.moments import TIMESTAMP_MS_MAX, iso_of
from headrace_common.runtime.clock import SystemClock
from headrace_streams.adapters.headrace_io import SdkTopics
from headrace_streams.adapters.headrace_upkeep import SdkUpkeep
from headrace_streams.config import StreamsConfig
from headrace_streams.core.time import holding, now_of
from headrace_streams.dsl.app import App
from headrace_streams.plan import reset as plan_reset
from headrace_streams.plan.compare import Change, Fate, compare
from headrace_streams.plan.cut import Assembly, on_topics
from headrace_streams.plan.describe import as_data
from headrace_streams.plan.known import CHANGELOG, taken
from headrace_streams.plan.lost import find_apart, find_lost
from headrace_streams.plan.nodes import Plan, changelog_topic
from headrace_streams.plan.reset import EARLIEST, LATEST, Standing, Stateful
from headrace_streams.ports import InternalTopic, TopicFacts
from headrace_streams.runtime.assembling import other_program, tasks_of
from headrace_streams.runtime.filling import History, check_new, place
from headrace_streams.runtime.listing import find_apps
from headrace_streams.runtime.resetting import carry_out, survey

T = TypeVar("T")
_TIMEOUT_MS: Final = 30_000
_TRANSACTION_TIMEOUT_MS: Final = 120_000
"""The rows of a store are one unit. If this process is killed, the app starts when it has timed out, or been reset."""


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A cluster, and clients for one app."""

    upkeep: SdkUpkeep
    topics: SdkTopics
    admin: aio.AdminClient


@dataclass(frozen=True, slots=True)
class Reset:
    """What is to be reset."""

    app: str
    program: App | None = None
    to: str | Mapping[TopicPartition, int] = EARLIEST
    """``"earliest"``, ``"latest"``, a time, or offsets; where none is given, the first record."""
    store: str = ""
    """Only this."""
    execute: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A reset that was planned, and carried out if that was asked."""

    steps: list[dict[str, object]]
    foreign: Sequence[str]
    """Topics that have names as its own have, and were left alone: they may be somebody else's."""
    members: int
    """Of its group. While there are some, it cannot be reset."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A program for the topics that are there."""

    graph: Plan
    """With the topics that its patterns match."""
    assembly: Assembly
    facts: Mapping[str, TopicFacts]
    """Of its own topics and of others'."""


def compared(app: App, servers: Any) -> list[Change]:
    """What differs between a program and what a cluster has of it."""

    async def ask(cluster: _Cluster) -> list[Change]:
        program = await _program(cluster, app)
        standing = await _survey(cluster, app.name, app, program)
        shared = await cluster.topics.shared(app.name)
        waiting = await cluster.upkeep.waiting(standing.reached)
        standing = replace(standing, rows={**waiting, **shared.rows})
        there = {*standing.topics, *standing.shared}
        lost = find_apart(program.assembly, standing.known, standing.progress)
        lost |= find_lost(program.assembly, standing.known, there)
        lost = {} if standing.marked or standing.shared else lost
        found = compare(plan_reset.as_data(standing) | {"lost": lost}, _described(app, program))
        positions = await cluster.topics.positions(app.name) if shared.tasks else {}
        other = other_program(app.name, tasks_of(program.assembly), shared, positions)
        if other is not None:
            found.insert(0, Change(Fate.REFUSED, *other))
        for topic, owner in sorted(standing.shared.items()):
            found.insert(0, Change(Fate.REFUSED, *taken(app.name, topic, owner)))
        if standing.marked:
            again = f"headrace streams reset {app.name} --execute"
            way_out = f"wait for it, or, if it was cut off, run it again: {again}"
            found.insert(0, Change(Fate.REFUSED, "a reset has begun and not ended", way_out))
        return found

    return _with_cluster(servers, app.name, ask)


def reset(asked: Reset, servers: Any) -> Planned:
    """
    Plan a reset, and carry it out if that is asked.

    Raises:
        NotFound: there is no such app, or no such store.
        NonEmptyGroup: it runs.
        Rejected: what is asked cannot be.
    """

    async def do(cluster: _Cluster) -> Planned:
        program = None if asked.program is None else await _program(cluster, asked.program)
        standing = await _survey(cluster, asked.app, asked.program, program)
        if asked.store:
            steps = plan_reset.of_store(standing, asked.store)
        else:
            targets = await _targets(cluster, asked, standing, program)
            steps = plan_reset.whole(standing, targets, None if program is None else _stateful(program))
        if asked.execute:
            await carry_out(cluster.upkeep, asked.app, steps)
        return Planned(plan_reset.rows(standing, steps), standing.foreign, standing.members)

    return _with_cluster(servers, asked.app, do)


def apps(servers: Any) -> list[dict[str, object]]:
    """The apps of a cluster; those without topics of their own, once they have committed something."""

    async def ask(cluster: _Cluster) -> list[dict[str, object]]:
        return [
            {
                "app": found.app,
                "members": found.members,
                "changelogs": sum(topic.endswith(CHANGELOG) for topic in found.topics),
                "repartitions": sum(not topic.endswith(CHANGELOG) for topic in found.topics),
            }
            for found in await find_apps(cluster.upkeep)
        ]

    return _with_cluster(servers, "", ask)


@dataclass(frozen=True, slots=True)
class Ground:
    """An app that has not begun, on its topics."""

    assembly: Assembly
    topic_ids: Mapping[str, str]
    """Of all topics that it reads, its own among them."""
    until: Mapping[TopicPartition, int]
    """Where its history ends, in each partition of the topics of others that it reads."""


def ground(app: App, until: Mapping[TopicPartition, int] | None, servers: Any) -> Ground:
    """
    Make the internal topics of an app that has not begun.

    Args:
        until: where its history is to end; None: where the topics end now.

    Raises:
        Rejected: it has begun; or ``until`` is not about all partitions that it reads.
    """

    async def ask(cluster: _Cluster) -> Ground:
        program = await _program(cluster, app)
        check_new(await _survey(cluster, app.name, app, program))
        wanted = [InternalTopic(name, n, name.endswith(CHANGELOG)) for name, n in program.assembly.internal().items()]
        made = await cluster.topics.make(wanted)
        assembly = program.assembly
        assembly.check({name: fact.partitions for name, fact in made.items()})
        topics = sorted({topic for part in assembly.parts for topic in part.topics})
        ends = await cluster.upkeep.targets(app.name, topics, LATEST)
        if until is not None and set(until) != set(ends):
            differ = ", ".join(map(str, sorted(set(until) ^ set(ends))))
            raise Rejected(f"until= must say where each partition that {app.name} reads ends; it differs in {differ}")
        ids = {name: fact.topic_id for name, fact in ({**program.facts, **made}).items()}
        return Ground(assembly, ids, ends if until is None else until)

    return _with_cluster(servers, app.name, ask)


def fill(app: App, history: History, servers: Any) -> None:
    """
    Give an app that has not begun its output, state and positions, as one unit.

    Raises:
        Rejected: it has begun meanwhile; nothing was changed.
        NonEmptyGroup: it runs.
    """

    async def do(cluster: _Cluster) -> None:
        check_new(await _survey(cluster, app.name, app, await _program(cluster, app)))
        await place(cluster.upkeep, app.name, history)

    _with_cluster(servers, app.name, do)


def tasks(app: str, program: App | None, servers: Any) -> list[dict[str, object]]:
    """
    What each task of an app reads, how far it is, and who runs it; of tasks with state their event time as of the last
    commit, and the input that holds it back.

    Raises:
        NotFound: there is no such app.
    """

    async def ask(cluster: _Cluster) -> list[dict[str, object]]:
        standing = await _survey(cluster, app, program, None if program is None else await _program(cluster, program))
        group = await cluster.admin.describe_group(app)
        owners = {item.id: item.owner for item in group.items}
        lags = await cluster.admin.group_lag(app, ages=False)
        times = {f"{standing.part_of(tp.topic)}/{tp.partition}": one for tp, one in standing.progress.items()}
        found: list[dict[str, object]] = []
        for tp, lag in lags.items():
            task = f"{standing.reader_of(tp.topic)}/{tp.partition}"
            watermarks = times[task].watermarks if task in times else {}
            found.append(
                {
                    "task": task,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "position": lag.committed_offset,
                    "end_offset": lag.end_offset,
                    "lag": lag.lag,
                    "owner": owners.get(task),
                    "watermark": shown_time(watermarks),
                    "held_back_by": holding(watermarks),
                }
            )
        return found

    return _with_cluster(servers, app, ask)


def shown_time(watermarks: Mapping[str, int]) -> str | None:
    """Event time of a task, as a commit remembers it, for people; None: it has none."""
    now = now_of(watermarks)
    return iso_of(now) if 0 <= now <= TIMESTAMP_MS_MAX else None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a cluster says of a running app."""

    standing: Standing
    group: GroupDescription
    lags: Mapping[TopicPartition, PartitionLag]
    committed_at_ms: Mapping[TopicPartition, int]
    """When each task with state made its last commit, by the partition of its changelog."""


def facts_of(app: str, servers: Any) -> Facts:
    """
    What a cluster says of an app without asking its workers.

    Raises:
        NotFound: there is no such app.
    """

    async def ask(cluster: _Cluster) -> Facts:
        standing = await _survey(cluster, app, None, None)
        commits = await cluster.upkeep.commits(list(standing.progress))
        group = await cluster.admin.describe_group(app)
        lags = await cluster.admin.group_lag(app, ages=False)
        return Facts(standing, group, lags, {tp: at_ms for tp, (_, at_ms) in commits.items()})

    return _with_cluster(servers, app, ask)


# --- a program and a cluster ------------------------------------------------------------------------------------------


async def _program(cluster: _Cluster, app: App) -> _Program:
    graph = app.graph
    if graph.patterns:
        graph = on_topics(app.name, graph, app.on_error, await cluster.topics.names())
    outside = Assembly.topics_of(graph, app.on_error)
    facts = await cluster.topics.find(outside)
    missing = [name for name in outside if name not in facts]
    if missing:
        raise UnknownTopicOrPartition(
            f"{app.name} reads and writes topics that do not exist: {', '.join(missing)}; create them first"
        )
    partitions = {name: fact.partitions for name, fact in facts.items()}
    assembly = Assembly(app.name, graph, partitions, app.on_error)
    return _Program(graph, assembly, facts | await cluster.topics.find(list(assembly.internal())))


async def _survey(cluster: _Cluster, name: str, app: App | None, program: _Program | None) -> Standing:
    if app is None or program is None:
        standing = await survey(cluster.upkeep, name)
        if not standing.topics and not standing.positions and not standing.marked and not standing.shared:
            raise NotFound(f"there is no app {name!r} here; `headrace streams list` shows those there are")
        return standing
    outside = Assembly.topics_of(program.graph, app.on_error)
    return await survey(cluster.upkeep, name, program.assembly.internal(), outside)


def _described(app: App, program: _Program) -> dict[str, Any]:
    assembly, facts = program.assembly, program.facts
    data = as_data(app.name, program.graph, assembly.internal())
    behind = {part.name: assembly.topics_behind(part) for part in assembly.parts}
    for part in data["sub_topologies"]:
        part["topic_ids"] = {
            topic: facts[topic].topic_id if topic in facts else "none" for topic in behind[part["name"]]
        }
    return data


def _stateful(program: _Program) -> list[Stateful]:
    assembly = program.assembly
    return [
        Stateful(
            changelog_topic(assembly.app, part.name),
            assembly.tasks_of(part),
            {topic: program.facts[topic].topic_id for topic in part.topics},
        )
        for part in assembly.parts
        if part.stateful
    ]


async def _targets(
    cluster: _Cluster, asked: Reset, standing: Standing, program: _Program | None
) -> dict[TopicPartition, int]:
    if asked.to == EARLIEST:
        return {}
    topics = {tp.topic for tp in standing.positions}
    if program is not None:
        topics = {topic for part in program.assembly.parts for topic in part.topics}
    named = set() if isinstance(asked.to, str) else {tp.topic for tp in asked.to}
    if not topics or named - topics:
        raise Rejected(
            f"{asked.app} does not read {', '.join(sorted(named - topics)) or 'any topic'}; "
            f"it reads {', '.join(sorted(topics)) or 'none'}"
        )
    return await cluster.upkeep.targets(asked.app, sorted(topics), asked.to)


# --- clients ----------------------------------------------------------------------------------------------------------


def _with_cluster(servers: Any, app: str, work: Callable[[_Cluster], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _opened(servers, app) as cluster:
            return await work(cluster)

    return asyncio.run(run())


@asynccontextmanager
async def _opened(servers: Any, app: str) -> AsyncIterator[_Cluster]:
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(aio.AdminClient(servers, default_api_timeout_ms=_TIMEOUT_MS))
        decided, undecided = [
            await stack.enter_async_context(
                aio.Consumer(
                    bootstrap_servers=servers,
                    isolation_level=level,
                    auto_offset_reset=EARLIEST,
                    enable_auto_commit=False,
                )
            )
            for level in ("read_committed", "read_uncommitted")
        ]
        producer = await stack.enter_async_context(
            aio.Producer(servers, transactional_id=f"{app}@reset", transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
        )
        clock = SystemClock()
        topics = SdkTopics(admin, StreamsConfig(), clock)
        yield _Cluster(SdkUpkeep(admin, topics, decided, undecided, producer, clock, _TIMEOUT_MS), topics, admin)
