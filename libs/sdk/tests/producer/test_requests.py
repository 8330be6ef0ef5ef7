"""How batches are put into requests: none is larger than what brokers take unless they are told otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace._core.chunk import Chunk
from headrace._core.lane import LaneRules
from headrace._core.producing import BUNDLE_BYTES_MAX, BatchSizes, ProducerCore, SendBatches
from headrace_common.core.batch import Codec

SMALL = BatchSizes(1_000, 1_000, 1 << 20)


def made(request_bytes: int, sizes: BatchSizes = SMALL, in_flight: int = 5) -> ProducerCore:
    rules = LaneRules(False, in_flight, 0, 1_000, 1, 1, Codec.NONE)
    return ProducerCore(rules, sizes, request_bytes=request_bytes)


def take(core: ProducerCore, records: int, size: int = 100, partition: int = 0) -> None:
    chunk = Chunk("t", opened_ms=0, record_max=1_000)
    chunk.values, chunk.keys = [b"%03d" % n for n in range(records)], [None] * records
    chunk.granted = size * records
    chunk.mark(0)
    chunk.name_partition(0, records, partition)
    core.take(chunk, 3, 1 << 20)


def sent(core: ProducerCore) -> list[list[tuple[int, int]]]:
    """Of each request: partition and records of each batch."""
    effects = core.drain(0, lambda topic, partition: (1, 0))
    requests = [effect for effect in effects if isinstance(effect, SendBatches)]
    return [[(batch.partition, batch.count) for batch in request.batches] for request in requests]


def test_batches_of_one_partition_share_a_request_where_brokers_take_that() -> None:
    for repeats, wanted in ((False, [[(0, 10), (1, 10)], [(0, 10)]]), (True, [[(0, 10), (1, 10), (0, 10)]])):
        core = made(1 << 20)
        core.repeats_partitions = repeats
        take(core, 20)
        take(core, 10, partition=1)
        assert sent(core) == wanted


def test_nothing_goes_to_a_broker_that_has_told_to_wait_and_to_others_all() -> None:
    def drain(core: ProducerCore, now_ms: float) -> list[int]:
        effects = core.drain(now_ms, lambda topic, partition: (partition, 0))
        return [effect.broker for effect in effects if isinstance(effect, SendBatches)]

    core = made(1 << 20)
    core.throttled(0, 500)
    core.throttled(0, 400)
    take(core, 10)
    take(core, 10, partition=1)
    assert drain(core, 0) == [1]
    assert core.retry_ms() == 500
    assert drain(core, 499) == []
    core.leaders_changed()
    assert drain(core, 499) == []
    assert drain(core, 500) == [0]


def test_a_shared_request_is_no_larger_than_allowed_and_keeps_the_order() -> None:
    core = made(500, in_flight=20)
    core.repeats_partitions = True
    take(core, 30)
    [lane] = core._lanes.values()
    waiting = list(lane.waiting)
    requests = [e.batches for e in core.drain(0, lambda topic, partition: (1, 0)) if isinstance(e, SendBatches)]
    assert len(requests) > 1
    assert all(sum(len(batch.encoded or b"") for batch in request) <= 500 for request in requests)
    left = [batch for request in requests for batch in request]
    assert left == waiting[: len(left)]


def test_records_that_wait_join_the_last_batch_up_to_the_grown_size() -> None:
    core = made(1 << 20, BatchSizes(1_000, 4_000, 1 << 20), in_flight=1)
    take(core, 10)
    assert sent(core) == [[(0, 10)]]
    for _ in range(6):
        take(core, 10)
    [waiting] = {lane: lane.waiting for lane in core._lanes.values()}.values()
    assert [batch.count for batch in waiting] == [40, 20]


def test_batches_of_many_partitions_leave_half_of_the_memory_to_records_to_come() -> None:
    sizes = BatchSizes(usual=128, most=1_000, memory=8_000)
    assert [sizes.for_lanes(busy) for busy in (0, 1, 4, 8, 1_000)] == [1_000, 1_000, 1_000, 500, 128]


def test_batches_beyond_what_brokers_take_go_in_another_request() -> None:
    core = made(64 << 20)
    batches: list[Any] = [SimpleNamespace(encoded=bytes(size << 20)) for size in (6, 6, 6, 20, 1, 1)]
    requests = [e for e in core._requests(1, batches) if isinstance(e, SendBatches)]
    sizes = [[len(batch.encoded or b"") >> 20 for batch in request.batches] for request in requests]
    assert sizes == [[6, 6], [6], [20], [1, 1]]
    assert BUNDLE_BYTES_MAX == 16 << 20
