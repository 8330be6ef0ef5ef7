"""Topics whose ``compression.type`` is not ``producer``: what is stored of a batch, over real gRPC and RocksDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_common.core.batch import Codec, RecordColumns, build_batch, build_row_batch, decode_batch, read_header
from headrace_common.core.errors import ErrorCode
from headrace_proto.v1 import broker_pb2 as pb

from .test_servicer import Served, ask, fetch, request, served

VALUES = [b"the same again and again"] * 200
FORMATS = pytest.mark.parametrize("build", [build_batch, build_row_batch], ids=["columns", "rows"])
CODECS = {"uncompressed": Codec.NONE} | {codec.name.lower(): codec for codec in Codec if codec}


async def stored(broker: Served) -> list[bytes]:
    answer = await ask(broker.stub.Fetch(), fetch())
    return list(answer.partitions[0].batches)


async def produced(call: Any, batch: bytes) -> pb.ProducePartitionResult:
    answer = await ask(call, request(p0=batch))
    return answer.partitions[0]


@FORMATS
@pytest.mark.parametrize("name", CODECS)
async def test_what_came_otherwise_is_stored_in_the_topics_codec(build: Any, name: str, tmp_path: Path) -> None:
    headers = [[("h", b"1")]] * len(VALUES)
    columns = RecordColumns(VALUES, [b"k"] * len(VALUES), list(range(NOW_MS, NOW_MS + len(VALUES))), headers)
    async with served(tmp_path / "data", configs={"t": {"compression.type": name}}) as broker:
        call = broker.stub.Produce()
        for sequence, codec in enumerate(Codec):
            sent = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 200 * sequence}
            batch = build(columns, codec=codec, **sent)
            for _ in range(2):  # sent again it is a duplicate, and gets its first offset
                result = await produced(call, batch)
                assert (result.error, result.base_offset) == (ErrorCode.NONE, 200 * sequence)
        batches = await stored(broker)
    assert [read_header(one).codec for one in batches] == [CODECS[name]] * len(Codec)
    for number, one in enumerate(batches):
        header, decoded = read_header(one), decode_batch(one)
        assert (header.magic, header.base_sequence, header.producer_id) == (
            3 if build is build_batch else 2,
            200 * number,
            5,
        )
        assert decoded.offsets() == list(range(200 * number, 200 * number + 200))
        assert (decoded.values(), decoded.keys(), decoded.headers()) == (VALUES, [b"k"] * 200, headers)
        assert decoded.timestamps() == columns.timestamps_ms


@pytest.mark.parametrize("configs", [{}, {"compression.type": "producer"}])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_producer_leaves_it_as_it_came(configs: dict[str, str], codec: Codec, tmp_path: Path) -> None:
    batch = batch_of(VALUES, codec=codec)
    async with served(tmp_path / "data", configs={"t": configs}) as broker:
        await produced(broker.stub.Produce(), batch)
        [one] = await stored(broker)
    assert one[16:] == batch[16:]


async def test_the_brokers_time_and_the_codec_go_together(tmp_path: Path) -> None:
    configs = {"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}
    async with served(tmp_path / "data", configs={"t": configs}) as broker:
        result = await produced(broker.stub.Produce(), batch_of(VALUES))
        [one] = await stored(broker)
    assert read_header(one).codec is Codec.LZ4
    assert decode_batch(one).timestamps() == [result.log_append_time_ms] * 200


async def test_the_largest_batch_is_measured_before_and_after(tmp_path: Path) -> None:
    small = batch_of(VALUES, codec=Codec.ZSTD)
    for name, error in (("uncompressed", ErrorCode.MESSAGE_TOO_LARGE), ("gzip", ErrorCode.NONE)):
        configs = {"compression.type": name, "max.message.bytes": "1000"}
        async with served(tmp_path / name, configs={"t": configs}) as broker:
            call = broker.stub.Produce()
            assert (await produced(call, small)).error == error
            assert (await produced(call, batch_of(VALUES))).error == ErrorCode.MESSAGE_TOO_LARGE


async def test_rubbish_within_a_good_frame_is_found_where_it_is_inflated(tmp_path: Path) -> None:
    async with served(tmp_path / "data", configs={"t": {"compression.type": "lz4"}}) as broker:
        good = batch_of(VALUES, codec=Codec.ZSTD)
        damaged = bytearray(good)
        damaged[-1] ^= 0xFF
        result = await produced(broker.stub.Produce(), bytes(damaged))
        assert result.error == ErrorCode.CORRUPT_MESSAGE
        assert not await stored(broker)
