"""
What type checkers know of settings: the words that a setting takes, and the keyword arguments of each client.

Clients read settings with the classes of ``headrace.settings``, ``headrace.consumer_settings`` and
``headrace.aio.admin``, which say what each one means, its unit and its default. The dicts here have the same names and
types, for ``**settings`` and for your own functions::

    >>> from headrace import Producer
    >>> from headrace.setting_types import ProducerSettingsDict
    >>> settings: ProducerSettingsDict = {"acks": "all", "linger_ms": 20}
    >>> Producer(bootstrap, **settings).close()

Settings that are read at run time, and Kafka's names with dots, go into a ``dict[str, Any]``: they are checked when the
client is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NewType, Protocol, TypeAlias, TypedDict, runtime_checkable

if TYPE_CHECKING:
    from headrace._core.fetch_events import LogDiverged, PositionReset, TopicRecreated
    from headrace.delivery import DeliveredBatch
    from headrace.serializers import Serializer
    from headrace_common.core.assignors import MemberSubscription
    from headrace_common.core.secret import Secret

Acks: TypeAlias = Literal["all", "-1", "0", "1", -1, 0, 1]
CompressionType: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism: TypeAlias = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
GroupProtocol: TypeAlias = Literal["consumer", "classic"]
RemoteAssignor: TypeAlias = Literal["uniform", "range"]
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
SerializerName: TypeAlias = Literal["bytes", "string", "json", "int16", "int32", "int64", "float32", "float64", "uuid"]
DeserializerName: TypeAlias = Literal[SerializerName, "str"]

ByDuration = NewType("ByDuration", str)
"""``ByDuration("by_duration:PT1H")``: tells a type checker that the text is not a word written wrongly."""
AutoOffsetReset: TypeAlias = Literal["latest", "earliest", "none"] | ByDuration

Partitioner: TypeAlias = Callable[[str, Any, int], Any]
"""``f(topic, key, partitions)``; see ``headrace.bulk_partitioner`` for one that is given many keys."""


@runtime_checkable
class Assignor(Protocol):
    """
    An assignor of your own, for ``partition_assignment_strategy``. All members of a group need one of its name.

    It may also have ``cooperative = True``: members then keep what they hold while they join again, and what it moves
    from one member to another must be left out of one assignment, so that the old owner gives it up first.

    And it may have ``user_data(topics: Collection[str]) -> bytes``, which each member calls, in a thread, whenever it
    joins: what it returns, 1 MiB at most, the leader finds as ``user_data`` of that member.
    """

    name: str
    """1 to 249 characters; how members of a group find that they have the same."""

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]
    ) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """Member id -> topic -> partitions. ``partitions`` has the partition count of each topic."""
        ...


class ClientSettingsDict(TypedDict, total=False):
    """See ``headrace.settings.ClientSettings``."""

    client_id: str
    request_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    security_protocol: SecurityProtocol | None
    ssl_ca_location: str | None
    api_key: Secret | str | None
    api_key_file: str | None
    token_file: str | None
    username: str | None
    password: Secret | str | None
    password_file: str | None
    sasl_mechanism: Mechanism | None
    cert_file: str | None
    key_file: str | None


class DecidingSettingsDict(ClientSettingsDict, total=False):
    """Of ``PreparedTransactions`` and ``UnitOwner``; see ``headrace.settings.DecidingSettings``."""

    default_api_timeout_ms: int


class AdminSettingsDict(ClientSettingsDict, total=False):
    """See ``headrace.aio.admin.AdminSettings``."""

    default_api_timeout_ms: int


class ProducerSettingsDict(ClientSettingsDict, total=False):
    """See ``headrace.settings.ProducerSettings``; ``max_in_flight`` is its alias."""

    acks: Acks
    enable_idempotence: bool
    max_in_flight_requests_per_connection: int
    max_in_flight: int
    retries: int
    delivery_timeout_ms: int
    linger_ms: float
    batch_size: int
    batch_size_max: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    compression_type: CompressionType
    partitioner: Partitioner | None
    key_serializer: Serializer | SerializerName | None
    value_serializer: Serializer | SerializerName | None
    transactional_id: str | None
    transaction_timeout_ms: int
    owner_epoch: int | None
    on_delivery: Callable[[DeliveredBatch], object] | None
    trace: bool


class ReadingSettingsDict(ClientSettingsDict, total=False):
    """Of ``LogWatch`` and ``RangeReader``: settings of consumers without groups, resets and single records."""

    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    client_rack: str
    allow_auto_create_topics: bool
    check_crcs: bool
    isolation_level: IsolationLevel
    default_api_timeout_ms: int


class ConsumerKeywords(ReadingSettingsDict, total=False):
    """What ``Consumer`` takes beside ``group_id``, which is an argument of its own."""

    group_protocol: GroupProtocol
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: str | Sequence[str | Assignor]
    group_remote_assignor: RemoteAssignor | None
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: AutoOffsetReset
    on_position_reset: Callable[[PositionReset | LogDiverged | TopicRecreated], object] | None
    max_poll_records: int
    key_deserializer: Callable[[bytes], Any] | DeserializerName | None
    value_deserializer: Callable[[bytes], Any] | DeserializerName | None


class ConsumerSettingsDict(ConsumerKeywords, total=False):
    """See ``headrace.consumer_settings.ConsumerSettings``."""

    group_id: str | None
