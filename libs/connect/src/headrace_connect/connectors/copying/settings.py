"""Settings of connectors that copy topics of another cluster; names are those of MirrorMaker where it has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from headrace_connect.settings import Importance, setting

CONFIGS_EXCLUDED: Final = (
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
"""Those that would change records on their way, or are about the source's own brokers."""
SERVERS: Final = "source.cluster.bootstrap.servers"


@dataclass(frozen=True, slots=True)
class CopySettings:
    """Of a connector that copies topics."""

    source_cluster_alias: str
    """A name of the source: letters, digits, ``_`` and ``-``. One connector has it."""
    source_cluster_bootstrap_servers: str
    """Brokers of the source: ``host:port``, several with commas."""
    topics: tuple[str, ...]
    """Which topics: names, or regular expressions that match a whole name. Those made later are copied too."""
    topics_exclude: tuple[str, ...] = (r"__.*", r".*\.offset-syncs")
    """Which of them not. Internal topics never are."""
    topics_missing: Literal["fail", "wait"] = "fail"
    """What happens when a plain name of ``topics`` is no topic, or a topic is deleted while it is copied: the connector
    fails, or goes on without it until it exists."""
    topic_prefix: str = ""
    """What the names of the copies begin with, as ``eu.``; empty: they have the names of the topics."""
    sync_topic_configs_enabled: bool = True
    """Whether settings of topics are copied too, again at each ``rescan.interval.ms``. What is not set at the source is
    taken back to its default."""
    config_properties_exclude: tuple[str, ...] = setting(CONFIGS_EXCLUDED, importance=Importance.LOW)
    """Settings of topics that are left alone."""
    offset_syncs_topic: str = setting("", importance=Importance.LOW)
    """Where it is written which record went where; empty: ``ALIAS.offset-syncs``."""
    offset_syncs_max: int = setting(100_000, low=100, high=10_000_000, importance=Importance.LOW)
    """Positions of groups can be translated that lie within so many of the last chunks of a partition."""
    batch_max_rows: int = setting(5_000, low=1, high=100_000, importance=Importance.LOW)
    """Records of a chunk, at most."""
    timeout_ms: int = setting(30_000, low=1_000, high=3_600_000, importance=Importance.LOW)
    """How long the source may be silent, or a topic unknown, before that is a failure."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", self.source_cluster_alias):
            raise ValueError(
                f"source.cluster.alias has 1 to 100 letters, digits, _ and -, not {self.source_cluster_alias!r}"
            )
        if not self.source_cluster_bootstrap_servers.strip():
            raise ValueError(f"{SERVERS} is empty; give at least one host:port")
        if not self.topics:
            raise ValueError("topics is empty; .* stands for all")
        for name, patterns in (("topics", self.topics), ("topics.exclude", self.topics_exclude)):
            for pattern in patterns:
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise ValueError(f"{name} has {pattern!r}, which is no regular expression: {error}") from None

    @property
    def syncs_topic(self) -> str:
        """Where it is written which record went where."""
        return self.offset_syncs_topic or f"{self.source_cluster_alias}.offset-syncs"
