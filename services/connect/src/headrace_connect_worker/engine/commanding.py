"""Satisfies ``ports.Herd``: the view of this worker, and commands, which the leader writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from headrace_common.core.errors import InvalidConfig
from headrace_connect_worker.core import changes
from headrace_connect_worker.core.events import Happened
from headrace_connect_worker.core.herd import HerdState
from headrace_connect_worker.core.records import ConfigRecord, TargetState, TasksCommitted, TopicUsed, Work
from headrace_connect_worker.core.refusals import BadCommand, Conflict
from headrace_connect_worker.core.status import Statuses
from headrace_connect_worker.engine.events import Events
from headrace_connect_worker.engine.following import Following
from headrace_connect_worker.engine.leading import Leading
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.engine.reporting import Reporting
from headrace_connect_worker.engine.repositioning import Repositioning
from headrace_connect_worker.ports import Config, ConnectorOffset, Hosts, HostUnavailable, Leader, OffsetStore

DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"


class Commanding:
    """See the module's text."""

    def __init__(
        self,
        following: Following,
        leading: Leading,
        reporting: Reporting,
        offsets: OffsetStore,
        hosts: Hosts,
        events: Events,
        place: Place,
    ) -> None:
        self._following = following
        self._leading = leading
        self._reporting = reporting
        self._offsets = offsets
        self._hosts = hosts
        self._repositioning = Repositioning(offsets, hosts)
        self._events = events
        self._place = place

    @property
    def state(self) -> HerdState:
        """See ``Herd``."""
        return self._following.state

    @property
    def statuses(self) -> Statuses:
        """See ``Herd``."""
        return self._following.statuses

    @property
    def leader(self) -> Leader | None:
        """See ``Herd``."""
        said = self._following.state.leader
        if said is None:
            return None
        return Leader(said.worker_id, said.url, said.worker_id == self._place.worker_id and self._leading.leads)

    @property
    def is_ready(self) -> bool:
        """See ``Herd``."""
        return self._following.is_ready

    async def until(self, holds: Callable[[], bool]) -> None:
        """See ``Herd``."""
        await self._following.until(holds)

    def events(self, name: str, limit: int, kind: str | None = None) -> Sequence[Happened]:
        """See ``Herd``."""
        return self._events.find(name, limit, kind)

    async def put_config(
        self, name: str, config: Config, *, only_new: bool = False, target: TargetState | None = None
    ) -> bool:
        """See ``Herd``."""

        def make() -> tuple[Sequence[ConfigRecord], bool]:
            created = name not in self.state.connectors
            return changes.put_config(self.state, name, config, only_new=only_new, target=target), created

        return await self._leading.submit(make)

    async def patch_config(self, name: str, changed: Mapping[str, str | None]) -> Config:
        """See ``Herd``."""

        def make() -> tuple[Sequence[ConfigRecord], Config]:
            merged: dict[str, str | None] = {**changes.find(self.state, name).config, **changed}
            config = {key: value for key, value in merged.items() if value is not None}
            return changes.put_config(self.state, name, config, only_new=False, target=None), config

        return await self._leading.submit(make)

    async def delete(self, name: str) -> None:
        """See ``Herd``."""
        self._leading.check()
        connector = changes.find(self.state, name)
        if connector.config.get(DEAD_LETTERS):
            await self._settle(name, connector.config)
        await self._leading.submit(lambda: (changes.delete(self.state, name), None))

    async def _settle(self, name: str, config: Config) -> None:
        """What its tasks have prepared, and did not live to decide: later nobody knows the target."""
        try:
            await self._hosts.settle(config)
        except (HostUnavailable, InvalidConfig) as error:
            raise Conflict(
                f"Connector {name} may have dead letters that are prepared, and its target does not say whether they "
                f"count: {error}\nDelete it when the target answers, or decide them yourself (`headrace txn prepared` "
                f"lists them) and take {DEAD_LETTERS} out of its configuration first"
            ) from error

    async def set_target(self, name: str, target: TargetState) -> None:
        """See ``Herd``."""

        def make() -> tuple[Sequence[ConfigRecord], None]:
            work = self.statuses.work(name)
            return changes.set_target(self.state, name, target, work, self._leading.draw), None

        await self._leading.submit(make)

    async def restart(
        self, name: str, *, connector: bool = True, tasks: Collection[int] | None = (), only_failed: bool = False
    ) -> None:
        """See ``Herd``."""
        named = None if tasks is None else tuple(tasks)
        await self._leading.submit(
            lambda: (
                changes.restart(self.state, name, connector=connector, tasks=named, only_failed=only_failed),
                None,
            )
        )

    # --- positions ----------------------------------------------------------------------------------------------------

    async def offsets(self, name: str) -> Sequence[ConnectorOffset]:
        """See ``Herd``."""
        connector = changes.find(self.state, name)
        return await self._offsets.read(name, self._work(name).kind, connector.config)

    async def change_offsets(self, name: str, offsets: Sequence[ConnectorOffset] | None) -> None:
        """See ``Herd``."""

        def begin() -> tuple[Sequence[ConfigRecord], int]:
            connector = changes.find(self.state, name)
            self._work(name)
            if not connector.is_stopped:
                raise BadCommand(
                    f"Connector {name} must be in the STOPPED state before its offsets can be modified; "
                    f"PUT /connectors/{name}/stop does it"
                )
            generation = self._leading.draw(self.state.generation_max(name))
            none = TasksCommitted(name, 0, generation, connector.config_offset, dict(connector.config))
            return [none], generation

        generation = await self._leading.submit(begin)
        connector = changes.find(self.state, name)
        await self._repositioning.change(self._work(name), connector.config, generation, offsets)

    def _work(self, name: str) -> Work:
        work = self.statuses.work(name)
        if work is None:
            raise Conflict(f"Connector {name} has not said yet what it reads or writes; ask again in a moment")
        return work

    async def reset_topics(self, name: str) -> None:
        """See ``Herd``."""
        changes.find(self.state, name)
        for topic in list(self.statuses.topics(name)):
            self._reporting.put(TopicUsed(name, topic, -1))
