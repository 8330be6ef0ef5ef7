"""
Stands for election, for ever: at most one controller is active, decided by one key with a lease in the store.

The winner's writes all compare that key's create revision, so a controller that was paused, cut off or is slow
changes nothing after another was elected, without any trust in clocks. The lease only decides how soon somebody else
may stand. Each term has a new controller epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headrace_common.core.errors import HeadraceError
from headrace_common.core.features import ACCESS
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import ActiveController
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.entropy import backoff_ms, new_secret
from headrace_common.runtime.logs import logger
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.config import ControllerConfig
from headrace_controller.core import records
from headrace_controller.core.configured import due_producer_key
from headrace_controller.core.records import Cluster
from headrace_controller.core.restore_record import RESTORING_KEY
from headrace_controller.core.store import Committed, CreatedAt, Put, Transaction, Unchanged
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.term import Term
from headrace_controller.engine.waiting import event_within
from headrace_controller.ports import LeaseLost, MetadataStore, StoreOutcomeUnknown, StoreUnavailable

_KEEPS_PER_LEASE: Final = 3
_CATCH_UP_MS: Final = 3_000

log = logger(__name__)

NewTerm = Callable[[TaskRunner, int, int], Term]
"""Builds a term from its task runner, the election key's create revision and its epoch."""


class Candidate:
    """This controller's part in elections."""

    def __init__(
        self,
        *,
        config: ControllerConfig,
        store: MetadataStore,
        follower: Follower,
        clock: Clock,
        endpoint: Callable[[], Endpoint],
        new_term: NewTerm,
        new_cluster: Callable[[], Cluster],
    ) -> None:
        self.term: Term | None = None
        """The present term; None while somebody else is active, or nobody."""
        self.terms = 0
        """Elections won by this process."""
        self._config = config
        self._store = store
        self._follower = follower
        self._clock = clock
        self._endpoint = endpoint
        self._new_term = new_term
        self._new_cluster = new_cluster
        self._lease = 0
        self._resigned = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def is_bidding(self) -> bool:
        """Whether the election key is this process's, or may be in a moment."""
        return self._lease != 0

    async def run(self) -> None:
        """Stand, serve, stand again, until cancelled or resigned."""
        failures = 0
        while not self._resigned.is_set():
            try:
                await self._stand()
                failures = 0
            except (StoreUnavailable, StoreOutcomeUnknown, LeaseLost) as error:
                failures += 1
                if failures == 1:
                    log.warning("cannot stand for election now", extra={"reason": str(error)})
                await event_within(self._resigned, self._clock, backoff_ms(failures))
        self._idle.set()

    async def resign(self, timeout_ms: int = 2_000) -> None:
        """Give the office up, so that another controller has it at once; best effort within ``timeout_ms``."""
        self.leave()
        if self.term is not None:
            await event_within(self._idle, self._clock, timeout_ms)

    def leave(self) -> None:
        """Stand no more, and end the present term; returns at once."""
        self._resigned.set()
        if self.term is not None:
            self.term.lost.set()

    async def _stand(self) -> None:
        await self._give_back()
        mirror = self._follower.mirror
        if mirror.half_restored:
            log.error("a restore of the metadata is being written, or was not finished: run it again if nobody does")
        await self._wait(
            lambda: mirror.revision > 0 and not mirror.mod_revision(records.CONTROLLER_KEY) and not mirror.half_restored
        )
        if self._resigned.is_set():
            return
        if not mirror.loaded:
            await self._create_cluster()
            if not mirror.loaded:
                return  # somebody restores one
        asked_ms = self._clock.monotonic_ms()
        self._lease = await self._store.grant_lease(self._config.lease_ttl_s)
        epoch = mirror.number(records.EPOCH_KEY, 0) + 1
        me = ActiveController(NodeId(self._config.node_id), epoch, self._endpoint())
        bid = Transaction(
            (
                CreatedAt(records.CONTROLLER_KEY, 0),
                CreatedAt(RESTORING_KEY, 0),
                Unchanged(records.CLUSTER_KEY, mirror.mod_revision(records.CLUSTER_KEY)),
                Unchanged(records.EPOCH_KEY, mirror.mod_revision(records.EPOCH_KEY)),
            ),
            (
                Put(records.CONTROLLER_KEY, records.encode(me), self._lease),
                Put(records.EPOCH_KEY, records.encode_number(epoch)),
            ),
        )
        outcome = await self._store.commit(bid)
        if isinstance(outcome, Committed):
            await self._serve(outcome.revision, epoch, asked_ms)
            return
        found = outcome.found  # somebody was faster, or a dying controller took the epoch: see it, then stand again
        await self._wait(lambda: all(mirror.mod_revision(k) >= v.mod_revision for k, v in found.items()), _CATCH_UP_MS)

    async def _serve(self, elected_at: int, epoch: int, asked_ms: float) -> None:
        mirror = self._follower.mirror
        await self._wait(lambda: mirror.revision >= elected_at)
        self.terms += 1
        async with TaskRunner() as tasks:
            term = self._new_term(tasks, elected_at, epoch)
            term.lease_until_ms = asked_ms + self._ttl_ms
            self._follower.on_step = term.image_moved
            self.term = term
            if self._resigned.is_set():
                term.lost.set()  # it won while it was leaving
            term.start()
            log.info("active controller", extra={"epoch": epoch, "revision": elected_at})
            try:
                await self._keep(term, tasks)
            finally:
                self.term = None
                term.lost.set()
                self._follower.on_step = lambda _: None
                log.info("no longer the active controller", extra={"epoch": epoch})
        if tasks.failure is not None:
            raise tasks.failure
        await self._give_back()

    async def _keep(self, term: Term, tasks: TaskRunner) -> None:
        """Renew the lease until it, or the term, is lost."""
        tasks.start(_relay(tasks.failed, term.lost), name="failure watch")
        while not await event_within(term.lost, self._clock, self._ttl_ms / _KEEPS_PER_LEASE):
            asked_ms = self._clock.monotonic_ms()
            try:
                async with limit_ms(self._ttl_ms / _KEEPS_PER_LEASE):
                    await self._store.keep_lease(self._lease)
                term.lease_until_ms = asked_ms + self._ttl_ms
            except LeaseLost as error:
                log.warning("the election lease is lost", extra={"reason": str(error)})
                self._lease = 0
                return
            except (StoreUnavailable, TimeoutError) as error:
                if self._clock.monotonic_ms() >= term.lease_until_ms:
                    log.warning("the election lease could not be kept", extra={"reason": str(error)})
                    return

    async def _give_back(self) -> None:
        if self._lease:
            await self._store.revoke_lease(self._lease)
            self._lease = 0

    async def _create_cluster(self) -> None:
        """
        Make the cluster. One that is set to ask who calls begins so, at the level from which nodes do: a node of an
        older version, which would let everybody in, is never registered.
        """
        access = self._config.access
        cluster, rows = self._new_cluster(), access.first_rows()
        rows |= due_producer_key(rows, access.mode, new_secret)
        if rows:
            cluster = replace(cluster, feature_level=max(cluster.feature_level, ACCESS.level))
        created = Transaction(
            (CreatedAt(records.CLUSTER_KEY, 0), CreatedAt(RESTORING_KEY, 0)),
            (
                Put(records.FORMAT_KEY, records.encode_number(records.FORMAT)),
                Put(records.CLUSTER_KEY, records.encode(cluster)),
                *records.access_operations(rows),
            ),
        )
        if isinstance(await self._store.commit(created), Committed):
            log.info("cluster created", extra={"cluster": self._config.cluster})
        mirror = self._follower.mirror
        await self._wait(lambda: mirror.loaded or mirror.half_restored)

    async def _wait(self, holds: Callable[[], bool], ms: int | None = None) -> None:
        waits = [
            asyncio.ensure_future(self._follower.until(holds, ms)),
            asyncio.ensure_future(self._resigned.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if waits[0].done() and not waits[0].cancelled() and (error := waits[0].exception()) is not None:
            log.debug("the mirror is late", extra={"reason": str(error)})
            assert isinstance(error, HeadraceError), "only the bound on the wait can end it"

    @property
    def _ttl_ms(self) -> float:
        return self._config.lease_ttl_s * 1_000


async def _relay(source: asyncio.Event, target: asyncio.Event) -> None:
    await source.wait()
    target.set()
