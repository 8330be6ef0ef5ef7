"""
Registration, heartbeats, fencing and leaving of nodes, for one term of the active controller.

Order of a registration, so that a crash between two steps loses nothing (the node asks again, every step can be
repeated): fence the old registration; take the node's replicas out of ISR and ELR where its logs are not proven;
write the new registration, fenced; unfence when the node has seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace_common.core.access.sessions import SESSION_KEY_BYTES
from headrace_common.core.errors import (
    Conflict,
    DuplicateRegistration,
    InconsistentClusterId,
    NotFound,
    NotRegistered,
    Rejected,
    StaleBrokerEpoch,
)
from headrace_common.core.features import too_old
from headrace_common.core.ids import NodeId, PartitionId, TopicId
from headrace_common.core.image import ClusterImage, Node, NodeKey, Partition, Role
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_controller.core import election, records
from headrace_controller.core.sessions import Heartbeat, Sessions, may_be_unfenced
from headrace_controller.core.store import Delete, Operation, Put, Unchanged
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.settling import Settling
from headrace_controller.engine.shards import Shards
from headrace_controller.engine.waiting import event_within
from headrace_controller.engine.writer import Decision, Writer
from headrace_controller.ports import NodeProbe, ProbeResult

_LEAVING_WAIT_MS: Final = 1_000
_NAMED_IN_LOG: Final = 20

Confirm = Callable[[NodeId, Sequence[TopicId], Sequence[PartitionId]], Awaitable[None]]
"""Confirms deletions of topics and of single logs in the name of a broker."""

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Joining:
    """What a node brings when it registers."""

    node: Node
    cluster_id: str | None = None
    """Of its data; None: its data directory is new, and so empty."""
    previous_epoch: int | None = None
    """Epoch of its last registration, when it stopped cleanly or is the same process."""
    damaged: frozenset[PartitionId] = frozenset()
    max_producer_id: int = -1
    """Highest in its logs; ids go on above it."""
    max_leader_epoch: int = -1
    """Highest in its logs; leader epochs go on above it."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A registration that is written."""

    cluster_id: str
    epoch: int
    revision: int


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a heartbeat is answered."""

    fenced: bool
    may_shut_down: bool


class Nodes:
    """All registered nodes during one term."""

    def __init__(
        self,
        writer: Writer,
        follower: Follower,
        settling: Settling,
        shards: Shards,
        sessions: Sessions,
        probe: NodeProbe,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._settling = settling
        self._shards = shards
        self._sessions = sessions
        self._probe = probe
        self._clock = clock
        self._one_by_one = asyncio.Lock()
        self._access = follower.mirror.image.access
        """The rows of which the sessions know that they are there."""
        for key, node in follower.mirror.image.nodes.items():
            sessions.open(key, node.epoch, clock.monotonic_ms())

    async def register(self, joining: Joining) -> Joined:
        """
        Write a new registration; fenced until a heartbeat shows that the node has seen it.

        Raises:
            Rejected: it claims numbers that no cluster reaches.
            InconsistentClusterId: the node's data belongs to another cluster.
            UnsupportedVersion: the cluster's feature level is above what the node knows.
            DuplicateRegistration: another living process has this id.
            HeadraceError: as ``Writer.decide``.
        """
        _check_claims(joining)
        _check_session_key(joining.node.session_key)
        image = self._follower.mirror.image
        if joining.cluster_id is not None and joining.cluster_id != image.cluster_id:
            raise _of_another_cluster(joining, image.cluster_id)
        _check_level(joining.node, image)
        old = image.nodes.get(joining.node.key)
        clean = old is not None and joining.previous_epoch == old.epoch
        again = old is not None and old.incarnation == joining.node.incarnation
        if joining.node.key.role is Role.BROKER and joining.cluster_id is None and not again:
            joining = replace(joining, damaged=self._list_held(joining.node.key.id))
        if old is not None and not clean:
            await self._refuse_second(old, joining.node)
        async with self._settling.turn:
            if old is not None:
                await self.fence(old.key, "it registers again", epoch=old.epoch)
            if joining.node.key.role is Role.BROKER:
                await self._unsettle(joining.node.key.id, joining.damaged, clean=clean)
        if joining.node.key.role is Role.COORDINATOR:
            await self._shards.settle()  # the new process must not find the epochs of the old one
        async with self._one_by_one:  # each takes the next epoch; side by side they would only conflict
            revision = await self._writer.decide(lambda: self._registration(joining))
        node = self._follower.mirror.image.nodes[joining.node.key]
        self._sessions.open(node.key, node.epoch, self._clock.monotonic_ms())
        log.info("node registered", extra={"peer": str(node.key), "epoch": node.epoch, "clean": clean})
        return Joined(image.cluster_id, node.epoch, revision)

    def behind(self) -> dict[NodeKey, float]:
        """See ``Sessions.behind``."""
        return self._sessions.behind(self._clock.monotonic_ms())

    def _note_access(self) -> None:
        image = self._follower.mirror.image
        if image.access is not self._access:
            self._access = image.access
            self._sessions.access_changed(image.revision, self._clock.monotonic_ms())

    async def heartbeat(self, heartbeat: Heartbeat) -> Vitals:
        """
        A node lives; unfence it or move its leaders away when it asks and may.

        Raises:
            NotRegistered, StaleBrokerEpoch: it has to register again.
            HeadraceError: as ``Writer.decide``.
        """
        node = self.check_epoch(heartbeat.key, heartbeat.epoch)
        level, key = heartbeat.feature_level_max, heartbeat.session_key
        if level > node.feature_level_max or key not in {b"", node.session_key}:
            _check_session_key(key)
            node = await self._complete(node, level, key)
        self._note_access()
        self._sessions.renew(heartbeat, self._clock.monotonic_ms())
        registered_at = self._follower.mirror.mod_revision(records.node_key(node.key))
        if may_be_unfenced(node, heartbeat, registered_at):
            node = await self._change(node.key, node.epoch, leaving=False)
            log.info("node unfenced", extra={"peer": str(node.key), "epoch": node.epoch})
        elif heartbeat.want_shutdown and not node.fenced and not node.in_controlled_shutdown:
            node = await self._change(node.key, node.epoch, leaving=True)
            log.info("node leaves", extra={"peer": str(node.key), "epoch": node.epoch})
        if not heartbeat.want_shutdown:
            return Vitals(node.fenced, may_shut_down=False)
        work = self._shards if node.key.role is Role.COORDINATOR else self._settling
        await event_within(work.settled, self._clock, _LEAVING_WAIT_MS)  # most need no second heartbeat
        return Vitals(node.fenced, self._nothing_depends_on(node))

    def check_epoch(self, key: NodeKey, epoch: int) -> Node:
        """
        The registration that a request speaks for.

        Raises:
            NotRegistered: there is none.
            StaleBrokerEpoch: there is a newer one, or the epoch is not known here.
        """
        node = self._follower.mirror.image.nodes.get(key)
        if node is None:
            raise NotRegistered(f"{key} is not registered; register first")
        if epoch != node.epoch:
            raise StaleBrokerEpoch(
                f"{key} speaks with epoch {epoch}, its registration has {node.epoch}; register again if it is yours"
            )
        return node

    async def drain(self, broker: NodeId, *, drained: bool) -> int:
        """
        Keep leaders away from a broker, or no longer; how many it leads when the others have taken theirs over.

        Raises:
            NotFound: it is not registered.
            HeadraceError: as ``Writer.decide``.
        """
        key = NodeKey(Role.BROKER, broker)

        def decision() -> Decision | None:
            node = self._follower.mirror.image.nodes.get(key)
            if node is None:
                raise NotFound(f"{key} is not registered; name one of the registered brokers")
            return None if node.drained is drained else self._write(replace(node, drained=drained))

        if await self._writer.decide(decision):
            log.info("broker drained" if drained else "broker no longer drained", extra={"peer": str(key)})
            self._settling.nodes_changed()
        await event_within(self._settling.settled, self._clock, _LEAVING_WAIT_MS)
        return sum(p.leader == broker for p in self._follower.mirror.image.partitions.values())

    async def fence(self, key: NodeKey, why: str, *, epoch: int) -> None:
        """Take a node out of service, if it is still registered under ``epoch``; its partitions follow."""

        def decision() -> Decision | None:
            node = self._follower.mirror.image.nodes.get(key)
            if node is None or node.fenced or node.epoch != epoch:
                return None
            return self._write(replace(node, fenced=True, in_controlled_shutdown=False))

        if await self._writer.decide(decision):
            log.warning("node fenced", extra={"peer": str(key), "epoch": epoch, "why": why})
            self._nodes_changed()

    async def fence_expired(self) -> None:
        for key in self._sessions.list_expired(self._clock.monotonic_ms()):
            node = self._follower.mirror.image.nodes.get(key)
            if node is None:
                self._sessions.close(key)
            elif not node.fenced:
                await self.fence(key, "it was silent for longer than its session", epoch=node.epoch)

    async def unregister(self, key: NodeKey, confirm: Confirm) -> None:
        """
        Forget a node for good; nobody waits any more for it to delete logs.

        Raises:
            NotFound: it is not registered.
            Conflict: it holds replicas, or it lives and is not leaving.
        """

        def decision() -> Decision:
            mirror = self._follower.mirror
            node = mirror.image.nodes.get(key)
            if node is None:
                raise NotFound(f"{key} is not registered; nothing is to be removed")
            leaving = node.in_controlled_shutdown and key.role is not Role.BROKER
            if not node.fenced and not leaving:
                raise Conflict(f"{key} lives; stop it first")
            if key.role is Role.BROKER:
                held = sum(key.id in p.replicas for p in mirror.image.partitions.values())
                if held:
                    raise Conflict(f"{key} holds {held} replicas; delete their topics or move the replicas away first")
            name = records.node_key(key)
            operations = (Delete(name), Put(records.REMOVAL_KEY, records.encode_number(node.epoch)))
            return Decision(operations, (Unchanged(name, mirror.mod_revision(name)),))

        decision()  # refuse before anything is written
        if key.role is Role.BROKER:
            image = self._follower.mirror.image
            await confirm(key.id, list(image.deletions), list(image.removals))
        await self._writer.decide(decision)
        self._sessions.close(key)
        log.info("node unregistered", extra={"peer": str(key)})

    async def _refuse_second(self, old: Node, new: Node) -> None:
        if old.fenced or old.incarnation == new.incarnation:
            return
        if await self._probe.probe(old) is ProbeResult.SAME:
            raise DuplicateRegistration(
                f"{old.key} lives already, at {old.grpc}; give this process another id, or stop that one first"
            )

    def _list_held(self, broker: NodeId) -> frozenset[PartitionId]:
        """All its logs: they were on a disk that is gone."""
        held = (p for p in self._follower.mirror.image.partitions.values() if broker in p.replicas)
        return frozenset(p.id for p in held)

    async def _unsettle(self, broker: NodeId, damaged: frozenset[PartitionId], *, clean: bool) -> None:
        def step(partition: Partition) -> Partition:
            brokers, rules = self._settling.brokers(), self._settling.rules_of(partition)
            hurt = partition.id in damaged
            return election.apply_registration(partition, broker, brokers, rules, clean=clean, damaged=hurt)

        held = [p for p in self._follower.mirror.image.partitions.values() if broker in p.replicas]
        await self._settling.bring(held, step)
        if damaged:
            some = sorted(map(str, damaged))[:_NAMED_IN_LOG]
            extra = {"broker": broker, "logs": len(damaged), "partitions": some}
            log.error("replicas are not what was acknowledged; they are copied again", extra=extra)

    def _registration(self, joining: Joining) -> Decision:
        mirror = self._follower.mirror
        _check_level(joining.node, mirror.image)
        epoch = max(mirror.number(records.EPOCH_KEY, 0), joining.previous_epoch or 0) + 1
        old = mirror.image.nodes.get(joining.node.key)
        drained = old is not None and old.drained
        node = replace(joining.node, epoch=epoch, fenced=True, in_controlled_shutdown=False, drained=drained)
        counted = Put(records.EPOCH_KEY, records.encode_number(epoch))
        compared = (records.EPOCH_KEY, records.CLUSTER_KEY)  # the latter: the level may be rising just now
        compares = [Unchanged(key, mirror.mod_revision(key)) for key in compared]
        operations: list[Operation] = [counted]
        for key, number in self._forgotten(joining):
            operations.append(Put(key, records.encode_number(number)))
            compares.append(Unchanged(key, mirror.mod_revision(key)))
        written = self._write(node)
        return Decision((*written.operations, *operations), (*written.compares, *compares))

    def _forgotten(self, joining: Joining) -> list[tuple[str, int]]:
        """Counters that a broker's logs have passed: the metadata was restored from before, and goes on above."""
        mirror = self._follower.mirror
        raised = []
        if joining.max_producer_id >= mirror.number(records.PRODUCER_KEY, records.PRODUCER_FIRST):
            raised.append((records.PRODUCER_KEY, joining.max_producer_id + 1))
        known = max((p.leader_epoch for p in mirror.image.partitions.values()), default=-1)
        if joining.max_leader_epoch > max(known, mirror.number(records.LEADER_EPOCH_KEY, -1)):
            raised.append((records.LEADER_EPOCH_KEY, joining.max_leader_epoch))
        return raised

    async def _complete(self, node: Node, level: int, session_key: bytes) -> Node:
        """Write what the registration lacks: an older controller left it out, or the node had none yet."""

        def decision() -> Decision | None:
            now = self.check_epoch(node.key, node.epoch)
            level_max = max(level, now.feature_level_max)
            new = replace(now, feature_level_max=level_max, session_key=session_key or now.session_key)
            return None if new == now else self._write(new)

        await self._writer.decide(decision)
        return self.check_epoch(node.key, node.epoch)

    async def _change(self, key: NodeKey, epoch: int, *, leaving: bool) -> Node:
        def decision() -> Decision | None:
            node = self.check_epoch(key, epoch)
            new = replace(node, fenced=False, in_controlled_shutdown=leaving)
            return None if new == node else self._write(new)

        await self._writer.decide(decision)
        self._nodes_changed()
        return self._follower.mirror.image.nodes[key]

    def _nodes_changed(self) -> None:
        self._settling.nodes_changed()
        self._shards.changed()

    def _write(self, node: Node) -> Decision:
        key = records.node_key(node.key)
        return Decision((Put(key, records.encode(node)),), (Unchanged(key, self._follower.mirror.mod_revision(key)),))

    def _nothing_depends_on(self, node: Node) -> bool:
        if node.fenced or node.key.role not in {Role.BROKER, Role.COORDINATOR}:
            return True
        if node.key.role is Role.COORDINATOR:
            return node.in_controlled_shutdown and self._shards.gave_up_by(node.key.id)
        image = self._follower.mirror.image
        if not node.in_controlled_shutdown or not self._settling.settled.is_set():
            return False
        if any(p.leader == node.key.id for p in image.partitions.values()):
            return False
        moved_at = self._find_newest_move(image.partitions.values(), node.key.id)
        others = [n for n in image.brokers() if not n.fenced and not n.in_controlled_shutdown]
        return all(self._sessions.image_revision(n.key) >= moved_at for n in others)

    def _find_newest_move(self, partitions: Iterable[Partition], broker: NodeId) -> int:
        """Newest revision of a partition that another broker leads and this one holds; 0: there is none."""
        mirror = self._follower.mirror
        held = (p.id for p in partitions if broker in p.replicas and not p.offline)
        return max((mirror.mod_revision(records.partition_key(i)) for i in held), default=0)


def _of_another_cluster(joining: Joining, ours: str) -> InconsistentClusterId:
    theirs = (joining.cluster_id or "")[:60]
    log.error(
        "a node with another cluster's data was refused: was etcd emptied, and a new cluster made where one was?",
        extra={"peer": str(joining.node.key), "its_cluster": theirs, "cluster": ours},
    )
    return InconsistentClusterId(
        f"the data of {joining.node.key} belongs to cluster {theirs}, this is {ours}. If etcd lost its data and a new "
        f"cluster was made by that, restore a backup of cluster {theirs}; else connect this node to its own cluster. "
        "An empty data directory gives up every record in this one"
    )


def _check_level(node: Node, image: ClusterImage) -> None:
    if node.feature_level_max < image.feature_level:
        raise too_old(f"{node.key} ({node.version or 'an older version'})", node.feature_level_max, image.feature_level)


def _check_session_key(key: bytes) -> None:
    if len(key) not in {0, SESSION_KEY_BYTES}:
        raise Rejected(f"session_key has {len(key)} bytes; it has {SESSION_KEY_BYTES}, or none")


def _check_claims(joining: Joining) -> None:
    """Counters go on above what a node claims, so a broken claim must not use them up for ever."""
    claims = (
        ("previous_epoch", joining.previous_epoch or 0, 0, 2**48),
        ("max_producer_id", joining.max_producer_id, -1, 2**62),
        ("max_leader_epoch", joining.max_leader_epoch, -1, 2**30),
        ("feature_level_max", joining.node.feature_level_max, 0, 2**15),
    )
    wrong = [
        f"{name} takes {low} to {high}, not {claim}" for name, claim, low, high in claims if not low <= claim <= high
    ]
    if wrong:
        raise Rejected(f"{joining.node.key} cannot register: {'; '.join(wrong)}; is its data directory damaged?")
