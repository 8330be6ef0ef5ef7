"""
Moving replicas: plans from the image, their execution by the active controller, and how far they have come.

Nothing is kept here. A plan is made anew for every call from what is there then; who asks again after a broken
connection gets what is still to be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_admin.core.placement import BrokerPlace, PartitionName, Placed
from headrace_admin.core.plans import Move, Plan, evacuate, rebalance
from headrace_admin.core.progress import Extent, Held, Progress, progress_of
from headrace_admin.engine.administration import Administration
from headrace_common.core.errors import (
    Conflict,
    HeadraceError,
    Rejected,
    error_for,
    unknown_topic,
)
from headrace_common.core.ids import NodeId, PartitionId, TopicId
from headrace_common.core.image import ClusterImage, Node, Partition
from headrace_common.rpc.convert import partition_from_proto
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import admin_pb2, broker_pb2, cluster_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb

THROTTLE: Final = "follower.replication.throttled.rate"
MEASURE_MS_MAX: Final = 10_000
_CHUNK: Final = 1_000
_IMAGE_WAIT_MS: Final = 1_000.0
_PARTITIONS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Started:
    """A move, and its error when the controller refused it."""

    move: Move
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan, and what became of its moves; those of a dry run have no errors."""

    plan: Plan
    moves: tuple[Started, ...]


@dataclass(frozen=True, slots=True)
class Leaving:
    """How far a broker is from holding nothing."""

    outcome: Outcome
    drained: bool
    replicas_left: int
    leaders_left: int
    moving: int
    next_step: str


class Reassignments:
    """Any number of calls at one time on one event loop."""

    def __init__(self, administration: Administration, clock: Clock) -> None:
        self._admin = administration
        self._controllers = administration.controllers
        self._clock = clock

    # --- plans ----------------------------------------------------------------------------------------------------

    async def rebalance(
        self, topics: Sequence[str], *, validate_only: bool, throttle_bytes_per_s: int | None = None
    ) -> Outcome:
        """
        Level replicas and preferred leaders over all brokers that are there.

        Raises:
            UnknownTopicOrPartition: one of the topics does not exist.
            Conflict: partitions are being moved already, or a broker is away.
        """
        image = self._admin.cluster.image
        for name in topics:
            if image.topic(name) is None:
                raise unknown_topic(name)
        moving = sum(bool(p.adding or p.removing) for p in image.partitions.values())
        if moving:
            what = f"{moving:,} partition{' is' if moving == 1 else 's are'}"
            raise Conflict(
                f"{what} being moved already; wait until `headrace partition reassignments` shows none, or cancel them"
            )
        away = [n.key.id for n in image.brokers() if n.fenced]
        if away:
            raise Conflict(
                f"broker {', '.join(map(str, away))} is away, and balancing without it would have to be done again; "
                "start it, or decommission it first"
            )
        held = await self._placed(image, set(topics))
        plan = rebalance([_place(n) for n in image.brokers()], held)
        return await self._carried_out(image, plan, validate_only, throttle_bytes_per_s)

    async def decommission(
        self, broker_id: int, *, validate_only: bool, throttle_bytes_per_s: int | None = None
    ) -> Leaving:
        """
        Drain a broker and move what it holds to others; asked again, only what is still to be done.

        Raises:
            NotFound: no such broker.
            InvalidReplicationFactor: too few others are there.
        """
        self._admin.broker_known(broker_id)
        leaving = NodeId(broker_id)
        image = self._admin.cluster.image
        plan = evacuate([_place(n) for n in image.brokers()], await self._placed(image, set()), leaving)
        if not validate_only:
            await self._controllers.ask(
                lambda stub: stub.DrainBroker, pb.DrainBrokerRequest(broker_id=broker_id, drained=True)
            )
        outcome = await self._carried_out(image, plan, validate_only, throttle_bytes_per_s)
        if not validate_only:
            image = await self._admin.cluster.newer(image.revision, _IMAGE_WAIT_MS)
        return _leaving(image, leaving, outcome, validate_only)

    async def _carried_out(
        self, image: ClusterImage, plan: Plan, validate_only: bool, throttle_bytes_per_s: int | None
    ) -> Outcome:
        if validate_only or not plan.moves:
            return Outcome(plan, tuple(Started(m) for m in plan.moves))
        await self.set_throttle(throttle_bytes_per_s)
        wanted = [
            pb.Reassignment(topic_id=image.topic_ids[m.name.topic], partition=m.name.partition, replicas=list(m.after))
            for m in plan.moves
        ]
        results: list[pb.PartitionOutcome] = []
        for at in range(0, len(wanted), _CHUNK):
            request = pb.AlterReassignmentsRequest(reassignments=wanted[at : at + _CHUNK])
            results += (await self._controllers.ask(lambda stub: stub.AlterReassignments, request)).partitions
        return Outcome(plan, tuple(Started(m, _error_of(r)) for m, r in zip(plan.moves, results, strict=True)))

    async def _placed(self, image: ClusterImage, topics: set[str]) -> list[Placed]:
        found: list[tuple[PartitionName, Partition]] = []
        for topic in image.topics.values():
            if not topics or topic.name in topics:
                found += [(PartitionName(topic.name, p.id.partition), p) for p in image.partitions_of(topic)]
        held = await self._held([p for _, p in found]) if found else {}
        sizes = ((name, p, held.get((p.leader, p.id))) for name, p in found)
        return [Placed(name, _target(p), extent.size_bytes if extent else 0) for name, p, extent in sizes]

    # --- commands -------------------------------------------------------------------------------------------------

    async def alter(
        self, wanted: Sequence[pb.Reassignment], *, validate_only: bool, throttle_bytes_per_s: int | None = None
    ) -> list[pb.PartitionOutcome]:
        """
        Give partitions other replicas (none: cancel); outcomes in the order of ``wanted``.

        Raises:
            Rejected: none is named, more than 10,000, or one twice.
        """
        ids = {(r.topic_id, r.partition) for r in wanted}
        if not wanted or len(wanted) > _PARTITIONS_MAX:
            raise Rejected(f"name 1 to {_PARTITIONS_MAX} partitions, not {len(wanted)}")
        if len(ids) != len(wanted):
            raise Rejected("a partition is named twice; name each once")
        if not validate_only:
            await self.set_throttle(throttle_bytes_per_s)
        request = pb.AlterReassignmentsRequest(reassignments=wanted, validate_only=validate_only)
        return list((await self._controllers.ask(lambda stub: stub.AlterReassignments, request)).partitions)

    async def unregister(self, broker_id: int) -> None:
        """
        Forget a broker that holds nothing and is stopped.

        Raises:
            NotFound: no such broker.
            Conflict: it is there, or it holds replicas.
        """
        self._admin.broker_known(broker_id)
        image = self._admin.cluster.image
        held = sum(broker_id in p.replicas for p in image.partitions.values())
        if held:
            raise Conflict(
                f"broker {broker_id} holds {held} replicas; `headrace broker decommission {broker_id}` gives them to "
                "others"
            )
        if any(n.key.id == broker_id and not n.fenced for n in image.brokers()):
            raise Conflict(f"broker {broker_id} runs; stop it first, or it registers again")
        await self._controllers.ask(
            lambda stub: stub.UnregisterNode, pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=broker_id)
        )

    async def set_throttle(self, bytes_per_s: int | None) -> None:
        """
        Set the cluster's throttle; None: leave it, -1: none.

        Raises:
            InvalidConfig: out of bounds.
        """
        if bytes_per_s is None:
            return
        change = pb.AlterConfig(name=THROTTLE, op=pb.SET, value=str(bytes_per_s))
        if bytes_per_s < 0:
            change = pb.AlterConfig(name=THROTTLE, op=pb.DELETE)
        resource = pb.ConfigResource(type=pb.BROKER_CONFIG, name="")
        request = pb.IncrementalAlterConfigsRequest(
            resources=[pb.AlterConfigsResource(resource=resource, changes=[change])]
        )
        (result,) = (await self._controllers.ask(lambda stub: stub.IncrementalAlterConfigs, request)).results
        if result.error != errors_pb2.NONE:
            raise error_for(result.error, result.message)

    @property
    def throttle(self) -> int | None:
        """The cluster's throttle in bytes per second; None: none."""
        rate = int(self._admin.cluster.image.cluster_configs.get(THROTTLE, "-1"))
        return rate if rate >= 0 else None

    # --- progress -------------------------------------------------------------------------------------------------

    async def progress(self, partitions: Iterable[PartitionId] = (), *, measure_ms: int = 0) -> list[Progress]:
        """
        Reassignments under way, all or some, and how far they have come; with rates after ``measure_ms``.

        Raises:
            Rejected: ``measure_ms`` is out of bounds.
        """
        if not 0 <= measure_ms <= MEASURE_MS_MAX:
            raise Rejected(f"measure_ms takes 0 to {MEASURE_MS_MAX}, not {measure_ms}")
        wanted = set(partitions)
        under_way = [p for p in await self.under_way() if not wanted or p.id in wanted]
        before, begun = None, 0.0
        if measure_ms and under_way:
            begun = self._clock.monotonic_ms()
            before = await self._held(under_way)
            await self._clock.sleep_ms(measure_ms)
        held = await self._held(under_way) if under_way else {}
        elapsed_ms = self._clock.monotonic_ms() - begun if before is not None else 0.0
        present = {n.key.id for n in self._admin.cluster.image.brokers() if not n.fenced}
        return [progress_of(p, held, before, elapsed_ms, present=present) for p in under_way]

    async def under_way(self) -> list[Partition]:
        """Partitions whose replicas are being changed."""
        answer = await self._controllers.ask(lambda stub: stub.ListReassignments, pb.ListReassignmentsRequest())
        return [partition_from_proto(p) for p in answer.partitions]

    async def _held(self, partitions: Sequence[Partition]) -> Held:
        """What all brokers say of the logs of these topics; those that do not answer say nothing."""
        topic_ids = sorted({p.id.topic_id for p in partitions})
        request = broker_pb2.DescribeLogsRequest(topic_ids=topic_ids if len(topic_ids) <= _CHUNK else [])
        answer = await self._admin.describe_logs(admin_pb2.DescribeClusterLogsRequest(request=request))
        return {
            (NodeId(b.broker_id), PartitionId(TopicId(log.topic_id), log.partition)): Extent(
                log.size_bytes, log.log_start_offset, log.log_end_offset
            )
            for b in answer.brokers
            for log in b.logs.logs
        }


def _place(node: Node) -> BrokerPlace:
    takes = not (node.fenced or node.in_controlled_shutdown or node.drained)
    return BrokerPlace(node.key.id, node.rack, takes)


def _target(partition: Partition) -> tuple[NodeId, ...]:
    """The replicas it will have."""
    return tuple(b for b in partition.replicas if b not in partition.removing)


def _error_of(outcome: pb.PartitionOutcome) -> HeadraceError | None:
    return None if outcome.error == errors_pb2.NONE else error_for(outcome.error, outcome.message)


def _leaving(image: ClusterImage, broker: NodeId, outcome: Outcome, validate_only: bool) -> Leaving:
    held = [p for p in image.partitions.values() if broker in p.replicas]
    led = sum(p.leader == broker for p in held)
    moving = sum(broker in p.removing for p in held)
    drained = any(n.key.id == broker and n.drained for n in image.brokers())
    refused = sum(m.error is not None for m in outcome.moves)
    if refused:
        step = f"{refused} partitions could not be moved; their errors say why; then decommission it again"
    elif not held:
        step = f"broker {broker} holds nothing: stop it, then `headrace broker unregister {broker}`"
    elif validate_only and outcome.moves:
        step = f"`headrace broker decommission {broker}` starts it"
    else:
        step = f"wait: `headrace broker decommission {broker} --wait` shows how it goes on and says when it is done"
    return Leaving(outcome, drained or not validate_only, len(held), led, moving, step)
