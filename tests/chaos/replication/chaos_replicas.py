"""Whether all replicas of a topic hold the same bytes up to the high watermark: read from each broker and compared."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.finding import ClusterAddress
from headrace.securing import security_of
from headrace_common.core.batch import read_header
from headrace_common.rpc.channels import open_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

READ_BYTES = 4 << 20


class Unreadable(AssertionError):
    """A broker does not hand out what it has; the text says what it says."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica as it was read."""

    broker: int
    partition: int
    log_start: int
    end: int
    """The high watermark it knew."""
    digest: str
    batches: tuple[tuple[int, int], ...]
    """Base offset and leader epoch of each, for the text of a difference."""


async def read_copy(stub: BrokerStub, broker: int, rack: str, topic_id: bytes, partition: int) -> Copy:
    """All a broker has below the high watermark it knows."""
    digest, at, start, end = hashlib.sha256(), 0, 0, -1
    batches: list[tuple[int, int]] = []
    call = stub.Fetch()
    number = 0
    while at != end:
        number += 1
        entry = pb.FetchPartition(
            topic_id=topic_id, partition=partition, fetch_offset=at, max_bytes=READ_BYTES, from_leader=True
        )
        ask = pb.FetchRequest(
            correlation_id=number, min_bytes=0, max_wait_ms=0, max_bytes=READ_BYTES, partitions=[entry], rack=rack
        )
        await call.write(ask)
        answer = await asyncio.wait_for(call.read(), 10)
        if not isinstance(answer, pb.FetchResponse):
            raise Unreadable(f"broker {broker} ended the stream")
        if not answer.partitions:  # nothing is new: nothing more is there
            break
        [result] = answer.partitions
        if result.error:
            raise Unreadable(f"broker {broker}, partition {partition}: {result.error} {result.message}")
        start, end = result.log_start_offset, result.high_watermark
        for batch in result.batches:
            header = read_header(batch)
            digest.update(batch)
            batches.append((header.base_offset, header.leader_epoch))
            at = header.next_offset
        if not result.batches:
            break
    await call.done_writing()
    return Copy(broker, partition, start, end, digest.hexdigest(), tuple(batches))


async def read_all(
    addresses: Mapping[int, ClusterAddress],
    racks: Mapping[int, str],
    topic_id: bytes,
    replicas: Mapping[int, Iterable[int]],
) -> dict[int, list[Copy]]:
    """Partition → its copies. ``replicas`` says who has which partition."""
    copies: dict[int, list[Copy]] = {partition: [] for partition in replicas}
    for broker, address in addresses.items():
        async with open_channel(address[0], security_of(address)) as channel:
            stub = BrokerStub(channel)
            for partition, holders in replicas.items():
                if broker in holders:
                    copies[partition].append(await read_copy(stub, broker, racks[broker], topic_id, partition))
    return copies


def differences(copies: Mapping[int, list[Copy]]) -> list[str]:
    """One sentence per partition whose replicas differ."""
    found: list[str] = []
    for partition, ones in copies.items():
        if len({(one.log_start, one.end, one.digest) for one in ones}) > 1:
            told = ", ".join(f"broker {one.broker} [{one.log_start}, {one.end}) {one.digest[:8]}" for one in ones)
            found.append(f"partition {partition}: {told}; {_first_difference(ones)}")
    return found


def _first_difference(ones: list[Copy]) -> str:
    for number in range(max(len(one.batches) for one in ones)):
        row = {one.batches[number] if number < len(one.batches) else None for one in ones}
        if len(row) > 1:
            return f"batch {number} is " + " / ".join(
                str(one.batches[number] if number < len(one.batches) else None) for one in ones
            )
    return "the same batches with other bytes"
