"""
What one replica shows to somebody who reads what is committed, from its first offset to its end: batch by batch, from
the broker that is asked, leader or not; and how far each broker has compacted its logs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.errors import ErrorCode
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_verify.compaction_history import Began, Event, Kind, Log, Point, Read

READ_BYTES = 4 << 20
CONTROL_BIT, TRANSACTIONAL_BIT = 0x20, 0x10


class Unreadable(AssertionError):
    """A broker does not hand out what it has; the text says what it says."""


@dataclass(slots=True)
class Copy:
    """One replica as it was read."""

    start: int = 0
    end: int = 0
    batches: int = 0
    records: int = 0
    points: tuple[Point, ...] = ()


async def read_copy(stub: BrokerStub, broker: int, rack: str, topic_id: bytes, partition: int) -> Copy:
    """All a broker has that is decided, as far as it knows."""
    copy, points, at, number = Copy(), list[Point](), 0, 0
    call = stub.Fetch()
    while True:
        number += 1
        entry = pb.FetchPartition(
            topic_id=topic_id, partition=partition, fetch_offset=at, max_bytes=READ_BYTES, from_leader=True
        )
        ask = pb.FetchRequest(correlation_id=number, max_bytes=READ_BYTES, partitions=[entry], rack=rack)
        ask.isolation_level = pb.READ_COMMITTED
        await call.write(ask)
        answer = await asyncio.wait_for(call.read(), 10)
        if not isinstance(answer, pb.FetchResponse):
            raise Unreadable(f"broker {broker} ended the stream")
        if not answer.partitions:  # nothing is new: nothing more is there
            break
        [result] = answer.partitions
        if result.error == ErrorCode.OFFSET_OUT_OF_RANGE and not copy.batches and result.log_start_offset > at:
            at = copy.start = result.log_start_offset
            continue
        if result.error:
            raise Unreadable(f"broker {broker}, partition {partition}: {result.error} {result.message}")
        if not result.batches:
            break
        for batch in result.batches:
            header = read_header(batch)
            if header.base_offset > at:
                text = f"broker {broker}, partition {partition}: nothing between {at} and {header.base_offset}"
                raise Unreadable(text)
            copy.batches += 1
            copy.records += header.record_count
            points += [one for one in _points(batch, result.aborted) if one.offset >= at]
            at = header.next_offset
    await call.done_writing()
    copy.end = at
    copy.points = tuple(points)
    return copy


def _points(batch: bytes, aborted: Sequence[pb.AbortedTransaction]) -> Iterator[Point]:
    header = read_header(batch)
    if header.attributes & CONTROL_BIT or not header.record_count:
        return
    dropped = header.attributes & TRANSACTIONAL_BIT and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset < one.last_offset
        for one in aborted
    )
    if dropped:
        return
    found = decode_batch(batch)
    for offset, key, value, headers in zip(found.offsets(), found.keys(), found.values(), found.headers(), strict=True):
        number = dict(headers)["n"]
        assert key is not None
        assert number is not None
        yield Point(offset, bytes(key).decode(), int(number), value is None)


def as_read(process: int, log: Log, copy: Copy) -> list[Event]:
    """For the checker."""
    now = time.monotonic_ns()
    return [
        Began(process, log, copy.start, now, Kind.REPLICA, first=True),
        Read(process, log, copy.start, copy.end, copy.points, now),
    ]


# --- how far compaction is --------------------------------------------------------------------------------------


async def described(
    stubs: Mapping[int, BrokerStub], names: Mapping[bytes, str]
) -> dict[tuple[int, Log], pb.LogDescription]:
    """Broker and log → what it says of it, as far as brokers answer; ``names`` by topic id."""
    answers = await asyncio.gather(
        *(stub.DescribeLogs(pb.DescribeLogsRequest(), timeout=5) for stub in stubs.values()), return_exceptions=True
    )
    found: dict[tuple[int, Log], pb.LogDescription] = {}
    for broker, answer in zip(stubs, answers, strict=True):
        if isinstance(answer, pb.DescribeLogsResponse):
            for log in answer.logs:
                if log.topic_id in names:
                    found[broker, f"{names[log.topic_id]}-{log.partition}"] = log
    return found


def uncompacted(logs: Iterable[pb.LogDescription]) -> list[pb.LogDescription]:
    """Those with something that may be compacted now and is not yet."""
    return [
        log for log in logs if log.HasField("compaction") and log.compaction.cleaned_to < log.compaction.cleanable_to
    ]
