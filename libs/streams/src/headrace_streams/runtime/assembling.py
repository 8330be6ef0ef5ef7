"""The tasks that a program has on topics that exist; the topics that it needs for itself are made."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from headrace.errors import WaitTimedOut
from headrace.records import TopicPartition
from headrace.work_types import Declaration, WorkItem, declare
from headrace_common.core.errors import UnknownTopicOrPartition
from headrace_streams.config import StreamsConfig
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.hop import decode, rows_text
from headrace_streams.core.state.changelog import CONTROL, Progress, newest
from headrace_streams.core.task import check_columns
from headrace_streams.dsl.app import App
from headrace_streams.patience import Patience
from headrace_streams.plan.basis import basis_of
from headrace_streams.plan.cut import Assembly, on_topics
from headrace_streams.plan.known import apps_of, taken
from headrace_streams.plan.lost import Lost, find_lost
from headrace_streams.plan.nodes import Plan, changelog_topic, repartition_topic, reset_topic
from headrace_streams.ports import InternalTopic, Positions, Shared, TopicFacts
from headrace_streams.runtime.globals import Globals
from headrace_streams.runtime.owned import Outside, Owned, Spec
from headrace_streams.runtime.taking import check_basis, lost_positions

_log = logging.getLogger(__name__)
_TOPIC_WAIT_MS: Final = 500.0
_LOOK_MS: Final = 100
_TAIL_ROWS: Final = 64
"""Each commit ends with the row that is looked for, so the newest one is near the end of its changelog."""
_TAIL_MS: Final = 3_000.0
_TOLD: Final = 4
"""So many tasks are named in a message."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """An app on its topics."""

    assembly: Assembly
    specs: dict[str, Spec]
    """Its tasks, by label."""
    repartitions: frozenset[str]
    """Its repartition topics."""

    @property
    def ids(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Which topics its tasks belong to, by label. A reset, or whoever makes a topic anew, changes it."""
        return {label: (spec.log_id, dict(spec.basis)) for label, spec in self.specs.items()}

    def declaration(self, config: StreamsConfig) -> Declaration:
        """Its tasks as the work that its workers share."""
        items = [
            WorkItem(label, stateful=stateful, standbys=config.standbys if stateful else 0)
            for label, spec in self.specs.items()
            for stateful in [spec.changelog is not None]
        ]
        lag, warmup = config.acceptable_recovery_lag, config.max_warmup
        rows = rows_of(self.assembly)
        return declare(items, acceptable_recovery_lag=lag, max_warmup=warmup, terms=rows)

    @property
    def internal(self) -> frozenset[str]:
        """The topics that it has made for itself."""
        return self.repartitions | {spec.changelog.topic for spec in self.specs.values() if spec.changelog is not None}

    @property
    def hops(self) -> list[TopicPartition]:
        """The partitions of its repartition topics."""
        return [tp for spec in self.specs.values() for tp in spec.partitions if tp.topic in self.repartitions]

    @property
    def resends(self) -> bool:
        """Whether it has tasks that keep nothing but positions."""
        return any(spec.changelog is None for spec in self.specs.values())

    def make(self, spec: Spec, outside: Outside) -> Owned:
        """A task that has not begun."""
        store = None if spec.changelog is None else outside.stores.open(spec.part.name, spec.partition)
        return Owned(spec, self.assembly.make(spec.part, spec.partition), store)


class Assembling:
    """What is done before a worker joins, and looked at again when it is a member."""

    def __init__(self, app: App, config: StreamsConfig, outside: Outside) -> None:
        self._app = app
        self._config = config
        self._outside = outside
        self._patience = Patience(outside.clock, config.default_api_timeout_ms)
        self.globals = Globals(app.graph, outside, self._patience)

    async def assemble(self, others: Patience | None = None) -> Assembled:
        """
        The app on its topics.

        Args:
            others: for a worker that has not joined: before topics are made it is asked whether a program runs under
                the app's name with which this one cannot work.

        Raises:
            NotAllowed: the plan does not fit the topics; a reset has begun and not ended; or, with ``others``, such a
                program runs; a topic that it needs for itself is another app's, or had state and is gone.
            UnknownTopicOrPartition: a topic that it reads or writes does not exist.
        """
        name = self._app.name
        if await self._outside.topics.find([reset_topic(name)]):
            raise NotAllowed(
                f"a reset of {name} has begun and not ended: wait for it, or, if it was cut off, run it again, "
                f"headrace streams reset {name} --execute"
            )
        graph, facts = await self._existing()
        partitions = {topic: fact.partitions for topic, fact in facts.items()}
        limits = await self._outside.topics.limits(Assembly.written_by(graph))
        interval_ms = self._config.watermark_interval_ms
        assembly = Assembly(name, graph, partitions, self._app.on_error, self.globals.tables, limits, interval_ms)
        if others is not None:
            await self.check_others(tasks_of(assembly), rows_of(assembly), others)
        await self._check_own(assembly)
        repartitions = [
            InternalTopic(repartition_topic(name, hop), count, compacted=False)
            for hop, count in assembly.repartitions.items()
        ]
        logs = [
            InternalTopic(changelog_topic(name, part.name), assembly.tasks_of(part), compacted=True)
            for part in assembly.parts
            if part.stateful
        ]
        facts |= await self._outside.topics.make([*repartitions, *logs])
        assembly.check({topic.name: facts[topic.name].partitions for topic in (*repartitions, *logs)})
        specs = {spec.label: spec for spec in self._specs(assembly, facts)}
        await self.globals.read(facts)
        return Assembled(assembly, specs, frozenset(topic.name for topic in repartitions))

    async def _check_own(self, assembly: Assembly) -> None:
        """
        Are the topics that the app needs for itself no other app's, and is the state there that it has kept? Who is a
        member tells it to others that start.

        Raises:
            NotAllowed: one is another's; or state is not there.
        """
        name, internal = assembly.app, assembly.internal()
        for app in sorted(apps_of(internal) - {name}):
            other = await self._patience.ask(partial(self._outside.topics.known, app))
            for topic in filter(other.has, internal):
                raise NotAllowed(". ".join(taken(name, topic, app)))
        clock = self._outside.clock
        until_ms = clock.monotonic_ms() + _TAIL_MS
        # What another worker has made just now is not known everywhere at once.
        while lost := await self._find_lost(assembly):
            if clock.monotonic_ms() >= until_ms:
                raise NotAllowed(". ".join(next(iter(lost.values()))))
            await clock.sleep_ms(_TOPIC_WAIT_MS)

    async def _find_lost(self, assembly: Assembly) -> Lost:
        topics = self._outside.topics
        known = await self._patience.ask(lambda: topics.known(assembly.app))
        there = await topics.find(list(assembly.internal())) if known.positions else {}
        return find_lost(assembly, known, there)

    async def on_topics(self) -> Plan:
        """The program with the topics that its patterns match now."""
        graph = self._app.graph
        if not graph.patterns:
            return graph
        return on_topics(self._app.name, graph, self._app.on_error, await self._outside.topics.names())

    async def _existing(self) -> tuple[Plan, dict[str, TopicFacts]]:
        """The program on its topics, and the topics that it reads and writes; waits for those that do not exist."""
        clock = self._outside.clock
        until_ms = clock.monotonic_ms() + self._config.default_api_timeout_ms
        told: list[str] = []
        while True:
            graph = await self.on_topics()
            names = Assembly.topics_of(graph, self._app.on_error)
            facts = await self._outside.topics.find(names)
            missing = [name for name in names if name not in facts]
            missing += [f"any like {one.pattern.pattern}" for one in graph.patterns if one.pattern and not one.topics]
            if not missing:
                if told:
                    _log.info("%s goes on: the topics that it waited for are there", self._app.name)
                return graph, facts
            if clock.monotonic_ms() >= until_ms:
                raise UnknownTopicOrPartition(
                    f"{self._app.name} reads and writes topics that do not exist: {', '.join(missing)}; create them "
                    f"first: headrace topic create {missing[0]}"
                )
            if missing != told:
                _log.warning(
                    "%s waits for topics that do not exist: %s; headrace topic create NAME makes one",
                    self._app.name,
                    ", ".join(missing),
                )
                told = missing
            await clock.sleep_ms(_TOPIC_WAIT_MS)

    def _specs(self, assembly: Assembly, facts: dict[str, TopicFacts]) -> list[Spec]:
        found = []
        ids = {topic: fact.topic_id for topic, fact in facts.items()}
        for part in assembly.parts:
            topics = (*part.topics, *assembly.hops_of(part))
            basis = basis_of(assembly, part, ids)
            log = changelog_topic(self._app.name, part.name)
            for partition in range(assembly.tasks_of(part)):
                spec = Spec(part, partition, topics, basis)
                if part.stateful:
                    log_id = f"{facts[log].topic_id}-{partition}"
                    spec = Spec(part, partition, topics, basis, TopicPartition(log, partition), log_id)
                found.append(spec)
        return found

    async def check_others(
        self, tasks: Mapping[str, Collection[str]], rows: Mapping[str, str], patience: Patience
    ) -> None:
        """
        Can this program work with the workers that run under its name? Waits for them to end if not.

        Args:
            tasks: of this program, by label: the topics that each reads.
            rows: the columns of the rows that its tasks send each other, by repartition topic.

        Raises:
            NotAllowed: workers share tasks of which this program has none, and nothing that it reads was read by them;
                or they send rows with other columns.
        """
        clock = self._outside.clock
        until_ms = clock.monotonic_ms() + self._config.default_api_timeout_ms
        told = False
        while (conflict := await self._conflict(tasks, rows, patience)) is not None:
            others, way_out = conflict
            if clock.monotonic_ms() >= until_ms:
                raise NotAllowed(f"{others}. {way_out}")
            if not told:
                _log.warning("%s; waiting for its workers to end", others)
            told = True
            await clock.sleep_ms(_TOPIC_WAIT_MS)
        if told:
            _log.info("the workers of the other program have ended; %s goes on", self._app.name)

    async def _conflict(
        self, tasks: Mapping[str, Collection[str]], rows: Mapping[str, str], patience: Patience
    ) -> tuple[str, str] | None:
        """Why the workers that run and this program exclude each other, and what to do; None: they do not."""
        name = self._app.name
        shared = await patience.ask(lambda: self._outside.topics.shared(name))
        for topic in sorted(rows.keys() & shared.rows.keys()):
            if rows[topic] != shared.rows[topic]:
                return (
                    f"another version of {name} runs: its workers send rows with the columns {shared.rows[topic]} to "
                    f"{topic}, and this one sends {rows[topic]}",
                    f"Run that one until `headrace group lag {name}` says 0 for the topic, stop its workers, then "
                    "start this one",
                )
        positions = await patience.ask(lambda: self._outside.topics.positions(name)) if shared.tasks else {}
        return other_program(name, tasks, shared, positions)

    async def check_positions(self, assembled: Assembled, patience: Patience) -> None:
        """
        Raises:
            NotFound: the group has no positions, there is state, and tasks without state would write again what it has
                counted.
        """
        if not assembled.resends or not await self._is_new(assembled, patience):
            return
        logs = [spec.changelog for spec in assembled.specs.values() if spec.changelog is not None]
        counted = await self._find_rows(logs, patience)
        # Another worker may have made the first commit meanwhile.
        if counted is not None and await self._is_new(assembled, patience):
            raise lost_positions(self._app.name, f"{counted.topic}/{counted.partition}")

    async def check_state(self, assembled: Assembled, patience: Patience) -> None:
        """
        Is the state that is there kept as this program keeps it? Whoever takes a task looks again: but until then a
        worker may have others, and write rows for those of the program before that they do not know.

        Raises:
            NotAllowed: it is not.
        """
        specs = {spec.changelog: spec for spec in assembled.specs.values() if spec.changelog is not None}
        for log, progress in (await self._newest_progress(list(specs), patience)).items():
            check_basis(self._app.name, specs[log], progress.basis)

    async def check_rows(
        self, assembled: Assembled, patience: Patience, ends: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """
        Can this program read the rows that wait? Otherwise it must not begin: it would send rows of its own after them,
        and no program could read both.

        Args:
            ends: look at all rows below, and wait for transactions that hold some. Only a member can, which has ended
                what the workers before it have left open. Otherwise what is committed is looked at alone.

        Raises:
            NotAllowed: it cannot.
            WaitTimedOut: rows wait that cannot be read, or a transaction was not decided.
        """
        wanted = assembled.assembly.columns
        hops = assembled.hops
        if not hops:
            return
        decided = ends is not None
        reader, clock = self._outside.reader, self._outside.clock
        positions = await patience.ask(lambda: self._outside.topics.positions(self._app.name))
        if ends is None:
            ends = await patience.ask(lambda: self._outside.changelogs.ends(hops))
        left = {tp: at for tp in hops if (at := positions.get(tp, -1)) < ends[tp]}
        until_ms = clock.monotonic_ms() + self._config.default_api_timeout_ms
        if left:
            await reader.assign(left)
        while left:
            if clock.monotonic_ms() >= until_ms:
                raise WaitTimedOut(
                    f"rows wait in {_some(map(str, left))}, and could not be read in "
                    f"{self._config.default_api_timeout_ms / 1000:g} s to see whether {self._app.name} knows them"
                )
            for batch in await patience.ask(lambda: reader.poll(_LOOK_MS, _TAIL_ROWS)):
                tp = TopicPartition(batch.topic, batch.partition)
                flushes = (decode(value) for value in batch.table["value"].to_pylist())
                rows = next((flush.rows for flush in flushes if flush.rows is not None), None)
                if rows is not None:
                    check_columns(tp.topic, rows, wanted[tp.topic])
                    left = {other: at for other, at in left.items() if other.topic != tp.topic}
                elif batch.next_offset >= ends[tp]:
                    left.pop(tp, None)
            for tp in () if decided else await reader.at_ends(list(left)):
                left.pop(tp, None)

    async def _newest_progress(self, logs: list[TopicPartition], patience: Patience) -> dict[TopicPartition, Progress]:
        """As the ends of changelogs say, as far as they can be read soon: a transaction may be open in one."""
        reader, clock = self._outside.changelogs, self._outside.clock
        starts = await patience.ask(lambda: reader.starts(logs))
        ends = await patience.ask(lambda: reader.ends(logs))
        behind = {at: max(starts[at], end - _TAIL_ROWS) for at, end in ends.items() if end > starts[at]}
        found: dict[TopicPartition, Progress] = {}
        if behind:
            await reader.assign(behind)
        until_ms = clock.monotonic_ms() + _TAIL_MS
        while any(at < ends[log] for log, at in behind.items()) and clock.monotonic_ms() < until_ms:
            for batch in await patience.ask(lambda: reader.poll(_LOOK_MS, _TAIL_ROWS)):
                log = TopicPartition(batch.topic, batch.partition)
                behind[log] = batch.next_offset
                keys: list[Any] = batch.table["key"].to_pylist()
                values: list[Any] = batch.table["value"].to_pylist()
                control = newest(zip(keys, values, strict=True)).get(CONTROL)
                if control is not None:
                    found[log] = Progress.decode(control)
        return found

    async def _is_new(self, assembled: Assembled, patience: Patience) -> bool:
        partitions = [tp for spec in assembled.specs.values() for tp in spec.partitions]
        committed = await patience.ask(lambda: self._outside.reader.committed(partitions))
        return all(at is None for at in committed.values())

    async def _find_rows(self, logs: list[TopicPartition], patience: Patience) -> TopicPartition | None:
        """The first changelog with committed rows; fences are none."""
        reader = self._outside.changelogs
        ends = await patience.ask(lambda: reader.ends(logs))
        left = {at: 0 for at, end in ends.items() if end > 0}
        if left:
            await reader.assign(dict.fromkeys(left, -1))
        while any(position < ends[at] for at, position in left.items()):
            for batch in await patience.ask(lambda: reader.poll(_LOOK_MS, 1)):
                if batch.table.num_rows:
                    return TopicPartition(batch.topic, batch.partition)
                left[TopicPartition(batch.topic, batch.partition)] = batch.next_offset
        return None


def other_program(
    app: str, tasks: Mapping[str, Collection[str]], shared: Shared, positions: Positions
) -> tuple[str, str] | None:
    """
    Why the workers that run belong to another program, and what to do; None: they do not.

    Args:
        tasks: of this program, by label: the topics that each reads.
        positions: of the app.
    """
    topics = {topic for of_task in tasks.values() for topic in of_task}
    read = {tp.topic for tp in positions}
    if not shared.tasks or not shared.tasks.isdisjoint(tasks) or not topics.isdisjoint(read):
        return None
    return (
        f"another program runs as {app}: its workers share the tasks {_some(shared.tasks)}, and this program has none "
        f"of these, but {_some(tasks)}",
        "Give one of them another name, App('…'), or stop the workers of the other one first",
    )


def tasks_of(assembly: Assembly) -> dict[str, tuple[str, ...]]:
    """What each task reads, by label."""
    specs = [
        Spec(part, partition, (*part.topics, *assembly.hops_of(part)), {})
        for part in assembly.parts
        for partition in range(assembly.tasks_of(part))
    ]
    return {spec.label: spec.topics for spec in specs}


def rows_of(assembly: Assembly) -> dict[str, str]:
    """What workers agree on: the columns of the rows that tasks send each other, by repartition topic."""
    return {topic: rows_text(columns) for topic, columns in assembly.columns.items()}


def _some(tasks: Iterable[str]) -> str:
    first = sorted(tasks)
    return ", ".join(first[:_TOLD]) + (", …" if len(first) > _TOLD else "")
