"""The part of ``headrace.aio.AdminClient`` that looks after brokers, other nodes, and replicas that move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.admin_certificate_types import NodeCertificates
from headrace.admin_cluster_types import ClusterStatus, Decommission, MovePlan, MoveProgress
from headrace.aio._admin_calls import AdminCalls
from headrace.errors import Rejected
from headrace_proto.v1 import admin_pb2, cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

ROLES: Final = ("broker", "controller", "coordinator", "admin")
"""Of nodes that are registered."""


class ClusterAdmin(AdminCalls):
    """Inherited by ``AdminClient``, which brings the calls."""

    async def describe_status(self) -> ClusterStatus:
        """How the cluster is, with a verdict in one line, and what is wrong."""
        request = admin_pb2.DescribeStatusRequest()
        return ClusterStatus.of(await self._call(lambda stub, timeout: stub.DescribeStatus(request, timeout=timeout)))

    async def describe_certificates(self, *, look: bool = False) -> list[NodeCertificates]:
        """
        Which certificates each registered node shows until when, whom it trusts, and what it refused; by name.

        Args:
            look: have nodes look at their files first; else it is as it was in the last 10 s.
        """
        request = admin_pb2.DescribeCertificatesRequest(look=look)
        answer = await self._call(lambda stub, timeout: stub.DescribeCertificates(request, timeout=timeout))
        return [NodeCertificates.of(node) for node in answer.nodes]

    async def describe_progress(self, *, measure_ms: int = 0) -> MoveProgress:
        """
        How far the partitions are whose replicas are being changed, and the throttle.

        Args:
            measure_ms: look twice this many ms apart, up to 10,000, to tell rates too.
        """
        request = admin_pb2.DescribeReassignmentsRequest(measure_ms=measure_ms)
        answer = await self._call(lambda stub, timeout: stub.DescribeReassignments(request, timeout=timeout))
        return MoveProgress.of(answer)

    async def rebalance(
        self, topics: Iterable[str] = (), *, validate_only: bool = False, throttle_bytes_per_s: int | None = None
    ) -> MovePlan:
        """
        Level replicas and leaders over all brokers and racks, with few moves; ``describe_progress`` tells how far it
        is, and ``elect_leaders`` is next.

        Args:
            topics: only these; by default all.
            validate_only: plan only.
            throttle_bytes_per_s: set the cluster's throttle before it starts; None: it stays as it is.
        """
        request = admin_pb2.RebalanceClusterRequest(
            topics=[topics] if isinstance(topics, str) else topics,
            validate_only=validate_only,
            throttle_bytes_per_s=throttle_bytes_per_s,
        )
        answer = await self._call(
            lambda stub, timeout: stub.RebalanceCluster(request, timeout=timeout), change=not validate_only
        )
        return MovePlan.of(answer)

    async def drain_broker(self, broker_id: int, *, drained: bool = True) -> int:
        """
        Keep leaders away from a broker, also after it restarts; with ``drained=False`` they may come back.

        Returns:
            How many partitions it still leads, because nobody else can. Ask again until it is 0.

        Raises:
            NotFound: no broker of this id is registered.
        """
        request = pb.DrainBrokerRequest(broker_id=broker_id, drained=drained)
        answer = await self._call(lambda stub, timeout: stub.DrainBroker(request, timeout=timeout))
        return int(answer.still_leading)

    async def decommission_broker(
        self, broker_id: int, *, validate_only: bool = False, throttle_bytes_per_s: int | None = None
    ) -> Decommission:
        """
        Drain a broker and move all it holds to others. Called again, it goes on with what is left; when nothing is,
        stop the broker, then ``unregister_node("broker", id)``.

        Args:
            validate_only: change nothing: what is left of it, and what would be moved.
            throttle_bytes_per_s: as in ``rebalance``.

        Raises:
            NotFound: no broker of this id is registered.
        """
        request = admin_pb2.DecommissionBrokerRequest(
            broker_id=broker_id, validate_only=validate_only, throttle_bytes_per_s=throttle_bytes_per_s
        )
        answer = await self._call(lambda stub, timeout: stub.DecommissionBroker(request, timeout=timeout))
        return Decommission.of(answer)

    async def unregister_node(self, role: str, node_id: int) -> None:
        """
        Forget a node that is away for good; of brokers, one that is stopped and holds nothing.

        Args:
            role: ``"broker"``, ``"controller"``, ``"coordinator"`` or ``"admin"``.

        Raises:
            NotFound: no such node is registered.
            Conflict: it is there, or a broker that holds replicas.
            Rejected: there is no such role.
        """
        if role not in ROLES:
            raise Rejected(f"there is no role {role!r}; it takes {', '.join(ROLES)}")
        request = pb.UnregisterNodeRequest(role=cluster_pb2.NodeRole.Value(role.upper()), id=node_id)
        await self._call(lambda stub, timeout: stub.UnregisterNode(request, timeout=timeout), change=True)
