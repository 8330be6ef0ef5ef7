"""
Everything of replication that is not about one partition: who copies from whom, ISR changes, the looks by the clock.

The image applier tells it which partitions are led, followed or neither; it owns the fetchers (one per leader) and
makes the replicate sessions (one per follower).
"""

from __future__ import annotations

import logging
from typing import Final

from headrace_broker.core.leadership import Assignment
from headrace_broker.core.partition_events import CheckpointAsked, FollowersChecked, PeersChanged
from headrace_broker.engine.isr_proposals import IsrProposals
from headrace_broker.engine.lost_batches import LostBatches
from headrace_broker.engine.replica_fetcher import ReplicaFetcher
from headrace_broker.engine.replicas import Replica, Replicas, Standing
from headrace_broker.engine.replicate_session import ReplicateSession, ReplicateSessions, Stored
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.throttle import Throttle
from headrace_broker.ports import Cluster, Leaders, LeaderStream
from headrace_common.core.configs import BROKER_SETTINGS, TopicConfig, min_isr_in_force
from headrace_common.core.errors import HeadraceError, NetworkFailed
from headrace_common.core.ids import NodeId
from headrace_common.core.image import ClusterImage, NodeKey, Partition, Role
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import TaskRunner

FOLLOWERS_CHECK_MS: Final = 1_000.0
CHECKPOINT_MS: Final = 5_000.0
CHECKPOINTS_AT_ONCE: Final = 256

_log = logging.getLogger(__name__)


class Replication:
    """One for the broker."""

    def __init__(
        self,
        replicas: Replicas,
        loop: StorageLoop,
        stored: Stored,
        cluster: Cluster,
        leaders: Leaders,
        clock: Clock,
        tasks: TaskRunner,
    ) -> None:
        self._replicas = replicas
        self._loop = loop
        self._stored = stored
        self._cluster = cluster
        self._leaders = leaders
        self._clock = clock
        self._tasks = tasks
        self._fetchers: dict[NodeId, ReplicaFetcher] = {}
        self._sessions = ReplicateSessions()
        self._peers: dict[NodeId, int] = {}
        self._throttle = Throttle(lambda: self._setting("follower.replication.throttled.rate"))
        self.proposals = IsrProposals(loop, cluster, clock, self.assignment)
        loop.effects.on_proposal = self.proposals.ask
        self.lost = LostBatches(replicas, loop, stored.store, cluster, clock, self.assignment, lambda: self._peers)
        stored.cold.on_lost = self.lost.on_lost_batch

    # --- as leader ----------------------------------------------------------------------------------------

    def assignment(self, partition: Partition, config: TopicConfig | None = None) -> Assignment:
        """What the image says of a partition, as its leader needs it; with ``config`` under settings to come."""
        replica = self._replicas.get(partition.id)
        if config is None and replica is not None:
            config = replica.core.config
        own = None if config is None else config.min_insync_replicas
        return Assignment(
            me=self._replicas.broker_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
            min_isr=min_isr_in_force(
                own, len(partition.replicas), adding=len(partition.adding), removing=len(partition.removing)
            ),
        )

    def session(self) -> ReplicateSession:
        """For a stream that a follower has opened."""
        return ReplicateSession(
            self._replicas,
            self._loop,
            self._stored,
            self._clock,
            self._sessions,
            lambda: self._setting("replica.fetch.wait.max.ms"),
        )

    def take_peers(self, image: ClusterImage) -> None:
        """Tell all partitions led here which brokers may be in sync now, if that has changed."""
        peers = {
            node.key.id: node.epoch for node in image.brokers() if not node.fenced and not node.in_controlled_shutdown
        }
        if peers == self._peers:
            return
        self._peers = peers
        event = PeersChanged(peers, self._clock.monotonic_ms())
        for replica in self._replicas.all():
            leading = replica.core.leading
            if leading is not None and leading.followers:
                self._loop.handle_now(replica, event)

    async def check_followers(self) -> None:
        """Look for followers that are late, for ever; partitions at rest are not touched."""
        while True:
            await self._clock.sleep_ms(FOLLOWERS_CHECK_MS)
            event = FollowersChecked(
                self._clock.monotonic_ms(), float(self._setting("replica.lag.time.max.ms")), self._cluster.session_ms
            )
            for replica in self._replicas.all():
                leading = replica.core.leading
                if leading is not None and not leading.at_rest:
                    self._loop.handle_now(replica, event)

    async def checkpoint(self) -> None:
        """Store high watermarks that have moved, for ever: after a restart nobody else may be there to ask."""
        while True:
            await self._clock.sleep_ms(CHECKPOINT_MS)
            moved = [
                replica
                for replica in self._replicas.all()
                if replica.core.high_watermark > replica.core.checkpoint
                and replica.standing is Standing.ONLINE
                and replica.metadata is not None
                and len(replica.metadata.replicas) > 1
            ]
            for at in range(0, len(moved), CHECKPOINTS_AT_ONCE):
                piece = moved[at : at + CHECKPOINTS_AT_ONCE]
                await self._loop.post_all((replica, CheckpointAsked(whole=False)) for replica in piece)

    # --- as follower --------------------------------------------------------------------------------------

    def follow(self, replica: Replica) -> None:
        """Copy the partition from the leader that its core follows; from nobody when it follows none."""
        following = replica.core.following
        for fetcher in self._fetchers.values():
            if replica.fetcher is fetcher and (following is None or following.leader != fetcher.leader):
                fetcher.forget(replica)
        if following is not None:
            self._fetcher(following.leader).follow(replica, following.epoch)

    def _fetcher(self, leader: NodeId) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(
                leader,
                self._replicas.broker_id,
                lambda: self._cluster.broker_epoch,
                self._connect,
                self._loop,
                self._stored.store,
                self._clock,
                self._throttle,
            )
            self._tasks.start(fetcher.run(), name=f"copy-from-{leader}")
        return fetcher

    async def _connect(self, leader: NodeId) -> LeaderStream:
        node = self._replicas.image.nodes.get(NodeKey(Role.BROKER, leader))
        if node is None:
            raise NetworkFailed(f"broker {leader} is not registered; it is tried again")
        return await self._leaders.open(leader, node.inside)

    # --- numbers ------------------------------------------------------------------------------------------

    @property
    def copied_partitions(self) -> int:
        return sum(len(fetcher) for fetcher in self._fetchers.values())

    @property
    def broken_streams(self) -> int:
        """Leaders whose stream is not open though there is something to copy."""
        return sum(len(fetcher) > 0 and not fetcher.connected for fetcher in self._fetchers.values())

    def _setting(self, name: str) -> int:
        image = self._replicas.image
        own = image.broker_configs.get(self._replicas.broker_id, {})
        return int(own.get(name, image.cluster_configs.get(name, BROKER_SETTINGS[name].default)))


class NoLeaders:
    """For brokers that stand alone: nobody can be reached."""

    async def open(self, broker: NodeId, endpoint: object) -> LeaderStream:
        error: HeadraceError = NetworkFailed(f"broker {broker} at {endpoint} cannot be reached: this broker is alone")
        raise error
