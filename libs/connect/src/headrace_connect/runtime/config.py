"""What Kafka Connect lets users say of every connector, whatever its class; and of a process that runs one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.finding import ClusterAddress
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import in_ids
from headrace_connect.core.names import NAME_BYTES_MAX
from headrace_connect.core.source_commit import Boundary
from headrace_connect.settings import Importance, setting

_LOW = Importance.LOW
_ERRORS = "Error Handling"
_LONG = 2**53


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """Keys of sources and sinks."""

    name: str
    """Of the connector; unique in its cluster."""
    connector_class: str = setting(key="connector.class")
    """The connector: a name of ``headrace connect plugins``, ``package.module:Class``, or ``file.py:Class``."""
    tasks_max: int = setting(1, low=1, high=10_000)
    """At most so many tasks share the work."""
    key_converter: str = setting("json", key="key.converter")
    """How keys become bytes, and bytes keys: json, string, bytes, avro, protobuf, json-schema or arrow."""
    value_converter: str = setting("json", key="value.converter")
    """The same for values."""
    key_converter_settings: Mapping[str, str] = setting(prefix="key.converter.")
    """Of the converter of keys."""
    value_converter_settings: Mapping[str, str] = setting(prefix="value.converter.")
    """Of the converter of values."""
    header_converter: str = setting("simple", key="header.converter")
    """How what transforms put into headers becomes bytes: simple, string, json or bytes."""
    header_converter_settings: Mapping[str, str] = setting(prefix="header.converter.")
    """Of the converter of headers."""
    transforms: str = ""
    """What changes records on their way: names in order, with commas between."""
    transforms_settings: Mapping[str, str] = setting(prefix="transforms.")
    """Of each transform: ``transforms.NAME.type`` and its settings."""
    predicates: str = ""
    """What chooses records for transforms: names, with commas between."""
    predicates_settings: Mapping[str, str] = setting(prefix="predicates.")
    """Of each predicate: ``predicates.NAME.type`` and its settings."""
    allow_plain_secrets: bool = setting(False, importance=_LOW)
    """Whether secrets may stand in the configuration itself."""
    isolation: Literal["connector", "task"] = setting("connector", importance=_LOW)
    """On workers: whether the tasks of the connector share a process, or have one each."""
    task_memory_max: int = setting(2 << 30, low=0, high=_LONG, importance=_LOW)
    """On workers: a process with more memory than so many bytes for each of its tasks is restarted; 0: no limit."""

    errors_tolerance: Literal["none", "all"] = setting("none", group=_ERRORS)
    """What a record does that cannot be handled: ``none``: the task fails; ``all``: it becomes a dead letter."""
    errors_retry_timeout: int = setting(60_000, key="errors.retry.timeout", low=-1, high=_LONG, group=_ERRORS)
    """How long reading or writing is tried again before the task fails and is restarted, in ms; -1: for ever."""
    errors_retry_delay_max_ms: int = setting(60_000, low=1, high=_LONG, group=_ERRORS)
    """The longest wait between two tries, in ms."""
    errors_log_enable: bool = setting(False, group=_ERRORS)
    """Whether each record that cannot be handled is logged."""
    errors_deadletterqueue_topic_name: str = setting("", group=_ERRORS)
    """The topic of dead letters; empty: with ``errors.tolerance=all`` bad records are dropped."""
    errors_deadletterqueue_context_headers_enable: bool = setting(True, group=_ERRORS)
    """Whether dead letters have headers that say why."""
    errors_restart_max: int = setting(-1, low=-1, high=2**31 - 1, group=_ERRORS)
    """How often in a row a task is restarted that failed by the fault of something outside; -1: for ever."""

    def __post_init__(self) -> None:
        size = len(in_ids(self.name))
        if not 1 <= size <= NAME_BYTES_MAX:
            raise InvalidConfig(
                f"name has 1 to {NAME_BYTES_MAX} bytes as it stands in ids, percent-encoded, not {size}"
            )

    @property
    def converting(self) -> dict[str, str]:
        """The keys of converters, transforms and predicates, as they were given."""
        families = {
            "key.converter.": self.key_converter_settings,
            "value.converter.": self.value_converter_settings,
            "header.converter.": self.header_converter_settings,
            "transforms.": self.transforms_settings,
            "predicates.": self.predicates_settings,
        }
        return {
            "key.converter": self.key_converter,
            "value.converter": self.value_converter,
            "header.converter": self.header_converter,
            "transforms": self.transforms,
            "predicates": self.predicates,
            **{prefix + key: text for prefix, settings in families.items() for key, text in settings.items()},
        }


@dataclass(frozen=True, slots=True)
class SourceConfig(ConnectorConfig):
    """Keys of sources."""

    topic: str = ""
    """Where records go of which the connector does not say it."""
    exactly_once: bool = True
    """Whether records and positions are written in transactions; else records may come twice after a failure."""
    exactly_once_support: Literal["requested", "required"] = setting("requested", importance=_LOW)
    """``required``: a connector that cannot be exactly once is refused."""
    transaction_boundary: Boundary = setting(Boundary.INTERVAL)
    """Where transactions may end: behind each chunk, when the interval has passed, or where the connector says."""
    offset_flush_interval_ms: int = setting(1_000, low=0, high=600_000)
    """A transaction is committed after so long at the latest, in ms."""
    transaction_timeout_ms: int | None = setting(
        None, key="producer.override.transaction.timeout.ms", low=1_000, high=900_000, importance=_LOW
    )
    """How long a transaction may be open, in ms; if nothing is said, 10 s longer than ``offset.flush.interval.ms``."""
    offsets_storage_topic: str = ""
    """Where positions are; empty: where those of its Connect cluster are, ``connect-offsets``."""
    poll_interval_ms: int = setting(500, low=1, high=3_600_000)
    """How often a source that has no more is asked, in ms, unless it waits by itself."""
    rescan_interval_ms: int = setting(60_000, low=100, high=86_400_000)
    """How often a connector is asked whether there are other splits, in ms."""
    topic_creation_enable: bool = True
    """Whether topics are made that do not exist, with the cluster's defaults."""

    def __post_init__(self) -> None:
        super(SourceConfig, self).__post_init__()
        timeout_ms = self.transaction_timeout_ms
        if timeout_ms is not None and timeout_ms <= self.offset_flush_interval_ms:
            raise InvalidConfig(
                f"producer.override.transaction.timeout.ms ({timeout_ms}) has to be above offset.flush.interval.ms "
                f"({self.offset_flush_interval_ms})"
            )


@dataclass(frozen=True, slots=True)
class SinkConfig(ConnectorConfig):
    """Keys of sinks."""

    topics: tuple[str, ...] = ()
    """What is read, with commas between."""
    topics_regex: str = ""
    """Instead of ``topics``: all whose whole name matches, those made later too."""
    auto_offset_reset: Literal["earliest", "latest", "none"] = setting(
        "earliest", key="consumer.override.auto.offset.reset"
    )
    """Where a partition begins of which neither the target nor the group knows a position."""
    offset_flush_interval_ms: int | None = setting(None, low=0, high=3_600_000)
    """What was written is committed after so long at the latest, in ms; if nothing is said, as the connector wants."""

    def __post_init__(self) -> None:
        super(SinkConfig, self).__post_init__()
        if bool(self.topics) == bool(self.topics_regex):
            raise InvalidConfig("a sink needs topics or topics.regex, and not both")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Of a process that runs a connector."""

    bootstrap_servers: str | ClusterAddress | None = None
    """``host:port``, several with commas, or with what to show there; None: found as all clients find it."""
    group_id: str = "connect-cluster"
    """The Connect cluster that the process belongs to: two that run one connector of one cluster fence each other."""
    offset_storage_topic: str = "connect-offsets"
    """Where positions of sources are that name no topic for them."""
    transaction_timeout_ms: int = setting(10_000, low=1_000, high=900_000)
    """What a dead task left open is aborted after so long, unless its successor does it before, in ms."""
    default_api_timeout_ms: int = setting(60_000, low=1, high=3_600_000)
    """How long to wait for answers, in ms."""
