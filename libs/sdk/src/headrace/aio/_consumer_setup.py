"""What both consumers do with their arguments, and the values that they return. No decision about reading is here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace._core.record_runs import Deserializer, Deserializers
from headrace._descriptors import needing_descriptors
from headrace._setting_names import Servers, split
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import InvalidConfig, NoGroup, Rejected
from headrace.finding import ClusterAddress
from headrace.records import TopicPartition
from headrace.serializers import deserializer
from headrace.settings import read_settings, waits_as_told
from headrace_common.core.ids import check_topic_name
from headrace_common.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from headrace._transport.port import Transport
    from headrace.aio._group_steps import GroupSteps
    from headrace.aio._reading import Reading

PartitionLike = TopicPartition | tuple[str, int]


@dataclass(frozen=True, slots=True)
class ConsumerArguments:
    """What a consumer was made with, checked."""

    topics: tuple[str, ...]
    addresses: ClusterAddress
    settings: ConsumerSettings
    deserializers: Deserializers
    given: frozenset[str]
    """Settings that the application named."""


def read_arguments(
    topics: Sequence[Any],
    bootstrap_servers: Servers,
    group_id: str | None,
    settings: Mapping[str, Any],
) -> ConsumerArguments:
    """
    Check what the application gave.

    Raises:
        InvalidConfig: all settings that are wrong.
        InvalidTopic: no topic can have such a name.
    """
    if len(topics) == 1 and isinstance(topics[0], Mapping) and bootstrap_servers is None:  # as confluent-kafka has it
        bootstrap_servers, topics = topics[0], ()
    servers, given = split(bootstrap_servers, settings)
    if group_id is not None:
        given["group_id"] = group_id
    read = read_settings(ConsumerSettings, given)
    deserializers = Deserializers(
        deserializer_of("key_deserializer", read.key_deserializer),
        deserializer_of("value_deserializer", read.value_deserializer),
    )
    names = tuple(check_topic_name(name) for name in topics)
    return ConsumerArguments(names, read.find(servers), read, deserializers, frozenset(given))


@needing_descriptors()
def open_reading(
    arguments: ConsumerArguments, transport: Transport | None, signal: Callable[[], None]
) -> tuple[Reading, Transport, Clock]:
    """The engine, over the transport given or a gRPC one; connections are opened when they are first used."""
    from headrace.aio._reading import Reading

    if transport is None:
        transport = open_transport(arguments.addresses, arguments.settings, arguments.given)
    clock = SystemClock()
    return Reading(transport, arguments.settings, clock, arguments.deserializers, signal), transport, clock


def open_transport(addresses: Sequence[str], settings: ConsumerSettings, given: Collection[str]) -> Transport:
    """
    Over gRPC; connections are opened when they are first used.

    Args:
        given: settings that the application named.
    """
    with needing_descriptors():
        from headrace._transport.grpc import GrpcTransport

    timeout_ms = min(settings.request_timeout_ms, settings.default_api_timeout_ms)
    patient = waits_as_told("default_api_timeout_ms", given)
    return GrpcTransport(addresses, call_timeout_ms=timeout_ms, patient=patient, client_id=settings.client_id)


@needing_descriptors()
def open_group(
    arguments: ConsumerArguments, transport: Transport, reading: Reading, clock: Clock, notify: Callable[[], None]
) -> GroupSteps | None:
    """
    The membership, with connections of its own; None without a ``group_id``.

    Args:
        notify: called on any thread.
    """
    if arguments.settings.group_id is None:
        return None
    from headrace.aio._group import Group
    from headrace.aio._group_steps import GroupSteps

    return GroupSteps(Group(transport.sibling(), arguments.settings, clock, notify), reading, clock)


def deserializer_of(setting: str, given: Callable[[bytes], Any] | str | None) -> Deserializer | None:
    """
    The function itself, or the built-in one of that name. It is never given None.

    Raises:
        InvalidConfig: neither.
    """
    if given is None or callable(given):
        return given
    if given in ("str", "string"):
        return bytes.decode
    try:
        return deserializer(given)
    except InvalidConfig as error:
        raise InvalidConfig(f"{setting}: {error}") from None


def partitions_like(given: Iterable[PartitionLike]) -> list[TopicPartition]:
    """
    Partitions as the application wrote them: ``TopicPartition``s or pairs.

    Raises:
        Rejected: something else.
    """
    try:
        return [TopicPartition(*pair) for pair in given]
    except TypeError:
        raise Rejected(
            f"partitions are given as TopicPartition or (topic, number), several of them, not {given!r}"
        ) from None


def no_group(call: str) -> NoGroup:
    """What the calls of a group member raise without one."""
    return NoGroup(
        f"{call} needs a group: make the consumer with a group_id, under which positions are kept. Without one keep "
        "position() yourself, and seek() to it at the start"
    )


def reads_nothing() -> Rejected:
    """What a poll raises when there is nothing that could ever be read."""
    return Rejected(
        'this consumer reads nothing: name topics when it is made, Consumer("orders"), or call subscribe([...]) or '
        "assign([...]) first"
    )


def check_offset(offset: int) -> int:
    """
    An offset to seek to.

    Raises:
        Rejected: negative, or no whole number.
    """
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < 1 << 63:
        raise Rejected(f"an offset is a whole number from 0, not {offset!r}; see seek_to_beginning and seek_to_end")
    return offset


def check_most(name: str, given: int | None) -> None:
    """
    How much to hand out at most; None: the default.

    Raises:
        Rejected: below 1, or no whole number.
    """
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise Rejected(f"{name} is a whole number from 1, or None for the default, not {given!r}")


def check_timestamp(timestamp_ms: int) -> int:
    """
    A time to look for.

    Raises:
        Rejected: negative, or no whole number.
    """
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or not 0 <= timestamp_ms < 1 << 63:
        raise Rejected(f"a timestamp is in whole milliseconds since 1970 (UTC), not {timestamp_ms!r}")
    return timestamp_ms
