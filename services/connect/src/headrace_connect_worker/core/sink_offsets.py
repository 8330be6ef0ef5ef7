"""Offsets of a sink, as Kafka Connect shows them, as positions of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.records import TopicPartition
from headrace_connect_worker.core.refusals import BadCommand

TOPIC: Final = "kafka_topic"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"


def positions_of(
    offsets: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
) -> dict[TopicPartition, int | None]:
    """
    Of pairs ``{"kafka_topic", "kafka_partition"}`` and ``{"kafka_offset"}``; None: it is to be forgotten. Numbers may
    be texts.

    Raises:
        BadCommand: one cannot be.
    """
    return dict(_position(partition, offset) for partition, offset in offsets)


def _position(of: Mapping[str, Any], at: Mapping[str, Any] | None) -> tuple[TopicPartition, int | None]:
    topic, partition = of.get(TOPIC), _whole(of.get(PARTITION))
    if set(of) != {TOPIC, PARTITION} or not isinstance(topic, str) or partition is None:
        raise BadCommand(f'the partition of a sink is {{"{TOPIC}": "…", "{PARTITION}": 0}}, not {str(dict(of))[:200]}')
    if at is None:
        return TopicPartition(topic, partition), None
    offset = _whole(at.get(OFFSET))
    if set(at) != {OFFSET} or offset is None:
        raise BadCommand(f'the offset of a sink is {{"{OFFSET}": 0}}, not {str(dict(at))[:200]}')
    return TopicPartition(topic, partition), offset


def _whole(value: Any) -> int | None:
    """A number from 0, also as text, as Kafka takes it."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
