"""
What the admin clients return about restored metadata and stray logs: frozen values, made from messages of the
``Admin`` service here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._told import Made, Told

if TYPE_CHECKING:
    from headrace_proto.v1 import controller_pb2 as controller  # noqa: F401 - in the bases


@dataclass(frozen=True, slots=True)
class RestoreInfo(
    Told["controller.DescribeRestoreResponse"],
    inside="restore",
    expected_brokers="restore.expected",
    missing_brokers="restore.missing",
    silent_brokers="silent",
):
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


@dataclass(frozen=True, slots=True)
class StrayLog(Made["controller.StrayLog"], broker="broker_id"):
    """One log on one broker."""

    broker: int
    partition: int
    log_end_offset: int
    damaged: bool
    """True: it lost acknowledged records."""


@dataclass(frozen=True, slots=True)
class StrayTopic(Made["controller.StrayTopic"], name="topic.name", partitions="topic.partition_count"):
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


@dataclass(frozen=True, slots=True)
class StrayList(Told["controller.DescribeRestoreResponse"], topics="strays", silent_brokers="silent"):
    """All strays of the cluster."""

    topics: tuple[StrayTopic, ...]
    silent_brokers: tuple[int, ...]
    """Brokers that did not answer; what they have is not known."""
