"""
Carries out verifications on the worker that leads, each in a host of its own. REST of every worker asks the leader, so
of each connector one runs in the whole cluster.

One ends early where it is deleted, another worker leads (which knows nothing of it), its connector is deleted, a
connector that is repaired is to run again, or the worker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import new_uuid
from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_connect.core.progress import Progress
from headrace_connect_worker.core.changes import find
from headrace_connect_worker.core.refusals import Conflict, NoSuchConnector, Refusal
from headrace_connect_worker.core.verifications import Verification, Verifications
from headrace_connect_worker.engine.checking import Checking
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.ports import Config, Herd, Hosts, HostUnavailable


class Verifying:
    """See the module's text. Its methods are called where the worker leads."""

    def __init__(
        self, herd: Herd, hosts: Hosts, checking: Checking, place: Place, runner: TaskRunner, clock: Clock
    ) -> None:
        """
        Args:
            runner: has the verifications that run.
        """
        self._herd = herd
        self._hosts = hosts
        self._checking = checking
        self._place = place
        self._runner = runner
        self._clock = clock
        self._known = Verifications()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    async def begin(self, name: str, topics: Sequence[str], records_max: int, *, repair: bool) -> Verification:
        """
        Verify a connector as it is configured now; returns when it has begun.

        Raises:
            NoSuchConnector: there is none of this name.
            BadCommand: its configuration may not reach what it names.
            Conflict: it has one that runs, or is to be stopped first; or the worker stops.
            Overloaded: too many run.
            HostUnavailable: nobody could look at what the configuration names.
        """
        config = find(self._herd.state, name).config
        await self._checking.ensure_within(config)
        if self._stopping:
            raise Conflict("this worker stops; ask again in a moment")
        begun = self._known.begin(new_uuid(), find(self._herd.state, name), self._clock.now_ms(), repair=repair)
        task = self._runner.start(self._run(begun, config, topics, records_max), name=f"verify {name}")
        self._tasks[begun.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(begun.id))
        return begun

    def newest_first(self) -> Sequence[Verification]:
        """Those of all connectors that run, and the newest that have ended; the newest is first."""
        return self._known.newest_first()

    def find(self, name: str, id: str) -> Verification:
        """
        How one is.

        Raises:
            NoSuchVerification: there is none.
        """
        return self._known.find(name, id)

    async def delete(self, name: str, id: str) -> None:
        """
        End one where it runs, and forget it; its host has ended when this returns.

        Raises:
            NoSuchVerification: there is none.
        """
        self._known.find(name, id)
        await self._cancel(id)
        self._known.forget(id)

    async def stop(self) -> None:
        """End all, and begin no more."""
        self._stopping = True
        for id in list(self._tasks):
            self._known.end(id, error=Conflict("the worker that led stops: begin it again"))
            await self._cancel(id)

    async def _cancel(self, id: str) -> None:
        task = self._tasks.get(id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self, begun: Verification, config: Config, topics: Sequence[str], records_max: int) -> None:
        results: list[Mapping[str, Any]] = []
        reasons: list[Refusal] = []

        def tell(progress: Progress) -> None:
            begun.progress = progress

        async def compare() -> None:
            results.append(await self._hosts.verify(config, topics, records_max, repair=begun.repair, tell=tell))

        def is_over() -> bool:
            reason = self._find_reason(begun)
            reasons.extend([reason] if reason is not None else [])
            return bool(reasons)

        try:
            await first_of(compare(), self._herd.until(is_over))
        except (HeadraceError, HostUnavailable) as error:
            self._known.end(begun.id, error=error)
            return
        if results:
            self._known.end(begun.id, results[0])
        else:
            self._known.end(begun.id, error=reasons[0])

    def _find_reason(self, begun: Verification) -> Refusal | None:
        """Why it cannot go on, by what was read."""
        leader = self._herd.leader
        if leader is not None and leader.worker_id != self._place.worker_id:
            return Conflict("another worker leads by now: begin it again")
        connector = self._herd.state.connectors.get(begun.connector)
        if connector is None:
            return NoSuchConnector(f"Connector {begun.connector} was deleted")
        if begun.repair and not connector.is_stopped:
            return Conflict(f"{begun.connector} is to run again, which has ended its repair: stop it, and begin again")
        return None
