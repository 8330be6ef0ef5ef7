"""
What the admin clients return about restored metadata and stray logs: frozen values, made from messages of the
``Admin`` service here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._told import Told, told

if TYPE_CHECKING:
    from headrace_proto.v1 import controller_pb2 as controller


@dataclass(frozen=True, slots=True)
class RestoreInfo(Told["controller.DescribeRestoreResponse"]):
    """The last restore of the cluster's metadata from a backup."""

    finished: bool
    """True: every log was compared, and partitions are led as ever. False: nobody leads yet."""
    expected_brokers: tuple[int, ...]
    """Brokers whose logs have to be seen before anybody leads."""
    missing_brokers: tuple[int, ...]
    """Those of them that have not joined since the restore: start them."""
    backup_revision: int
    backup_time_ms: int
    """When the backup was made, in ms since 1970."""
    restore_time_ms: int
    adopted_topics: int
    """Topics made after the backup, which were taken over from what brokers have."""
    empty_topics: int
    """Topics of the backup that no broker has anything of: deleted after it, or their disks are gone."""

    silent_brokers: tuple[int, ...] = ()
    """Those that are there and do not say what they have: look into their logs."""

    @staticmethod
    def of(answer: controller.DescribeRestoreResponse) -> RestoreInfo:
        """From the wire."""
        restore = answer.restore
        return told(
            RestoreInfo,
            answer,
            finished=restore.finished,
            expected_brokers=tuple(restore.expected),
            missing_brokers=tuple(restore.missing),
            backup_revision=restore.backup_revision,
            backup_time_ms=restore.backup_time_ms,
            restore_time_ms=restore.restore_time_ms,
            adopted_topics=restore.adopted_topics,
            empty_topics=restore.empty_topics,
            silent_brokers=tuple(answer.silent),
        )


@dataclass(frozen=True, slots=True)
class StrayLog:
    """One log on one broker."""

    broker: int
    partition: int
    log_end_offset: int
    damaged: bool
    """True: it lost acknowledged records."""


@dataclass(frozen=True, slots=True)
class StrayTopic:
    """Logs that brokers have and the cluster's metadata does not know."""

    topic_id: bytes
    """16 bytes."""
    name: str | None
    """As brokers remember it; None: none does."""
    partitions: int | None
    """As brokers remember it; None: none does."""
    logs: tuple[StrayLog, ...]
    """Ascending by partition, then by broker."""
    note: str | None
    """Why it is not a topic, where that is known."""

    @staticmethod
    def of(stray: controller.StrayTopic) -> StrayTopic:
        """From the wire."""
        known = stray.HasField("topic")
        return StrayTopic(
            stray.topic_id,
            stray.topic.name if known else None,
            stray.topic.partition_count if known else None,
            tuple(StrayLog(log.broker_id, log.partition, log.log_end_offset, log.damaged) for log in stray.logs),
            stray.note if stray.HasField("note") else None,
        )


@dataclass(frozen=True, slots=True)
class StrayList(Told["controller.DescribeRestoreResponse"]):
    """All strays of the cluster."""

    topics: tuple[StrayTopic, ...]
    silent_brokers: tuple[int, ...]
    """Brokers that did not answer; what they have is not known."""

    @staticmethod
    def of(answer: controller.DescribeRestoreResponse) -> StrayList:
        """From the wire."""
        topics = tuple(map(StrayTopic.of, answer.strays))
        return told(StrayList, answer, topics=topics, silent_brokers=tuple(answer.silent))
