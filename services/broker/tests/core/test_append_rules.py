"""What a producer may send, by the header alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.core.append_rules import check_from_producer, check_request
from headrace_common.core.batch import BatchHeader, read_header
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import ErrorCode, HeadraceError

CONFIG = TopicConfig.effective({}, {})
HEADER = read_header(batch_of(3))


def code_of(header: BatchHeader, config: TopicConfig = CONFIG, transactional_id: str | None = None) -> ErrorCode:
    try:
        check_from_producer(header, config, NOW_MS, transactional_id)
    except HeadraceError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ErrorCode.NONE),
        ({"magic": 4}, ErrorCode.UNSUPPORTED_VERSION),
        ({"attributes": 0x20}, ErrorCode.NONE),
        ({"attributes": 0x30}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10}, ErrorCode.INVALID_TXN_STATE),
        ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
        ({"record_count": 2}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": -2}, ErrorCode.INVALID_RECORD),
        ({"base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}, ErrorCode.NONE),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"max_timestamp": NOW_MS + 3_600_000}, ErrorCode.NONE),
        ({"max_timestamp": NOW_MS + 3_600_001}, ErrorCode.INVALID_TIMESTAMP),
        ({"max_timestamp": NOW_MS - 1}, ErrorCode.INVALID_TIMESTAMP),
        ({"base_timestamp": -2}, ErrorCode.INVALID_TIMESTAMP),
        ({"base_timestamp": -1, "max_timestamp": -1}, ErrorCode.NONE),
    ],
)
def test_one_rule_at_a_time(changes: dict[str, int], code: ErrorCode) -> None:
    assert code_of(HEADER._replace(**changes)) is code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"attributes": 0x10, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0}, ErrorCode.NONE),
        ({"attributes": 0x10, "producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10, "producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10}, ErrorCode.INVALID_RECORD),
        ({}, ErrorCode.INVALID_REQUEST),
        ({"attributes": 0x20}, ErrorCode.INVALID_REQUEST),
        ({"attributes": 0x30, "producer_id": 1, "producer_epoch": 0}, ErrorCode.INVALID_RECORD),
    ],
)
def test_with_a_transactional_id(changes: dict[str, int], code: ErrorCode) -> None:
    assert code_of(HEADER._replace(**changes), transactional_id="t") is code


def test_the_largest_batch_just_fits() -> None:
    assert code_of(HEADER, replace(CONFIG, max_message_bytes=HEADER.size)) is ErrorCode.NONE
    assert code_of(HEADER, replace(CONFIG, max_message_bytes=HEADER.size - 1)) is ErrorCode.MESSAGE_TOO_LARGE


def test_old_records_are_refused_where_the_topic_says_so() -> None:
    config = replace(CONFIG, timestamp_before_max_ms=1_000)
    assert code_of(HEADER._replace(base_timestamp=NOW_MS - 1_000), config) is ErrorCode.NONE
    assert code_of(HEADER._replace(base_timestamp=NOW_MS - 1_001), config) is ErrorCode.INVALID_TIMESTAMP


def test_with_log_append_time_the_producers_clock_does_not_matter() -> None:
    config = replace(CONFIG, log_append_time=True)
    assert code_of(HEADER._replace(max_timestamp=NOW_MS * 2), config) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("acks", "timeout_ms", "partitions", "code"),
    [
        (-1, 1, 1, None),
        (2, 1, 1, ErrorCode.INVALID_REQUIRED_ACKS),
        (-2, 1, 1, ErrorCode.INVALID_REQUIRED_ACKS),
        (1, 0, 1, ErrorCode.INVALID_REQUEST),
        (1, -1, 1, ErrorCode.INVALID_REQUEST),
        (1, 1, 0, ErrorCode.INVALID_REQUEST),
        (1, 1, 10, None),
        (1, 1, 11, ErrorCode.INVALID_REQUEST),
    ],
)
def test_requests(acks: int, timeout_ms: int, partitions: int, code: ErrorCode | None) -> None:
    if code is None:
        check_request(acks, timeout_ms, partitions, 10, None)
        return
    with pytest.raises(HeadraceError) as caught:
        check_request(acks, timeout_ms, partitions, 10, None)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("acks", "transactional_id", "code"),
    [
        (-1, "t", None),
        (-1, "t" * 249, None),
        (-1, "t" * 250, ErrorCode.INVALID_REQUEST),
        (-1, "", ErrorCode.INVALID_REQUEST),
        (1, "t", ErrorCode.INVALID_REQUIRED_ACKS),
        (0, "t", ErrorCode.INVALID_REQUIRED_ACKS),
    ],
)
def test_requests_of_transactions(acks: int, transactional_id: str, code: ErrorCode | None) -> None:
    if code is None:
        check_request(acks, 1, 1, 10, transactional_id)
        return
    with pytest.raises(HeadraceError) as caught:
        check_request(acks, 1, 1, 10, transactional_id)
    assert caught.value.code is code
