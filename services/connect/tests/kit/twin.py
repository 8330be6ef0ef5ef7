"""
The worker as REST has it, in memory: what commands write is read at once, and what a connector's watcher and tasks
would say is said by ``TwinHerd.follow``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import pause_ms
from headrace_connect.core.options import Problem
from headrace_connect.core.progress import Progress
from headrace_connect.plugin import Chunk, Sink, Source
from headrace_connect.runtime.config import SinkConfig, SourceConfig
from headrace_connect.settings import Definition, describe, find_problems, setting
from headrace_connect_worker.core import changes
from headrace_connect_worker.core.events import Happened, Kept
from headrace_connect_worker.core.herd import HerdState
from headrace_connect_worker.core.records import (
    ConfigRecord,
    LeaderSaid,
    RunState,
    SplitSpec,
    Status,
    TargetState,
    TopicUsed,
    Work,
)
from headrace_connect_worker.core.refusals import BadCommand, NotLeader
from headrace_connect_worker.core.status import Statuses
from headrace_connect_worker.ports import (
    Config,
    ConnectorOffset,
    Forwarded,
    HostEvent,
    HostUnavailable,
    Leader,
    NotAnswered,
    Plugin,
    StartTask,
    Validation,
)

ME = "worker-1:8083"
OTHER = "http://worker-2:8083"


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Of ``FileStreamSource``."""

    topic: str
    """Where lines go."""
    file: str = ""
    """What is read."""
    batch_size: int = setting(2_000, low=1)
    """Lines at once."""
    password: str = ""
    """Kept secret."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Of ``FileStreamSink``."""

    file: str = ""
    """What is written."""


class Lines(Source[SourceSettings]):
    """Never run."""

    def read(self, split: Any, after: Any) -> Any:
        yield Chunk([], {})


class Writes(Sink[SinkSettings]):
    """Never run."""

    def write(self, rows: Any) -> None:
        pass


PLUGINS: Mapping[str, tuple[str, type, type]] = {
    "FileStreamSource": ("source", SourceConfig, SourceSettings),
    "FileStreamSourceConnector": ("source", SourceConfig, SourceSettings),
    "FileStreamSink": ("sink", SinkConfig, SinkSettings),
}


@dataclass
class TwinHosts:
    """Answers questions about ``PLUGINS``; nothing runs."""

    asked: list[tuple[str, Any]] = field(default_factory=list)
    crash: str = ""
    away: str = ""
    outside: tuple[Problem, ...] = ()
    """What the other system says is wrong."""
    records: list[Mapping[str, Any]] = field(default_factory=list)
    ranges: list[Mapping[str, Any]] = field(default_factory=list)
    wrong: int = 0
    """What a target has, and how many rows of it are wrong."""
    refuses: str = ""
    """Why a connector cannot be verified, or read again."""
    slow: bool = False
    """Whether a verification goes on until this says otherwise."""
    verifying: int = 0
    """Verifications that run."""

    async def validate(self, config: Config, *, ask: bool = True) -> Validation:
        self._note("validate", config)
        name = config.get("connector.class", "")
        if name not in PLUGINS:
            problem = Problem("connector.class", f"connector.class: there is no connector {name[:80]!r}")
            return Validation(name, "", (), (problem,))
        kind, common, own = PLUGINS[name]
        plain = config.get("allow.plain.secrets") == "true"
        problems = find_problems(config, common, own, kind=name, allow_plain_secrets=plain)
        return Validation(name, kind, describe(common, own), (*problems, *(self.outside if ask else ())))

    async def describe(self, plugin: str) -> tuple[Definition, ...]:
        self._note("describe", plugin)
        if plugin not in PLUGINS:
            raise InvalidConfig(f"connector.class: there is no connector {plugin!r}")
        _, common, own = PLUGINS[plugin]
        return describe(common, own)

    async def plugins(self) -> Sequence[Plugin]:
        self._note("plugins", None)
        return [Plugin(name, f"twin.module:{name}", kind, "1.0") for name, (kind, _, _) in PLUGINS.items()]

    async def preview(self, config: Config, records_max: int) -> Sequence[Mapping[str, Any]]:
        self._note("preview", config)
        return self.records[:records_max]

    async def settle(self, config: Config) -> int:
        self._note("settle", config)
        return 0

    async def rewind(
        self, config: Config, positions: Mapping[TopicPartition, int | None], *, forget_others: bool
    ) -> int:
        raise AssertionError("the herd does it")

    async def verify(
        self,
        config: Config,
        topics: Sequence[str],
        records_max: int,
        *,
        repair: bool,
        tell: Callable[[Progress], None],
    ) -> Mapping[str, Any]:
        self._note("verify", (config, tuple(topics), records_max, repair))
        tell(Progress(100, 0, 40))
        self.verifying += 1
        try:
            while self.slow:
                await pause_ms(1)
        finally:
            self.verifying -= 1
        if self.refuses:
            raise InvalidConfig(self.refuses)
        return {
            "name": config["name"],
            "agrees": not self.wrong,
            "wrong": self.wrong,
            "repaired": 0,
            "ranges": self.ranges,
        }

    async def snapshot(self, config: Config, tables: Sequence[str]) -> Sequence[str]:
        self._note("snapshot", (config, tuple(tables)))
        if self.refuses:
            raise InvalidConfig(self.refuses)
        return [f"public.{table}" for table in tables]

    def _note(self, what: str, of: Any) -> None:
        self.asked.append((what, of))
        if self.crash:
            raise HostUnavailable(self.crash)
        if self.away:
            raise NotAnswered(self.away)

    async def start(self, task: StartTask) -> None:
        raise AssertionError("REST runs nothing")

    async def set_target(self, connector: str, task: int, target: TargetState) -> None:
        raise AssertionError("REST runs nothing")

    async def stop(self, connector: str, task: int) -> None:
        raise AssertionError("REST runs nothing")

    async def watch(self, connector: str, config: Config, config_offset: int) -> None:
        raise AssertionError("REST runs nothing")

    async def unwatch(self, connector: str) -> None:
        raise AssertionError("REST runs nothing")

    async def close(self) -> None:
        pass

    def events(self) -> Any:
        events: list[HostEvent] = []
        return iter(events)


class TwinHerd:
    """Satisfies ``Herd``."""

    def __init__(self) -> None:
        self.state = HerdState()
        self.statuses = Statuses()
        self.is_ready = True
        self.leader: Leader | None = None
        self.lost = False
        """Whether commands find that another worker leads by now."""
        self.kept: dict[str, list[ConnectorOffset]] = {}
        self.restarts: list[tuple[str, bool, Collection[int] | None, bool]] = []
        self.raises: Exception | None = None
        self.happened = Kept()
        self._generation = 0
        self._epoch = 0
        self.lead()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await pause_ms(1)  # a test of the command changes things in another thread

    def events(self, name: str, limit: int, kind: str | None = None) -> Sequence[Happened]:
        return self.happened.find(name, limit, kind)

    # --- what happens ------------------------------------------------------------------------------------------------

    def lead(self, url: str | None = None) -> None:
        """This worker leads, or the one at ``url``."""
        worker_id = ME if url is None else url.removeprefix("http://")
        self._epoch += 1
        said = LeaderSaid(worker_id, url or f"http://{ME}", self._epoch)
        self._take([said])
        self.leader = Leader(said.worker_id, said.url, url is None)

    def follow(self) -> None:
        """Watchers find one split for each source, and all that is to run runs."""
        for name in list(self.state.connectors):
            self.watch(name)
            self.run(name)

    def watch(self, name: str) -> None:
        connector = self.state.connectors[name]
        kind = PLUGINS[connector.config["connector.class"]][0]
        splits = (SplitSpec(connector.config.get("file", "")),) if kind == "source" else ()
        self.statuses.apply(Work(name, kind, connector.config_offset, "", 1, splits, ME, 1))
        self._take(changes.tasks_due(self.state, connector, self.statuses.work(name), self._draw))

    def run(self, name: str, state: RunState | None = None, trace: str = "") -> None:
        connector = self.state.connectors[name]
        runs = {TargetState.STARTED: RunState.RUNNING}.get(connector.target) or RunState(connector.target.value)
        self.statuses.apply(Status(name, None, state or runs, trace, ME, 1))
        for task in range(0 if connector.tasks is None else len(connector.tasks.shares)):
            self.statuses.apply(Status(name, task, state or runs, trace, ME, 1))
            topic = connector.config.get("topic", "lines")
            self.statuses.apply(TopicUsed(name, topic, task, 1))
        count = {one: len(c.tasks.shares) if c.tasks else 0 for one, c in self.state.connectors.items()}
        for leftover in list(self.statuses.leftovers(count)):
            self.statuses.apply(leftover)

    # --- Herd --------------------------------------------------------------------------------------------------------

    async def put_config(
        self, name: str, config: Config, *, only_new: bool = False, target: TargetState | None = None
    ) -> bool:
        self._check()
        created = name not in self.state.connectors
        self._take(changes.put_config(self.state, name, config, only_new=only_new, target=target))
        return created

    async def patch_config(self, name: str, changed: Mapping[str, str | None]) -> Config:
        self._check()
        merged = {**changes.find(self.state, name).config, **changed}
        config = {key: value for key, value in merged.items() if value is not None}
        self._take(changes.put_config(self.state, name, config, only_new=False, target=None))
        return config

    async def delete(self, name: str) -> None:
        self._check()
        self._take(changes.delete(self.state, name))
        for leftover in list(self.statuses.leftovers(dict.fromkeys(self.state.connectors, 1 << 31))):
            self.statuses.apply(leftover)

    async def set_target(self, name: str, target: TargetState) -> None:
        self._check()
        self._take(changes.set_target(self.state, name, target, self.statuses.work(name), self._draw))

    async def restart(
        self, name: str, *, connector: bool = True, tasks: Collection[int] | None = (), only_failed: bool = False
    ) -> None:
        self._check()
        named = None if tasks is None else list(tasks)
        self._take(changes.restart(self.state, name, connector=connector, tasks=named, only_failed=only_failed))
        self.restarts.append((name, connector, tasks, only_failed))

    async def offsets(self, name: str) -> Sequence[ConnectorOffset]:
        changes.find(self.state, name)
        return self.kept.get(name, [])

    async def change_offsets(self, name: str, offsets: Sequence[ConnectorOffset] | None) -> None:
        self._check()
        if changes.find(self.state, name).target is not TargetState.STOPPED:
            raise BadCommand(f"Connector {name} must be in the STOPPED state")
        if offsets is None:
            self.kept.pop(name, None)
        else:
            self.kept[name] = [*self.kept.get(name, []), *offsets]

    async def reset_topics(self, name: str) -> None:
        changes.find(self.state, name)
        for topic in list(self.statuses.topics(name)):
            self.statuses.apply(TopicUsed(name, topic, -1))

    def _check(self) -> None:
        if self.raises is not None:
            raise self.raises
        if self.lost:
            raise NotLeader(OTHER)

    def _take(self, records: Sequence[ConfigRecord]) -> None:
        for record in records:
            self.state.apply(self.state.offset + 1, record)

    def _draw(self, before: int) -> int:
        self._generation = max(before, self._generation) + 1
        return self._generation


@dataclass
class TwinForwarding:
    """Satisfies ``Forwarding``: says what it was given."""

    answers: Forwarded = field(default_factory=lambda: Forwarded(200, b'{"from": "the leader"}'))
    sent: list[tuple[str, str, str, list[tuple[str, str]], bytes]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """The header ``Authorization`` of each; empty: there was none."""
    raises: Exception | None = None
    stands: Callable[[], None] | None = None
    """Called when the leader is asked, which never answers then."""

    async def send(
        self,
        url: str,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: bytes,
        authorization: str = "",
    ) -> Forwarded:
        self.sent.append((url, method, path, list(query), body))
        self.shown.append(authorization)
        if self.stands is not None:
            self.stands()
            await asyncio.Event().wait()
        if self.raises is not None:
            raise self.raises
        return self.answers
