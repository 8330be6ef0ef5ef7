"""
Whether a batch of a client may be appended to a partition, by its header alone.

The produce path asks before a batch is queued. Nothing here looks at records: a batch is opaque behind its header.
"""

from __future__ import annotations

from typing import Final

from headrace_broker.core.coordination import KEY_CHARS_MAX
from headrace_common.core.batch import BatchHeader
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTxnState,
    RecordTooLarge,
    Rejected,
    UnsupportedVersion,
)

ACKS: Final = frozenset({-1, 0, 1})
SUPPORTED_MAGIC: Final = frozenset({2, 3})
TIMEOUT_MS_MAX: Final = 2**31 - 1

# Bits of ``attributes``; read as such because this is done for every batch.
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10


def check_from_producer(header: BatchHeader, config: TopicConfig, now_ms: int, transactional_id: str | None) -> None:
    """
    Check what a producer sent against the rules of its topic; ``now_ms`` is the wall clock.

    ``transactional_id`` is the request's; None: it has none.

    What a control batch may say is ``fences.token_from_client``'s to check.

    Raises:
        RecordTooLarge, UnsupportedVersion, InvalidRecord, InvalidTimestamp, InvalidTxnState, Rejected: with the rule
            that is broken.
    """
    if header.size > config.max_message_bytes:
        raise RecordTooLarge(
            f"the batch has {header.size} bytes; max.message.bytes of this topic is {config.max_message_bytes}"
        )
    if header.magic not in SUPPORTED_MAGIC:
        raise UnsupportedVersion(f"batches of magic {header.magic} are not known here; send magic 2 or 3")
    _check_kind(header)
    if transactional_id is not None or header.attributes & _TRANSACTIONAL:
        _check_transaction(header, transactional_id)
    _check_producer_fields(header)
    if not config.log_append_time:
        _check_timestamps(header, config, now_ms)


def _check_kind(header: BatchHeader) -> None:
    if header.attributes & _TRANSACTIONAL and header.control:
        raise InvalidRecord("the ends of transactions are written by the system only")
    if header.record_count < 1:
        raise InvalidRecord("the batch has no records; send at least one")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"the batch says {header.record_count} records and a last offset delta of {header.last_offset_delta};"
            " a producer's batch is dense"
        )


def _check_transaction(header: BatchHeader, transactional_id: str | None) -> None:
    if not header.attributes & _TRANSACTIONAL:
        raise Rejected("the request has a transactional id and the batch is not transactional; send it without one")
    if transactional_id is None:
        raise InvalidTxnState("the batch is transactional and the request has no transactional id; send it with one")
    if header.producer_id < 0:
        raise InvalidRecord("a transactional batch has the producer id and epoch of its transactional id")


def _check_producer_fields(header: BatchHeader) -> None:
    if header.producer_id < 0:
        if header.producer_id != -1 or header.base_sequence != -1:
            raise InvalidRecord("a batch without a producer id has producer id -1 and base sequence -1")
        return
    if header.producer_epoch < 0 or header.base_sequence < 0:
        raise InvalidRecord(
            f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence {header.base_sequence};"
            " both start from 0"
        )


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    if header.attributes & _LOG_APPEND_TIME:
        raise InvalidTimestamp("the batch claims LogAppendTime, but the topic has message.timestamp.type=CreateTime")
    if header.max_timestamp < header.base_timestamp or header.base_timestamp < -1:
        raise InvalidTimestamp(f"the batch says timestamps from {header.base_timestamp} to {header.max_timestamp}")
    ahead = header.max_timestamp - now_ms
    if ahead > config.timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {header.max_timestamp} is {ahead} ms ahead of the broker's clock;"
            f" message.timestamp.after.max.ms is {config.timestamp_after_max_ms}"
        )
    behind = now_ms - header.base_timestamp
    if header.base_timestamp >= 0 and behind > config.timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"timestamp {header.base_timestamp} is {behind} ms behind the broker's clock;"
            f" message.timestamp.before.max.ms is {config.timestamp_before_max_ms}"
        )


def check_request(acks: int, timeout_ms: int, entries: int, entries_max: int, transactional_id: str | None) -> None:
    """
    Check the part of a produce request that is not about one partition.

    Raises:
        Rejected: INVALID_REQUIRED_ACKS or INVALID_REQUEST.
    """
    if acks not in ACKS:
        raise Rejected(f"acks is {acks}; it must be -1 (all), 0 or 1", code=ErrorCode.INVALID_REQUIRED_ACKS)
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise Rejected(f"timeout_ms is {timeout_ms}; it must be 1 to {TIMEOUT_MS_MAX}")
    if not 1 <= entries <= entries_max:
        raise Rejected(f"the request has {entries} batches; 1 to {entries_max} are allowed")
    if transactional_id is None:
        return
    if not 1 <= len(transactional_id) <= KEY_CHARS_MAX:
        raise Rejected(f"a transactional id has 1 to {KEY_CHARS_MAX} characters, not {len(transactional_id)}")
    if acks != -1:
        text = f"acks is {acks}; with a transactional id it must be -1 (all), or what is committed could be lost"
        raise Rejected(text, code=ErrorCode.INVALID_REQUIRED_ACKS)
