"""What a broker refuses of a body, against what readers refuse: the same, as far as frames tell without inflating."""

import struct
from collections.abc import Callable
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_common.core.batch import (
    INFLATED_MAX_DEFAULT,
    Codec,
    RecordColumns,
    build_batch,
    build_row_batch,
    check_body,
    decode_batch,
    read_header,
)
from headrace_common.core.batch.compression import check_frame, compress
from headrace_common.core.errors import CorruptBatch, UnsupportedVersion

from .samples import BUILDERS, CODECS, column_batch, header_of, int32s, reseal, seal
from .test_damage import BAD_COLUMNS, TYPED, VALUE, batches, compressed, frame

PACKED = [codec for codec in CODECS if codec]
GIGABYTE = 1 << 30


def checked(batch: bytes) -> str | None:
    """Why a broker refuses a batch whose header it takes; None: it does not."""
    try:
        check_body(batch, read_header(batch))
    except CorruptBatch as refused:
        return str(refused)
    return None


def unread(batch: bytes) -> Exception | None:
    """Why a reader refuses it."""
    try:
        decode_batch(batch)
    except TYPED as refused:
        return refused
    return None


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_bad_columns_are_refused(name: str) -> None:
    refused = checked(column_batch(*BAD_COLUMNS[name]))
    assert (refused is None) is (name == "unknown flags"), refused


@pytest.mark.parametrize("magic", [2, 3])
@pytest.mark.parametrize("codec", CODECS)
def test_rubbish_is_refused(magic: int, codec: Codec) -> None:
    rubbish = bytes(range(107, 251)) * 10
    batch = seal(header_of(4, magic=magic, attributes=codec), (b"\0\0\0" if magic == 3 else b"") + rubbish)
    assert str(checked(batch)).startswith("no consumer could read the batch, though its CRC is right: ")
    assert unread(batch)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 1_000])
def test_what_writers_give_is_taken(build: Callable[..., bytes], codec: Codec, count: int) -> None:
    headers = [[("naïve €", b"1"), ("h", None)]] * count
    values = [b"v%d" % (n % 7) * 9 for n in range(count)]
    assert checked(build(RecordColumns(values, [None] * count, headers=headers), codec=codec)) is None


def test_newer_columns_and_flags_pass_but_a_newer_directory_does_not() -> None:
    assert checked(column_batch(2, [(77, 0x55, b"whatever"), (200, 0, b""), (3, 2, b"ab")])) is None
    for flagged in [(3, 6, b"ab"), (1, 0x10, bytes(16))]:
        batch = column_batch(2, [flagged] if flagged[0] == 3 else [flagged, (3, 2, b"ab")])
        assert checked(batch) is None
        with pytest.raises(UnsupportedVersion):
            decode_batch(batch)
    assert "newer version" in str(checked(column_batch(1, [VALUE], reserved=1)))


@settings(max_examples=500)
@given(batch=batches(), data=st.data())
def test_brokers_and_readers_refuse_the_same(batch: bytes, data: st.DataObject) -> None:
    damaged = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(61, len(batch) - 1))
        damaged[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])))
    sent = reseal(bytes(damaged))
    try:
        header = read_header(sent)
    except TYPED:
        return
    refused, failed = checked(sent), unread(sent)
    if failed is None:
        assert not refused, "readers take it"
    elif header.magic == 2 or not header.codec:
        newer = isinstance(failed, UnsupportedVersion) and "flags" in str(failed)
        assert refused or newer, "readers refuse it"


# --- what inflates to too much, or to something else --------------------------------------------------------------


@pytest.fixture(scope="module")
def gigabyte() -> bytes:
    """A frame of zstd of a gigabyte, which says so."""
    packer = cramjam.zstd.Compressor()
    for _ in range(64):
        packer.compress(bytes(GIGABYTE // 64))
    return bytes(packer.finish())


@pytest.mark.parametrize("claimed", [GIGABYTE, INFLATED_MAX_DEFAULT + 1, 0, 2**32 - 1])
def test_a_body_that_says_more_than_readers_take(gigabyte: bytes, claimed: int) -> None:
    batch = seal(header_of(1, attributes=Codec.ZSTD), b"\0\0\0" + struct.pack("<I", claimed) + gigabyte)
    assert f"1 to {INFLATED_MAX_DEFAULT} are allowed" in str(checked(batch))
    with pytest.raises(CorruptBatch, match="are allowed"):
        decode_batch(batch)


@pytest.mark.parametrize("codec", PACKED)
def test_rows_are_inflated_up_to_the_limit_of_readers(codec: Codec) -> None:
    bomb = frame(codec, bytes(INFLATED_MAX_DEFAULT + 1))
    assert checked(seal(header_of(1, magic=2, attributes=codec), bomb))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_frame_that_says_another_size(codec: Codec, off_by: int) -> None:
    body = column_batch(1, [VALUE])[64:]
    for claimed, wrong in ((len(body), False), (len(body) + off_by, True)):
        packed = struct.pack("<I", claimed) + frame(codec, body)
        refused = checked(seal(header_of(1, attributes=codec), b"\0\0\0" + packed))
        assert (refused is not None) is wrong
        assert not wrong or f"inflates to {len(body)} bytes, not to the {claimed}" in str(refused)


def test_a_frame_of_lz4_that_says_its_size() -> None:
    said = b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 5_000) + bytes(40)
    check_frame(Codec.LZ4, memoryview(said), 5_000)
    with pytest.raises(CorruptBatch, match="inflates to 5000 bytes, not to the 4999"):
        check_frame(Codec.LZ4, memoryview(said), 4_999)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 1 << 20])
def test_the_sizes_of_frames_of_zstd(size: int) -> None:
    packed = memoryview(bytes(compress(Codec.ZSTD, bytes(size))))
    for claimed in (size, size + 1):
        try:
            check_frame(Codec.ZSTD, packed, claimed)
        except CorruptBatch:
            assert claimed != size
        else:
            assert claimed == size


def test_a_frame_of_zstd_without_a_size_and_one_that_needs_a_large_window() -> None:
    packer = cramjam.zstd.Compressor()
    packer.compress(b"streamed")
    streamed = bytes(packer.finish())
    assert streamed[4] >> 6 == 0, "it does not say its size"
    check_frame(Codec.ZSTD, memoryview(streamed), 8)
    window = bytes([(28 - 10) << 3])
    with pytest.raises(CorruptBatch, match="window"):
        check_frame(Codec.ZSTD, memoryview(streamed[:5] + window + streamed[6:]), 8)


@pytest.mark.parametrize("codec", PACKED)
def test_frames_cut_off_anywhere_are_no_failures_of_ours(codec: Codec) -> None:
    whole = frame(codec, b"a body of some bytes" * 9)
    for size in range(len(whole)):
        with suppress(CorruptBatch):
            check_frame(codec, memoryview(whole)[:size], 180)


def test_a_good_frame_around_bad_columns_is_left_to_readers() -> None:
    bad = compressed(column_batch(1, [(3, 0, int32s(0, 9) + b"ab")]), Codec.ZSTD)
    assert checked(bad) is None
    with pytest.raises(CorruptBatch):
        decode_batch(bad)


def test_rows_that_are_cut_off() -> None:
    rows = build_row_batch(RecordColumns([b"value"] * 30))
    assert checked(reseal(rows[:-3]))
    columns = build_batch(RecordColumns([b"value"] * 30))
    assert checked(reseal(columns[:-3]))
