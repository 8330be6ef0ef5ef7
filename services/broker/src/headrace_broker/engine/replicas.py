"""
The logs of this broker and what it may do with each; every RPC looks its partition up here.

Only the image applier adds, removes and changes the standing of a replica; only the storage loop drives its core.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from headrace_broker.core.partition import Partition
from headrace_broker.core.recovered import Damage
from headrace_broker.core.rows import FenceRow
from headrace_common.core.errors import (
    HeadraceError,
    LeaderNotAvailable,
    NotLeader,
    ReplicaDamaged,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import NO_NODE, NodeId, Offset, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage
from headrace_common.core.image import Partition as PartitionMetadata

ACCEPT_LOSS: Final = (
    "bring the disk back as it was, or accept the loss by setting unclean.leader.election.enable=true on the topic"
)


class Standing(Enum):
    """What a log on this disk is to the cluster."""

    ONLINE = "online"
    STRAY = "stray"
    """Not in the image: kept, not served."""
    DAMAGED = "damaged"
    """Lost acknowledged records: kept, never leads."""
    DELETING = "deleting"


class HighWatermarkWaiter(Protocol):
    """Something that waits for a partition: a fetch or a long poll."""

    def on_readable(self, replica: Replica, more_bytes: int) -> None:
        """More is readable (``more_bytes`` 0: something else changed; look again)."""
        ...


class FollowerWatcher(Protocol):
    """The leader's end of a follower's stream."""

    def on_grown(self, replica: Replica) -> None:
        """More of the log is written."""
        ...

    def on_shown(self, replica: Replica) -> None:
        """Its high watermark or its start has moved."""
        ...

    def on_reassigned(self, replica: Replica) -> None:
        """Its replicas may be others."""
        ...

    def on_lost(self, replica: Replica) -> None:
        """It is not led here any more, or in another epoch."""
        ...


class ProgressWatcher(Protocol):
    """The follower's end of a stream to a leader."""

    def on_progress(self, replica: Replica) -> None:
        """The log end or the written end has moved."""
        ...


@dataclass(slots=True, eq=False)
class Replica:
    """One log here, with its core and those who wait for it."""

    core: Partition
    standing: Standing
    topic: str = ""
    """Its name; empty while the image does not know it."""
    internal: bool = False
    """Whether its topic is the system's."""
    damage: Damage | None = None
    waiters: dict[HighWatermarkWaiter, None] = field(default_factory=dict)
    stable_waiters: dict[HighWatermarkWaiter, None] = field(default_factory=dict)
    """Those who wait for the last stable offset instead of the high watermark."""
    sessions: list[FollowerWatcher] = field(default_factory=list)
    """Followers that copy this log from here."""
    fetcher: ProgressWatcher | None = None
    """Who copies this log from its leader."""
    metadata: PartitionMetadata | None = None
    """What the image that was taken in last says of the partition."""

    @property
    def id(self) -> PartitionId:
        return self.core.id

    def waiting(self, *, stable: bool) -> dict[HighWatermarkWaiter, None]:
        """Who waits for the high watermark, or for the last stable offset."""
        return self.stable_waiters if stable else self.waiters

    @property
    def log_fields(self) -> dict[str, object]:
        """What a line of the service's log says of it."""
        return {"topic": self.topic, "partition": str(self.id)}

    def readable_end(self, *, stable: bool) -> Offset:
        """Where the log ends for those who read all that is committed, or only what is decided."""
        return self.core.last_stable if stable else self.core.high_watermark

    def wake_waiting(self, more_bytes: int, *, stable: bool = False) -> None:
        """Tell those who wait for the high watermark, or for the last stable offset, that it has moved."""
        for waiter in tuple(self.stable_waiters if stable else self.waiters):
            waiter.on_readable(self, more_bytes)

    def wake(self) -> None:
        """Tell all who wait to look again."""
        for waiter in (*self.waiters, *self.stable_waiters):
            waiter.on_readable(self, 0)

    def tell_followers(self) -> None:
        """Its image is newer: those that copy from it may count now."""
        for session in tuple(self.sessions):
            session.on_reassigned(self)

    def lose_followers(self) -> None:
        """Tell the followers that this is not their leader any more, or in another epoch."""
        for session in tuple(self.sessions):
            session.on_lost(self)


class Replicas:
    """All logs by partition, beside the image that says what they are."""

    def __init__(self, broker_id: NodeId) -> None:
        self.broker_id = broker_id
        self.image: ClusterImage = EMPTY_IMAGE
        self._by_id: dict[PartitionId, Replica] = {}
        self._by_topic: dict[TopicId, dict[int, Replica]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> tuple[Replica, ...]:
        return tuple(self._by_id.values())

    def of_topic(self, topic_id: TopicId) -> tuple[Replica, ...]:
        """The logs of one topic, whatever their standing."""
        return tuple(self._by_topic.get(topic_id, {}).values())

    @property
    def topic_ids(self) -> Collection[TopicId]:
        """The topics that have a log here; changes with them."""
        return self._by_topic.keys()

    def get(self, partition: PartitionId) -> Replica | None:
        """The log of this partition, whatever its standing."""
        return self._by_id.get(partition)

    def add(self, replica: Replica) -> None:
        """A log that was found or made."""
        assert replica.id not in self._by_id, f"{replica.id} has two logs"
        self._by_id[replica.id] = replica
        self._by_topic.setdefault(replica.id.topic_id, {})[replica.id.partition] = replica

    def remove(self, replica: Replica) -> None:
        """A log that was deleted."""
        del self._by_id[replica.id]
        of_topic = self._by_topic[replica.id.topic_id]
        del of_topic[replica.id.partition]
        if not of_topic:
            del self._by_topic[replica.id.topic_id]

    def get_leading(self, partition: PartitionId, epoch: int | None) -> Replica:
        """
        The replica, led by this broker in the epoch that the client believes in.

        Raises:
            HeadraceError: why it cannot be served here, and what to do.
        """
        replica = self._by_id.get(partition)
        if replica is None or replica.standing is not Standing.ONLINE or replica.core.leader_epoch is None:
            raise self._why_not(partition, replica)
        if epoch is not None:
            wrong = replica.core.check_epoch(epoch)
            if wrong is not None:
                raise wrong
        return replica

    def get_readable(self, partition: PartitionId, epoch: int | None) -> Replica:
        """
        The replica, led or followed by this broker in the epoch that the client believes in.

        Raises:
            HeadraceError: why it cannot be served here, and what to do.
        """
        replica = self._by_id.get(partition)
        if replica is None or replica.standing is not Standing.ONLINE or replica.core.known_epoch is None:
            raise self._why_not(partition, replica)
        wrong = replica.core.check_epoch(epoch, follower=True)
        if wrong is not None:
            raise wrong
        return replica

    def leader_of(self, partition: PartitionId) -> tuple[NodeId, int] | None:
        """Who leads, by the image, and in which epoch; None: not known or nobody."""
        known = self.image.partitions.get(partition)
        if known is None or known.leader == NO_NODE:
            return None
        return known.leader, known.leader_epoch

    def fence_of(self, partition: PartitionId) -> FenceRow | None:
        """What has set the log's fencing token, at the offset before its start if it is trimmed; None: nothing has."""
        replica = self._by_id.get(partition)
        fence = None if replica is None else replica.core.fences.newest
        if replica is None or fence is None:
            return None
        return FenceRow(max(fence.offset, Offset(replica.core.log_start - 1)), fence.token)

    def _why_not(self, partition: PartitionId, replica: Replica | None) -> HeadraceError:
        topic = self.image.topics.get(partition.topic_id)
        if topic is None:
            return UnknownTopicId(
                f"no topic has the id {partition.topic_id.hex()}; it was deleted, or is not known here yet:"
                " refresh metadata"
            )
        name = f"{topic.name}-{partition.partition}"
        known = self.image.partitions.get(partition)
        if known is None:
            return UnknownTopicOrPartition(
                f"topic {topic.name} has partitions 0 to {topic.partition_count - 1}, not {partition.partition}"
            )
        if replica is not None and replica.damage is not None:
            damage = replica.damage
            return ReplicaDamaged(
                f"{name} lost acknowledged records {damage.recovered_end} to {damage.evident_end - 1}"
                f" ({damage.reason}); {ACCEPT_LOSS}"
            )
        if known.leader == NO_NODE:
            return LeaderNotAvailable(f"{name} has no leader now; retry")
        if known.leader != self.broker_id:
            return NotLeader(f"broker {known.leader} leads {name}; refresh metadata and ask there")
        return NotLeader(f"this broker is not ready to lead {name} yet; retry")
