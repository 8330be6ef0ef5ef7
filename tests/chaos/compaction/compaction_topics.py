"""The topics of these runs: one for each way in which old records go, all of them in a hurry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace_verify.compaction_facts import Policy

DELETE_RETENTION_MS: Final = 3_000
RETENTION_MS: Final = 5_000
SEGMENT_MS: Final = 1_500
LAG_MS: Final = 3_000
KEYS: Final = 40
"""Of each partition."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What it is made with, and what may go from it."""

    partitions: int
    policy: Policy
    configs: Mapping[str, str]

    @property
    def settings(self) -> dict[str, str]:
        """All of them."""
        return {"min.insync.replicas": "2", **self.configs}


def _compacted(**more: str) -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "segment.bytes": str(64 << 10),
        "segment.ms": str(SEGMENT_MS),
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": str(DELETE_RETENTION_MS),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


TOPICS: Final[Mapping[str, Topic]] = {
    "compacted": Topic(3, Policy(compacts=True, delete_retention_ms=DELETE_RETENTION_MS), _compacted()),
    "lagging": Topic(
        1,
        Policy(compacts=True, delete_retention_ms=DELETE_RETENTION_MS, compaction_lag_ms=LAG_MS),
        _compacted(min_compaction_lag_ms=str(LAG_MS)),
    ),
    "both": Topic(
        2,
        Policy(compacts=True, delete_retention_ms=DELETE_RETENTION_MS, deletes=True, retention_ms=RETENTION_MS),
        _compacted(cleanup_policy="compact,delete", retention_ms=str(RETENTION_MS)),
    ),
    "trimmed": Topic(  # by the load
        1,
        Policy(compacts=True, delete_retention_ms=DELETE_RETENTION_MS, deletes=True),
        _compacted(cleanup_policy="compact,delete", retention_ms="-1"),
    ),
    "deleted": Topic(
        2,
        Policy(compacts=False, deletes=True, retention_ms=RETENTION_MS),
        {"segment.bytes": str(32 << 10), "segment.ms": "1000", "retention.ms": str(RETENTION_MS)},
    ),
}
PARTITIONS: Final = [(name, number) for name, topic in TOPICS.items() for number in range(topic.partitions)]
POLICIES: Final = {f"{name}-{number}": TOPICS[name].policy for name, number in PARTITIONS}
EXPIRING: Final = ("both", "deleted", "trimmed")
GROUPED: Final = ("compacted", "both", "trimmed", "deleted")
"""What the group reads."""
SETTINGS: Final[Mapping[str, str]] = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "600",
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # Those of the coordinators' topics: they are compacted as hastily.
    "log.roll.ms": str(SEGMENT_MS),
    "log.cleaner.min.cleanable.ratio": "0",
    "log.cleaner.delete.retention.ms": str(DELETE_RETENTION_MS),
}
