"""
What the cluster itself says of topics: partitions, log starts and ends, and whether they are compacted. Uses the SDK.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace import AdminClient, LogWatch
from headrace_common.core.errors import UnknownTopicOrPartition, unknown_topic
from headrace_common.core.ids import TopicPartition

_CLEANUP: Final = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class Held:
    """One partition."""

    partition: TopicPartition
    log_start: int
    log_end: int
    compacted: bool


def list_logs(servers: str, *, topics: Iterable[str], pattern: str | None, isolation: str) -> list[Held]:
    """
    All partitions of the topics, which are named or match as a whole; topics of the cluster's own never match.

    Raises:
        UnknownTopicOrPartition: a topic is not there, or none matches.
        HeadraceError: the cluster cannot be asked.
    """
    brokers = servers.split(",")
    settings: dict[str, Any] = {"isolation_level": isolation}
    with LogWatch(brokers, **settings) as watch, AdminClient(brokers) as admin:
        layouts = watch.topics()
        wanted = sorted(set(topics))
        if pattern is not None:
            wanted = sorted(name for name, each in layouts.items() if not each.internal and re.fullmatch(pattern, name))
        gone = [name for name in wanted if name not in layouts]
        if gone:
            raise unknown_topic(gone[0])
        if not wanted:
            raise UnknownTopicOrPartition(f"no topic matches {pattern!r}; `headrace topic list` shows the topics")
        compacted = {name: "compact" in admin.describe_configs(topic=name)[_CLEANUP].value for name in wanted}
        partitions = [TopicPartition(name, number) for name in wanted for number in range(layouts[name].partitions)]
        bounds = watch.bounds(partitions)
    return [Held(each, bounds[each].start, bounds[each].end, compacted[each.topic]) for each in partitions]


def log_starts(servers: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """
    Where logs begin by now.

    Raises:
        HeadraceError: a partition is gone, or the cluster cannot be asked.
    """
    with LogWatch(servers.split(",")) as watch:
        return {partition: bounds.start for partition, bounds in watch.bounds(list(partitions)).items()}
