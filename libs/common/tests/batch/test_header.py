"""What brokers read of a batch, and what they may write."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.batch import (
    HEADER_SIZE,
    RECORDS_PER_BATCH_MAX,
    ROW_HEADER_SIZE,
    Codec,
    RecordColumns,
    TimestampType,
    build_batch,
    build_row_batch,
    check_crc,
    decode_batch,
    read_header,
    stamp,
    stamp_log_append_time,
    stamp_producer,
)
from headrace_common.core.errors import (
    CorruptBatch,
    InvalidConfig,
    UnsupportedCompression,
    UnsupportedVersion,
)

from .samples import BUILDERS, column_batch, header_of, reseal, seal

ONE = [(3, 2, b"value")]


def test_the_layout_is_what_the_documentation_says() -> None:
    """Byte for byte: a change here is a change of the disk format."""
    batch = build_batch(
        RecordColumns([b"ab", b"c"], keys=[None, b"k"], timestamps_ms=[5, 9]),
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        base_offset=4,
        leader_epoch=5,
        transactional=True,
    )
    shared = "0000000000000004 0000008f 00000005 03 {crc} 0010 00000001 0000000000000005 0000000000000009"
    producer = "0000000000000001 0002 00000003 00000002 000000"
    directory = "01 00 0000 10000000  02 01 0000 19000000  03 80 0000 13000000"
    timestamps = "0500000000000000 0900000000000000"
    keys = "0200000000000000 00000000 00000000 01000000 00000000 6b 00000000000000"
    values = "00000000 02000000 03000000 00000000 616263"
    body = bytes.fromhex("".join((directory, timestamps, keys, values)))
    expected = bytes.fromhex((shared + producer).format(crc=batch[17:21].hex()))
    assert batch[:HEADER_SIZE].hex() == expected.hex()
    assert batch[HEADER_SIZE:].hex() == body.hex()
    check_crc(batch, read_header(batch))


def test_fixed_width_and_compressed_layout() -> None:
    batch = build_batch(RecordColumns([b"four", b"more"]))
    assert batch[HEADER_SIZE:] == bytes.fromhex("03 82 0000 08000000") + b"fourmore"
    packed = build_batch(RecordColumns([b"a" * 100] * 100), codec=Codec.SNAPPY)
    assert packed[HEADER_SIZE : HEADER_SIZE + 4] == (8 + 10_000).to_bytes(4, "little")


@pytest.mark.parametrize("build", BUILDERS)
def test_fields_come_back(build: object) -> None:
    assert build in (build_batch, build_row_batch)
    batch = build(
        RecordColumns([b"a", b"b", b"c"], timestamps_ms=[30, 10, 20]),
        codec=Codec.NONE,
        producer_id=2**40,
        producer_epoch=32767,
        base_sequence=2**31 - 2,
        base_offset=2**50,
        leader_epoch=77,
        transactional=True,
    )
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (2**50, 2**50 + 2, 2**50 + 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 32767, 2**31 - 2)
    assert header.last_sequence == 0, "sequences wrap after 2**31 - 1"
    assert (header.base_timestamp, header.max_timestamp) == (30, 30)
    assert (header.leader_epoch, header.record_count, header.size) == (77, 3, len(batch))
    assert header.transactional
    assert not header.control
    assert header.dense
    assert header.codec is Codec.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert read_header(build_batch(RecordColumns([b"a"]))).last_sequence == -1


@pytest.mark.parametrize("build", BUILDERS)
@given(offset=st.integers(0, 2**62), epoch=st.integers(-1, 2**31 - 1))
def test_the_leaders_fields_are_outside_the_crc(build: object, offset: int, epoch: int) -> None:
    batch = build(RecordColumns([b"a", b"b"], timestamps_ms=[1, 2]))
    before = read_header(batch)
    stamped = stamp(batch, offset, epoch)
    after = read_header(stamped)
    check_crc(stamped, after)
    assert after == before._replace(base_offset=offset, leader_epoch=epoch)
    assert stamped[16:] == batch[16:]


@pytest.mark.parametrize("build", BUILDERS)
def test_stamps_inside_the_crc_renew_it(build: object) -> None:
    batch = build(RecordColumns([b"a", b"b"], timestamps_ms=[1, 2]))
    before = read_header(batch)
    for stamped, expected in (
        (
            stamp_log_append_time(batch, 8, 9, 1000),
            before._replace(base_offset=8, leader_epoch=9, attributes=8, base_timestamp=1000, max_timestamp=1000),
        ),
        (stamp_producer(batch, 5, 6, 7), before._replace(producer_id=5, producer_epoch=6, base_sequence=7)),
    ):
        after = read_header(stamped)
        check_crc(stamped, after)
        assert after == expected._replace(crc=after.crc)
        assert decode_batch(stamped).values() == [b"a", b"b"]
    assert read_header(stamp_log_append_time(batch, 8, 9, 1000)).timestamp_type is TimestampType.LOG_APPEND_TIME


@pytest.mark.parametrize("build", BUILDERS)
def test_every_bit_after_the_crc_field_is_covered(build: object) -> None:
    batch = build(RecordColumns([b"abc"]))
    header = read_header(batch)
    for at in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptBatch):
            check_crc(bytes(damaged), header if at > 20 else header._replace(crc=header.crc ^ 1))


@pytest.mark.parametrize("size", [0, 1, ROW_HEADER_SIZE - 1])
def test_too_short_for_a_header(size: int) -> None:
    with pytest.raises(CorruptBatch):
        read_header(bytes(size))


def test_one_batch_exactly() -> None:
    batch = build_batch(RecordColumns([b"value"]))
    for wrong in (batch[:-1], batch + b"\0", batch + batch, batch[:62], batch[:71]):
        with pytest.raises(CorruptBatch):
            read_header(wrong)


@pytest.mark.parametrize("size", range(0, 11))
def test_columns_need_a_directory(size: int) -> None:
    with pytest.raises(CorruptBatch):
        read_header(seal(header_of(1), bytes(min(size, 10))))


@pytest.mark.parametrize("magic", [-128, -1, 0, 1, 4, 127])
def test_unknown_magic(magic: int) -> None:
    with pytest.raises(UnsupportedVersion):
        read_header(column_batch(1, ONE, magic=magic))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(UnsupportedCompression):
        read_header(column_batch(1, ONE, attributes=codec))


def test_reserved_header_bytes() -> None:
    batch = bytearray(column_batch(1, ONE))
    batch[62] = 1
    with pytest.raises(UnsupportedVersion):
        read_header(reseal(bytes(batch)))


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": 0},
        {"record_count": -1},
        {"record_count": 2},
        {"record_count": RECORDS_PER_BATCH_MAX + 1, "last_offset_delta": RECORDS_PER_BATCH_MAX},
        {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1},
        {"last_offset_delta": -1},
        {"base_offset": -1},
        {"base_offset": 2**63 - 1},
        {"producer_id": -2},
        {"producer_epoch": -2},
        {"base_sequence": -2},
        {"attributes": 0x20, "record_count": 2, "last_offset_delta": 1},
    ],
)
def test_counts_that_no_batch_has(fields: dict[str, int]) -> None:
    with pytest.raises(CorruptBatch):
        read_header(column_batch(1, ONE, **fields))


def test_codecs_by_name() -> None:
    assert [Codec.parse(name) for name in ("none", "gzip", "Snappy", "lz4", "ZSTD")] == list(Codec)
    with pytest.raises(InvalidConfig, match="brotli"):
        Codec.parse("brotli")


def test_reading_headers_and_small_batches_loads_no_large_library() -> None:
    program = """
import sys
from headrace_common.core.batch import *
batch = build_batch(RecordColumns([b"v"] * 15, [b"k", None, b""] * 5, list(range(15)), [[("h", b"x")]] * 15))
check_crc(batch, read_header(batch))
decoded = decode_batch(batch)
decoded.keys(), decoded.values(), decoded.headers(), decoded.timestamps(), decoded.offsets()
assert not {"numpy", "pyarrow", "aiokafka", "cramjam", "asyncio"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
