"""How the cluster is now: the image that this process follows, and what the active controller says of itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from headrace_admin.core.guard import guard_of
from headrace_admin.core.status import Behind, State, Status, Unfinished, find_old_issuers, observe
from headrace_admin.core.transactions import Waiting
from headrace_admin.core.verdict import verdict
from headrace_admin.engine.absences import Absences
from headrace_admin.engine.accesses import Views
from headrace_admin.engine.certificates import NodeCertificates
from headrace_admin.engine.open_transactions import OpenTransactions
from headrace_admin.engine.stored_logs import StoredLogs
from headrace_admin.ports import Cluster, Controllers
from headrace_common.core.errors import HeadraceError, MetadataUnavailable
from headrace_common.core.ids import NodeId
from headrace_common.rpc.convert import node_key_from_proto
from headrace_common.runtime.access_gate import by_itself
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_proto.v1 import controller_pb2 as pb

_ASK_MS_MAX: Final = 3_000


@dataclass(frozen=True, slots=True)
class Judged:
    """A status and what it is called."""

    status: Status
    state: State
    verdict: str


class Statuses:
    """Stateless; any number of calls at one time."""

    def __init__(
        self,
        cluster: Cluster,
        controllers: Controllers,
        absences: Absences,
        transactions: OpenTransactions,
        stored: StoredLogs,
        certificates: NodeCertificates,
        views: Views,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._controllers = controllers
        self._transactions = transactions
        self._stored = stored
        self._certificates = certificates
        self._views = views
        self._clock = clock
        self.absences = absences

    async def now(self) -> Judged:
        """
        The status; also while no controller answers, from the last image. It is the same whoever asks.

        Raises:
            MetadataUnavailable: this process has never had an image.
        """
        with by_itself():
            (controller, reachable, behind), waiting, stored, restore, ending = await asyncio.gather(
                self._controller(), self._waiting(), self._stored.look(), self._restore(), self._certificates.ending()
            )
        image, view = self._cluster.image, self._views()
        if not image.cluster_id:
            raise MetadataUnavailable("nothing is known of the cluster yet: no controller has answered; start one")
        self.absences.look(image)
        away = self.absences.since_ms
        status = observe(
            image,
            controller=controller,
            store_reachable=reachable,
            away_since_ms=away,
            waiting=waiting,
            stored=stored,
            restore=restore,
            old_issuers=find_old_issuers(view.issuers, self._clock.now_ms()),
        )
        status = replace(status, ending=ending, behind=behind, guard=guard_of(view))
        return Judged(status, *verdict(status))

    async def _controller(self) -> tuple[NodeId | None, bool, tuple[Behind, ...]]:
        try:
            async with limit_ms(_ASK_MS_MAX):
                answer = await self._controllers.ask(lambda stub: stub.DescribeCluster, pb.DescribeClusterRequest())
        except (HeadraceError, TimeoutError):
            return None, False, ()
        active = answer.active_controller.id if answer.HasField("active_controller") else -1
        now_ms = int(self._clock.now_ms())
        behind = tuple(Behind(node_key_from_proto(one.node), now_ms - one.behind_ms) for one in answer.access_behind)
        return (NodeId(active) if active >= 0 else None), answer.metadata_store_reachable, behind

    async def _restore(self) -> Unfinished | None:
        try:
            async with limit_ms(_ASK_MS_MAX):
                answer = await self._controllers.ask(lambda stub: stub.DescribeRestore, pb.DescribeRestoreRequest())
        except (HeadraceError, TimeoutError):
            return None
        waits = answer.HasField("restore") and not answer.restore.finished
        if not waits:
            return None
        return Unfinished(tuple(map(NodeId, answer.restore.missing)), tuple(map(NodeId, answer.silent)))

    async def _waiting(self) -> Waiting:
        try:
            async with limit_ms(_ASK_MS_MAX):
                return await self._transactions.waiting()
        except (HeadraceError, TimeoutError):
            return Waiting(unasked=len(self._cluster.image.partitions))
