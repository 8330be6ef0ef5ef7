"""Bodies that nobody could read, records without a key where a topic is compacted, and what the event loop checks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from services.broker.tests.kit.cluster import topic_id_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.engine import body_checks
from headrace_broker.engine.produce import ProduceEntry
from headrace_common.core.batch import (
    Codec,
    RecordColumns,
    build_batch,
    build_row_batch,
    check_keys,
    is_quick,
    read_header,
    stamp_producer,
)
from headrace_common.core.batch.header import replace_header
from headrace_common.core.errors import CorruptBatch, ErrorCode, InvalidRecord
from headrace_common.core.ids import PartitionId

CONFIGS = {"c": {"cleanup.policy": "compact"}, "both": {"cleanup.policy": "compact,delete"}}
TOPICS = {"c": 1, "both": 1, "t": 1}
FORMATS = pytest.mark.parametrize("build", [build_batch, build_row_batch], ids=["columns", "rows"])
CODECS = pytest.mark.parametrize("codec", list(Codec))
BIG = 40_000


def batch(
    keys: Sequence[bytes | None] | None, build: Any = build_batch, codec: Codec = Codec.NONE, **more: Any
) -> bytes:
    count = 3 if keys is None else len(keys)
    return build(RecordColumns([b"v" * 40] * count, keys), codec=codec, **more)


def entry(topic: str, one: bytes) -> ProduceEntry:
    return ProduceEntry(PartitionId(topic_id_of(topic), 0), one, None)


async def verdict(engine: Engine, topic: str, one: bytes, **options: Any) -> ErrorCode | None:
    """Of the request as the servicer hands it over."""
    entries = [entry(topic, one)]
    checks = engine.broker.body_checks
    keys = await checks.check_beside(entries, checks.costly(entries))
    engine.session.accept(1, -1, 30_000, entries, options.get("transactional_id"), keys)
    _, [result] = await engine.answer()
    if result.error is not None:
        assert engine.store.floor(engine.broker.replicas.get(entries[0].partition).core.log, 10**9) is None
    return None if result.error is None else result.error.code


@FORMATS
@CODECS
@pytest.mark.parametrize("topic", ["c", "both"])
async def test_a_record_without_a_key_is_refused_with_its_batch(build: Any, codec: Codec, topic: str) -> None:
    async with running_engine(TOPICS, configs=CONFIGS) as engine:
        assert (
            await verdict(engine, topic, batch([b"a", b"b", None, b"c", None] * 40, build, codec))
            is ErrorCode.INVALID_RECORD
        )
        assert await verdict(engine, topic, batch(None, build, codec)) is ErrorCode.INVALID_RECORD
        assert await verdict(engine, topic, batch([b"a", b"", b"c"], build, codec)) is None, "an empty key is one"
        assert await verdict(engine, "t", batch(None, build, codec)) is None, "other topics take both"


@FORMATS
@pytest.mark.parametrize("count", [3, 100])
@pytest.mark.parametrize("at", [0, 2])
def test_the_text_names_topic_record_and_what_to_do(build: Any, count: int, at: int) -> None:
    keys: list[bytes | None] = [b"k%d" % n for n in range(count)]
    keys[at] = keys[-1] = None
    with pytest.raises(
        InvalidRecord, match=rf"record {at} of the batch has no key, and topic orders is compacted: .*Send"
    ):
        check_keys(batch(keys, build), "orders")


async def test_nothing_of_a_refused_batch_takes_a_sequence() -> None:
    async with running_engine(TOPICS, configs=CONFIGS) as engine:
        sent = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        assert await verdict(engine, "c", batch([b"a", None], **sent)) is ErrorCode.INVALID_RECORD
        assert await verdict(engine, "c", batch([b"a", b"b"], **sent)) is None


async def test_in_transactions_too() -> None:
    async with running_engine(TOPICS, configs=CONFIGS, coordinator=True) as engine:
        sent = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        refused = await verdict(engine, "c", batch([None], **sent), transactional_id="x")
        assert refused is ErrorCode.INVALID_RECORD
        assert await verdict(engine, "c", batch([b"k"], **sent), transactional_id="x") is None


@CODECS
async def test_a_body_that_no_cleaner_could_read_is_corrupt(codec: Codec) -> None:
    good = batch([b"key-%d" % n for n in range(200)], codec=codec)
    header = read_header(good)
    damaged = replace_header(good[:68] + bytes(255 - byte for byte in good[68:72]) + good[72:], header)
    async with running_engine(TOPICS, configs=CONFIGS) as engine:
        assert await verdict(engine, "c", damaged) is ErrorCode.CORRUPT_MESSAGE
        flipped = good[:-1] + bytes([good[-1] ^ 8])
        assert await verdict(engine, "c", flipped) is ErrorCode.CORRUPT_MESSAGE
        assert await verdict(engine, "c", good) is None


@FORMATS
@CODECS
@pytest.mark.parametrize("topic", ["t", "c"])
async def test_a_sound_header_around_rubbish_is_refused_and_what_follows_is_taken(
    build: Any, codec: Codec, topic: str
) -> None:
    sent = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    good = batch([b"key-%d" % n for n in range(200)], build, codec, **sent)
    body = 64 if build is build_batch else 61
    poison = replace_header(good[:body] + bytes(107 + n % 144 for n in range(len(good) - body)), read_header(good))
    async with running_engine(TOPICS, configs=CONFIGS) as engine:
        for _ in range(2):  # the second one is checked where it is accepted, if that is quick
            assert await verdict(engine, topic, poison) is ErrorCode.CORRUPT_MESSAGE
        assert await verdict(engine, topic, good) is None, "it took no sequence"


async def test_the_text_says_what_is_wrong() -> None:
    good = batch([b"key-%d" % n for n in range(20)])
    poison = replace_header(good[:72] + b"\xff" * 8 + good[80:], read_header(good))
    async with running_engine(TOPICS) as engine:
        engine.session.accept(1, -1, 30_000, [entry("t", poison)])
        _, [result] = await engine.answer()
        assert "no consumer could read the batch, though its CRC is right: column" in str(result.error)


async def test_what_readers_would_not_inflate_is_refused() -> None:
    bomb = build_batch(RecordColumns([bytes(1_000_000)] * 80), codec=Codec.ZSTD)
    assert len(bomb) < 1_000_000
    async with running_engine(TOPICS) as engine:
        for _ in range(2):
            assert await verdict(engine, "t", bomb) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.NONE])
async def test_rows_are_inflated_beside_the_event_loop(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def noted(*args: Any) -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    async with running_engine(TOPICS) as engine:
        await verdict(engine, "t", batch([b"first"], build_row_batch))  # loads libraries, in a thread
        monkeypatch.setattr(body_checks, "check_body", noted)
        assert await verdict(engine, "t", batch([b"k"] * 100, build_row_batch, codec)) is None
        assert await verdict(engine, "t", batch([b"k"] * 5_000, build_row_batch, codec)) is None
        assert threads == [not codec, False]


def test_a_bomb_is_not_inflated() -> None:
    bomb = build_batch(RecordColumns([b"x" * 1_000_000] * 80, [b"k"] * 80), codec=Codec.ZSTD)
    with pytest.raises(CorruptBatch, match="are allowed"):
        check_keys(bomb, "c")


@pytest.mark.parametrize(
    ("one", "quick"),
    [
        (batch([b"k"] * BIG), True),
        (batch([b"k"] * BIG, codec=Codec.LZ4), False),
        (batch([b"k"] * 100, codec=Codec.ZSTD), True),
        (batch([b"k"] * BIG, build_row_batch), False),
        (batch([b"k"] * 100, build_row_batch), True),
        (build_batch(RecordColumns([b"v"] * BIG, [b"k"] * BIG, headers=[[("h", b"")]] * BIG)), False),
    ],
    ids=["columns", "large and compressed", "small and compressed", "many rows", "few rows", "headers"],
)
async def test_what_takes_long_is_checked_beside_the_event_loop(
    one: bytes, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []

    def noted(*args: Any, **options: Any) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        check_keys(*args, **options)

    async with running_engine(
        TOPICS, configs={"c": {"cleanup.policy": "compact", "max.message.bytes": "9000000"}}
    ) as engine:
        for build in (build_batch, build_row_batch):
            await verdict(engine, "c", batch([b"first"], build))  # loads libraries, in a thread
        monkeypatch.setattr(body_checks, "check_keys", noted)
        assert is_quick(one, read_header(one)) is quick
        assert await verdict(engine, "c", one) is None
        assert threads == [quick]
        assert await verdict(engine, "t", one) in (None, ErrorCode.MESSAGE_TOO_LARGE)
        assert len(threads) == 1, "keys of other topics are not looked at"


async def test_batches_of_a_stream_stay_in_order_while_one_is_checked() -> None:
    async with running_engine(TOPICS, configs=CONFIGS) as engine:
        big = batch([b"k%d" % n for n in range(10_000)], codec=Codec.ZSTD)
        sent = [stamp_producer(big, 7, 0, 0), stamp_producer(batch([b"k"]), 7, 0, 10_000)]

        async def stream() -> None:
            for number, one in enumerate(sent):
                entries = [entry("c", one)]
                checks = engine.broker.body_checks
                costly = checks.costly(entries)
                keys = await checks.check_beside(entries, costly) if costly else body_checks.NOTHING_CHECKED
                engine.session.accept(number, -1, 30_000, entries, None, keys)

        await asyncio.wait_for(stream(), 10)
        for number in range(2):
            correlation, [result] = await engine.answer()
            assert (correlation, result.error) == (number, None)
