"""
Every option that has a name of its own: how it is read, and for which kind of query it is. What begins with ``kafka.``
is in ``kafka_settings``. Called by ``options``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from headrace_spark.core.offsets import EXAMPLE
from headrace_spark.core.option_values import (
    INT_MAX,
    Reader,
    boolean,
    choice,
    duration_ms,
    partition_lists,
    partition_numbers,
    pattern,
    secret,
    text,
    topic_name,
    topic_names,
    whole,
)


class Mode(Enum):
    """What a query does with the topic."""

    READ_BATCH = "spark.read"
    READ_STREAM = "spark.readStream"
    WRITE_BATCH = "DataFrame.write"
    WRITE_STREAM = "DataFrame.writeStream"

    @property
    def writes(self) -> bool:
        """Whether records go to the cluster."""
        return self in WRITES

    @property
    def streams(self) -> bool:
        """Whether the query goes on."""
        return self in (Mode.READ_STREAM, Mode.WRITE_STREAM)


READS: Final = frozenset({Mode.READ_BATCH, Mode.READ_STREAM})
WRITES: Final = frozenset({Mode.WRITE_BATCH, Mode.WRITE_STREAM})
BATCH: Final = frozenset({Mode.READ_BATCH})
STREAM: Final = frozenset({Mode.READ_STREAM})
OWNER_PREFIX_LENGTH_MAX: Final = 150
TASK_KEY_MS_MIN: Final = 600_000
TASK_KEY_MS_MAX: Final = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Known:
    """One option."""

    name: str
    read: Reader
    modes: frozenset[Mode] = READS
    ignored: frozenset[Mode] = frozenset()
    """Where it is accepted with a warning, as in Spark."""
    instead: str = ""
    """What to use where it is for something else."""


_TIMES_EXAMPLE: Final = '{"topicA":{"0":1000,"1":1000}}'
_NOT_IN_STREAMS: Final = "a streaming query has no end"


def _offsets(value: str) -> Any:
    word = value.strip().lower()
    return word if word in ("earliest", "latest") else partition_numbers(value, EXAMPLE, -2)


def _times(value: str) -> Any:
    return partition_numbers(value, _TIMES_EXAMPLE, 0)


def _task_key_lifetime(value: str) -> int:
    found = duration_ms(value)
    if not TASK_KEY_MS_MIN <= found <= TASK_KEY_MS_MAX:
        raise ValueError("takes a time from 10m to 7d")
    return found


def _owner(value: str) -> str:
    found = text(value)
    if "/" in found or len(found) > OWNER_PREFIX_LENGTH_MAX:
        raise ValueError(f"takes a name of 1 to {OWNER_PREFIX_LENGTH_MAX} characters without '/'")
    return found


OPTIONS: Final = (
    Known("clusterId", text, READS | WRITES),
    Known("headrace.token", secret, READS | WRITES),
    Known("headrace.tokenFile", text, READS | WRITES),
    Known("headrace.caFile", text, READS | WRITES),
    Known("taskKeyLifetime", _task_key_lifetime, READS | WRITES),
    Known("assign", partition_lists, instead="'topic' names where to write"),
    Known("subscribe", topic_names, instead="'topic' names where to write"),
    Known("subscribePattern", pattern, instead="'topic' names where to write"),
    Known("startingOffsets", _offsets),
    Known("startingTimestamp", whole(0)),
    Known("startingOffsetsByTimestamp", _times),
    Known("startingOffsetsByTimestampStrategy", choice("error", "latest")),
    Known("endingOffsets", _offsets, BATCH, instead=_NOT_IN_STREAMS),
    Known("endingTimestamp", whole(0), BATCH, instead=_NOT_IN_STREAMS),
    Known("endingOffsetsByTimestamp", _times, BATCH, instead=_NOT_IN_STREAMS),
    Known("failOnDataLoss", boolean),
    Known("maxOffsetsPerTrigger", whole(1), ignored=BATCH),
    Known("minOffsetsPerTrigger", whole(1), ignored=BATCH),
    Known("maxTriggerDelay", duration_ms, ignored=BATCH),
    Known("minPartitions", whole(1, INT_MAX)),
    Known("maxRecordsPerPartition", whole(1)),
    Known("maxTasks", whole(1, INT_MAX)),
    Known("groupIdPrefix", text),
    Known("includeHeaders", boolean, READS | WRITES),
    Known("kafkaConsumer.pollTimeoutMs", whole(1)),
    Known("fetchOffset.numRetries", whole(0), ignored=READS),
    Known("fetchOffset.retryIntervalMs", whole(0), ignored=READS),
    Known("longPollMs", whole(0, 300_000), STREAM, instead="only streaming queries wait for records"),
    Known("topic", topic_name, WRITES, instead="'subscribe' names what to read"),
    Known("transactional", boolean, WRITES, instead="'kafka.isolation.level' says what is read"),
    Known("transactionalId", _owner, WRITES, instead="'groupIdPrefix' names a reading query"),
)
BY_NAME: Final = {known.name.lower(): known for known in OPTIONS}
