"""
Bytes that are not what a writer gives: a typed error, never a crash, a hang or a large allocation.

Damaged batches get a new CRC here, so that the reader's own checks are what refuses them.
"""

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_common.core.batch import Codec, RecordColumns, build_batch, build_row_batch, decode_batch
from headrace_common.core.batch.compression import inflate_rows
from headrace_common.core.errors import CorruptBatch, UnsupportedCompression, UnsupportedVersion

from .samples import BUILDERS, CODECS, column_batch, header_of, int32s, records, reseal, row, seal, varint

TYPED = (CorruptBatch, UnsupportedVersion, UnsupportedCompression)
MEMORY_MAX = 8 << 20
VALUE = (3, 2, b"value")


def read_all(batch: bytes, inflated_max: int = 1 << 20) -> bool:
    """Whether the batch decodes; then everything in it must be readable."""
    try:
        decoded = decode_batch(batch, inflated_max=inflated_max)
    except TYPED:
        return False
    count = decoded.record_count
    columns = decoded.keys(), decoded.values(), decoded.headers(), decoded.timestamps(), decoded.offsets()
    assert [len(column) for column in columns] == [count] * 5
    offsets = decoded.offsets()
    assert offsets == sorted(set(offsets))
    assert decoded.header.base_offset <= offsets[0]
    assert offsets[-1] <= decoded.header.last_offset
    table = decoded.to_arrow()
    table.validate(full=True)
    assert table["value"].to_pylist() == columns[1]
    assert table["timestamp_ms"].to_pylist() == columns[3]
    return True


def refused(batch: bytes, **options: Any) -> str:
    """The refusal of the batch, which must not have cost much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(TYPED) as caught:
            decode_batch(batch, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_MAX + len(batch), f"{peak} bytes were allocated"
    return str(caught.value)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    build: Callable[..., bytes] = draw(st.sampled_from(BUILDERS))
    return build(draw(records(count_max=24)).columns, codec=draw(st.sampled_from(CODECS)))


@given(batch=batches(), data=st.data())
def test_any_changed_byte_is_noticed(batch: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(8, len(batch) - 1).filter(lambda at: not 12 <= at < 16))
    damaged = bytearray(batch)
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TYPED):
        decode_batch(bytes(damaged))


@given(batch=batches(), data=st.data())
def test_any_cut_is_noticed(batch: bytes, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(batch) - 1))
    with pytest.raises(CorruptBatch):
        decode_batch(batch[:size])


@settings(max_examples=600)
@given(batch=batches(), data=st.data())
def test_changed_bytes_with_a_right_crc(batch: bytes, data: st.DataObject) -> None:
    damaged = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(21, len(batch) - 1))
        damaged[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])))
    read_all(reseal(bytes(damaged)))


@settings(max_examples=300)
@given(batch=batches(), data=st.data())
def test_changed_lengths_with_a_right_crc(batch: bytes, data: st.DataObject) -> None:
    damaged = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(21, len(batch) - 4))
        number = data.draw(st.sampled_from([-(2**31), -2, -1, 0, 1, 7, 8, len(batch), 2**20, 2**31 - 1]))
        struct.pack_into(data.draw(st.sampled_from(["<i", ">i"])), damaged, at, number)
    read_all(reseal(bytes(damaged)))


@settings(max_examples=300)
@given(batch=batches(), data=st.data())
def test_cut_or_longer_bodies_with_a_right_crc(batch: bytes, data: st.DataObject) -> None:
    size = data.draw(st.integers(61, len(batch)))
    read_all(reseal(batch[:size] + data.draw(st.binary(max_size=12))))


@settings(max_examples=300)
@given(
    body=st.binary(max_size=200),
    magic=st.sampled_from([2, 3]),
    codec=st.sampled_from(CODECS),
    count=st.sampled_from([1, 2, 15, 16, 40, 2**20]),
)
@example(body=b"", magic=2, codec=Codec.NONE, count=1)
def test_random_bodies(body: bytes, magic: int, codec: Codec, count: int) -> None:
    prefix = b"\0\0\0" if magic == 3 else b""
    read_all(seal(header_of(count, magic=magic, attributes=codec), prefix + body))


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes(batch: bytes) -> None:
    with pytest.raises(TYPED):
        decode_batch(batch)


@given(batch=batches())
def test_lies_about_the_count(batch: bytes) -> None:
    truth = struct.unpack_from(">i", batch, 57)[0]
    for count in (truth + 1, truth + 100, 1 << 20, 2**31 - 1):
        for last in (truth - 1, count - 1):
            lying = bytearray(batch)
            struct.pack_into(">i", lying, 57, count)
            struct.pack_into(">i", lying, 23, last)
            if not read_all(reseal(bytes(lying))):  # equal widths may divide anew, which cannot be told
                refused(reseal(bytes(lying)))


ENDS_OF_TWENTY = int32s(*range(21))
BAD_COLUMNS: dict[str, tuple[int, list[tuple[int, int, bytes]]]] = {
    "no values": (1, [(2, 2, b"key")]),
    "only unknown columns": (1, [(99, 0, b"12345678")]),
    "a column twice": (1, [VALUE, VALUE]),
    "ends that fall": (2, [(3, 0, int32s(0, 2, 1) + b"a")]),
    "ends that fall, many": (20, [(3, 0, int32s(0, 9, *range(2, 21)) + bytes(20))]),
    "a first end above 0": (2, [(3, 0, int32s(1, 1, 2) + b"ab")]),
    "a first end above 0, many": (20, [(3, 0, int32s(1, *range(1, 21)) + bytes(20))]),
    "a first end below 0": (2, [(3, 0, int32s(-1, 0, 2) + b"ab")]),
    "ends past the bytes": (1, [(3, 0, int32s(0, 9) + b"ab")]),
    "ends past the bytes, many": (20, [(3, 0, ENDS_OF_TWENTY + bytes(19))]),
    "ends of 2**31 - 1": (1, [(3, 0, int32s(0, 2**31 - 1) + b"ab")]),
    "a last end below 0": (1, [(3, 0, int32s(0, -1) + b"ab")]),
    "bytes after the last end": (1, [(3, 0, int32s(0, 1) + b"ab")]),
    "ends cut off": (20, [(3, 0, ENDS_OF_TWENTY[:-8])]),
    "no ends": (1, [(3, 0, b"")]),
    "validity cut off": (20, [(3, 1, b"\xff\xff")]),
    "validity and nothing else": (20, [(3, 1, b"\xff" * 8)]),
    "validity of equal lengths cut off": (9, [(3, 3, b"\xff" * 8)]),
    "equal lengths of nothing": (5, [(3, 2, b"")]),
    "equal lengths that do not divide": (2, [(3, 2, b"abc")]),
    "unknown flags": (1, [(3, 4, b"value")]),
    "timestamps cut off": (2, [(1, 0, bytes(8)), (3, 2, b"ab")]),
    "too many timestamps": (2, [(1, 0, bytes(24)), (3, 2, b"ab")]),
    "nullable timestamps": (1, [(1, 1, bytes(8)), VALUE]),
    "headers without keys": (1, [(4, 0, int32s(0, 1)), VALUE, (6, 2, b"x")]),
    "headers without values": (1, [(4, 0, int32s(0, 1)), VALUE, (5, 2, b"x")]),
    "header lists that fall": (2, [(4, 0, int32s(0, 2, 1)[:12]), (5, 2, b"x"), (6, 2, b"x"), (3, 2, b"ab")]),
    "a first header above 0": (1, [(4, 0, int32s(1, 2)), (5, 2, b"xy"), (6, 2, b"xy"), VALUE]),
    "no headers at all": (1, [(4, 0, int32s(0, 0)), (5, 2, b"x"), (6, 2, b"x"), VALUE]),
    "fewer header keys than headers": (1, [(4, 0, int32s(0, 3)), (5, 2, b"xy"), (6, 2, b"xyz"), VALUE]),
    "fewer header values than headers": (1, [(4, 0, int32s(0, 3)), (5, 2, b"xyz"), (6, 2, b"xy"), VALUE]),
    "2**31 - 1 headers": (1, [(4, 0, int32s(0, 2**31 - 1)), (5, 2, b"x"), (6, 2, b"x"), VALUE]),
    "2**20 headers of nothing": (1, [(4, 0, int32s(0, 2**20)), (5, 0, b""), (6, 0, b""), VALUE]),
    "a header key that is not UTF-8": (1, [(4, 0, int32s(0, 1)), (5, 2, b"\xff"), (6, 2, b"x"), VALUE]),
    "a header key cut within a letter": (
        1,
        [(4, 0, int32s(0, 2)), (5, 2, "ö".encode()), (6, 2, b"xy"), VALUE],
    ),
    "many header keys, one not UTF-8": (
        1,
        [(4, 0, int32s(0, 40)), (5, 2, b"a" * 39 + b"\xff"), (6, 2, bytes(40)), VALUE],
    ),
    "many header keys, one cut within a letter": (
        1,
        [(4, 0, int32s(0, 40)), (5, 2, b"a" * 38 + "ö".encode()), (6, 2, bytes(40)), VALUE],
    ),
    "a header without a key": (
        1,
        [(4, 0, int32s(0, 1)), (5, 1, bytes(8) + int32s(0, 0)), (6, 2, b"x"), VALUE],
    ),
    "offsets that stand": (2, [(7, 0, struct.pack("<2i", 0, 0)), (3, 2, b"ab")]),
    "offsets that fall": (2, [(7, 0, struct.pack("<2i", 1, 0)), (3, 2, b"ab")]),
    "offsets that stand, many": (20, [(7, 0, struct.pack("<20i", *[0] * 20)), (3, 2, bytes(20))]),
    "offsets below 0": (2, [(7, 0, struct.pack("<2i", -1, 1)), (3, 2, b"ab")]),
    "offsets past the last": (2, [(7, 0, struct.pack("<2i", 0, 2)), (3, 2, b"ab")]),
    "too many columns": (1, [(100 + number, 0, b"") for number in range(64)] + [VALUE]),
}


@pytest.mark.parametrize("name", BAD_COLUMNS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_bad_columns(name: str, codec: Codec) -> None:
    count, columns = BAD_COLUMNS[name]
    batch = column_batch(count, columns)
    if codec:
        batch = compressed(batch, codec)
    assert refused(batch)


def compressed(batch: bytes, codec: Codec, claimed: int | None = None) -> bytes:
    body = batch[64:]
    frame = bytes(cramjam.zstd.compress(body))
    size = len(body) if claimed is None else claimed
    count, last = struct.unpack_from(">i", batch, 57)[0], struct.unpack_from(">i", batch, 23)[0]
    header = header_of(count, attributes=codec, last_offset_delta=last)
    return seal(header, b"\0\0\0" + struct.pack("<I", size) + frame)


def test_the_helpers_make_good_batches_too() -> None:
    good = column_batch(20, [(1, 0, bytes(160)), (3, 0, ENDS_OF_TWENTY + bytes(20))])
    assert decode_batch(good).values() == [b"\0"] * 20
    assert decode_batch(compressed(good, Codec.ZSTD)).values() == [b"\0"] * 20
    assert decode_batch(seal(header_of(1, magic=2), row(value=varint(2) + b"ab"))).values() == [b"ab"]


def test_a_directory_that_does_not_end() -> None:
    body = b"\0\0\0" + struct.pack("<BBHI", 99, 0, 0, 0) * 100
    assert "directory" in refused(seal(header_of(1), body))
    assert "directory" in refused(seal(header_of(1), body[:11]))


def test_columns_past_the_end_and_bytes_after_them() -> None:
    for length in (0, 4, 6, 2**31, 2**32 - 1):
        refused(seal(header_of(1), b"\0\0\0" + struct.pack("<BBHI", 3, 0x82, 0, length) + b"value"))


def test_columns_of_a_newer_version() -> None:
    unknown = [(77, 0x55, b"whatever it is"), (1, 0, bytes(16)), (200, 0, b""), (3, 2, b"ab")]
    assert decode_batch(column_batch(2, unknown)).values() == [b"a", b"b"]
    with pytest.raises(UnsupportedVersion):
        decode_batch(column_batch(1, [VALUE], reserved=1))


def test_holes_without_offsets() -> None:
    refused(column_batch(1, [VALUE], last_offset_delta=5))


def test_null_slots_may_have_bytes() -> None:
    values = (3, 1, b"\x05".ljust(8, b"\0") + int32s(0, 1, 3, 4) + b"abbc")
    assert decode_batch(column_batch(3, [values])).values() == [b"a", None, b"c"]
    fixed = (3, 3, b"\x02".ljust(8, b"\0") + b"abcd")
    assert decode_batch(column_batch(2, [fixed])).values() == [None, b"cd"]
    many = (3, 1, b"\x0f\xf0\xff".ljust(8, b"\0") + ENDS_OF_TWENTY[:-4] + b"\0\0\0\0" + bytes(range(20)))
    found = decode_batch(column_batch(20, [many])).values()
    assert found == [None if 4 <= index < 12 else bytes([index]) for index in range(20)]


# --- decompression ------------------------------------------------------------------------------------------------


def frame(codec: Codec, data: bytes) -> bytes:
    match codec:
        case Codec.GZIP:
            return gzip.compress(data)
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Codec.LZ4:
            return bytes(cramjam.lz4.compress(data))
    return bytes(cramjam.zstd.compress(data))


PACKED = [codec for codec in CODECS if codec]
BOMB_SIZE = 100 << 20


@pytest.fixture(scope="module")
def bombs() -> dict[Codec, bytes]:
    zeros = bytes(BOMB_SIZE)
    return {codec: frame(codec, zeros) for codec in PACKED}


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("claimed", [0, 1, 1 << 20, (1 << 20) + 1, BOMB_SIZE, 2**32 - 1])
def test_bombs_of_columns(bombs: dict[Codec, bytes], codec: Codec, claimed: int) -> None:
    batch = seal(header_of(1, attributes=codec), b"\0\0\0" + struct.pack("<I", claimed) + bombs[codec])
    refused(batch, inflated_max=1 << 20)


@pytest.mark.parametrize("codec", PACKED)
def test_bombs_of_rows(bombs: dict[Codec, bytes], codec: Codec) -> None:
    batch = seal(header_of(1, magic=2, attributes=codec), bombs[codec])
    refused(batch, inflated_max=1 << 20)


def test_bombs_of_many_members_and_blocks() -> None:
    member = gzip.compress(bytes(1 << 20))
    refused(seal(header_of(1, magic=2, attributes=Codec.GZIP), member * 100), inflated_max=1 << 20)
    block = frame(Codec.SNAPPY, bytes(1 << 20))
    xerial = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * 40
    refused(seal(header_of(1, magic=2, attributes=Codec.SNAPPY), xerial), inflated_max=1 << 20)


@pytest.mark.parametrize("codec", PACKED)
def test_a_few_bytes_cannot_ask_for_the_whole_limit(codec: Codec) -> None:
    packed = frame(codec, b"a little")[:-1]
    for claimed in (8, 60 << 20):
        refused(seal(header_of(1, attributes=codec), b"\0\0\0" + struct.pack("<I", claimed) + packed))
    refused(seal(header_of(1, magic=2, attributes=codec), packed))


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("build", BUILDERS)
def test_what_compresses_best_is_still_read(codec: Codec, build: Callable[..., bytes]) -> None:
    values = [bytes(8 << 20)]
    assert decode_batch(build(RecordColumns(values), codec=codec)).values() == values


def test_a_snappy_block_that_claims_gigabytes() -> None:
    for claim in (b"\xff\xff\xff\xff\x0f", b"\xff" * 9, b""):
        refused(seal(header_of(1, magic=2, attributes=Codec.SNAPPY), claim + b"\0\0"))
        refused(seal(header_of(1, attributes=Codec.SNAPPY), b"\0\0\0" + struct.pack("<I", 100) + claim + b"\0\0\0\0"))


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("difference", [-1, 1])
def test_an_inflated_length_that_is_not_true(codec: Codec, difference: int) -> None:
    body = struct.pack("<BBHI", 3, 0x82, 0, 1000) + bytes(1000)
    for claimed in (len(body), len(body) + difference):
        batch = seal(header_of(1, attributes=codec), b"\0\0\0" + struct.pack("<I", claimed) + frame(codec, body))
        if claimed == len(body):
            assert decode_batch(batch, inflated_max=claimed).values() == [bytes(1000)]
            refused(batch, inflated_max=claimed - 1)
        else:
            refused(batch)


@pytest.mark.parametrize("codec", PACKED)
@settings(max_examples=200)
@given(data=st.data())
def test_damaged_frames(codec: Codec, data: st.DataObject) -> None:
    body = struct.pack("<BBHI", 3, 0x82, 0, 400) + b"abcdefgh" * 50
    packed = bytearray(frame(codec, body))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(packed)), st.integers(0, len(packed))))
    read_all(seal(header_of(1, attributes=codec), b"\0\0\0" + struct.pack("<I", len(body)) + packed[:cut]))
    read_all(seal(header_of(1, magic=2, attributes=codec), bytes(packed[:cut])))


@pytest.mark.parametrize("codec", PACKED)
def test_rows_inflate_up_to_the_limit_and_no_further(codec: Codec) -> None:
    data = bytes(range(256)) * 1024
    packed = memoryview(frame(codec, data))
    assert bytes(inflate_rows(codec, packed, len(data))) == data
    with pytest.raises(CorruptBatch):
        inflate_rows(codec, packed, len(data) - 1)


def test_frames_that_other_clients_write() -> None:
    plain = build_row_batch(RecordColumns([b"value %d" % number for number in range(5000)]))
    rows = plain[61:]
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    blocks = [frame(Codec.SNAPPY, rows[at : at + 32768]) for at in range(0, len(rows), 32768)]
    xerial = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for codec, packed in (
        (Codec.GZIP, stream.compress(rows) + stream.flush()),
        (Codec.GZIP, gzip.compress(rows[:1000]) + gzip.compress(rows[1000:])),
        (Codec.SNAPPY, xerial + b"".join(struct.pack(">i", len(block)) + block for block in blocks)),
        (Codec.SNAPPY, frame(Codec.SNAPPY, rows)),
        (Codec.LZ4, frame(Codec.LZ4, rows)),
        (Codec.ZSTD, frame(Codec.ZSTD, rows)),
    ):
        batch = seal(header_of(5000, magic=2, attributes=codec), packed)
        assert decode_batch(batch).values() == decode_batch(plain).values()


# --- rows ---------------------------------------------------------------------------------------------------------

ENDLESS = [b"\x80" * 9 + b"\x01", b"\xff" * 11]
HUGE = [varint(2**63 - 1), varint(2**62), varint(2**31), *ENDLESS]
NEGATIVE = [varint(-2), varint(-(2**63))]
BAD_ROWS: dict[str, bytes] = {
    **{f"key length {huge.hex()}": row(key=huge) for huge in HUGE},
    **{f"value length {huge.hex()}": row(value=huge) for huge in HUGE},
    **{f"header count {huge.hex()}": row(headers=huge) for huge in HUGE + NEGATIVE},
    **{f"header key length {huge.hex()}": row(headers=varint(1) + huge) for huge in HUGE + NEGATIVE},
    "a header key that is not UTF-8": row(headers=varint(1) + varint(1) + b"\xff" + varint(0)),
    "a length that is not true": varint(50) + row()[1:],
    "an offset past the last": row(delta=1),
    "an offset below 0": row(delta=-1),
    "bytes after the last record": row() + b"\0",
    "two records": row() + row(delta=1),
    "nothing": b"",
    "a varint without end": b"\x80" * 7,
    "a header cut off": row(headers=varint(1))[:-1] + varint(1) + b"\x81",
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows(name: str) -> None:
    assert refused(seal(header_of(1, magic=2), BAD_ROWS[name]))


@pytest.mark.parametrize("name", [name for name in BAD_ROWS if "offset" not in name])
def test_bad_rows_after_a_good_one(name: str) -> None:
    good = row(value=varint(100) + bytes(100))
    assert refused(seal(header_of(2, magic=2), good + BAD_ROWS[name]))


def test_the_guard_behind_the_rows_cannot_be_imitated() -> None:
    """A last record that swallows what is put behind it is still one record too many."""
    from headrace_common.core.batch.rows import _GUARD, _GUARD_KEY

    key = varint(len(_GUARD_KEY)) + _GUARD_KEY
    for tail in (varint(len(_GUARD)), varint(-1) + varint(1) + varint(0) + varint(len(_GUARD))):
        record = b"\0\0\0" + key + tail
        swallowing = varint(len(record) + len(_GUARD)) + record
        refused(seal(header_of(1, magic=2), row() + swallowing))
    refused(seal(header_of(1, magic=2), row() + _GUARD))


def test_rows_that_do_not_increase() -> None:
    refused(seal(header_of(2, magic=2), row(delta=1) + row(delta=0)))
    refused(seal(header_of(2, magic=2), row(delta=0) + row(delta=0)))


def test_more_headers_than_a_batch_may_hold_on_one_record() -> None:
    headers = varint(2_000_000) + (varint(0) + varint(-1)) * 2_000_000
    assert "headers" in refused(seal(header_of(1, magic=2), row(headers=headers)))
    packed = frame(Codec.ZSTD, row(headers=headers))
    assert "headers" in refused(seal(header_of(1, magic=2, attributes=Codec.ZSTD), packed))


def test_more_headers_than_a_batch_may_hold_on_all_records() -> None:
    headers = varint(1000) + (varint(0) + varint(-1)) * 1000
    rows = b"".join(row(delta=delta, headers=headers) for delta in range(1100))
    with pytest.raises(CorruptBatch, match="headers"):
        decode_batch(seal(header_of(1100, magic=2), rows))
    fewer = b"".join(row(delta=delta, headers=headers) for delta in range(1040))
    assert len(decode_batch(seal(header_of(1040, magic=2), fewer)).headers()[-1]) == 1000


def test_long_records_are_read() -> None:
    for values in ([bytes(3 << 20)], [b"a", bytes(3 << 20), b"b"]):
        for codec in CODECS:
            assert decode_batch(build_row_batch(RecordColumns(values), codec=codec)).values() == values


def test_long_rows_that_are_cut_off() -> None:
    long = varint(3 << 20) + bytes(3 << 20)
    for tail in (b"\xff" * 10, varint(100), b"\x80", varint(-5)):
        refused(seal(header_of(2, magic=2), long + tail + bytes(7)))


# --- where ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (build_batch(RecordColumns([b"v"]))[:-1], CorruptBatch),
        (column_batch(1, [VALUE], magic=9), UnsupportedVersion),
        (column_batch(1, [VALUE], attributes=7), UnsupportedCompression),
    ],
)
def test_errors_say_where(damage: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^orders-3@1042: "):
        decode_batch(damage, where="orders-3@1042")


def test_the_crc_may_be_left_unchecked() -> None:
    damaged = bytearray(build_batch(RecordColumns([b"v"])))
    damaged[-1] = ord("w")
    assert decode_batch(bytes(damaged), verify_crc=False).values() == [b"w"]
    with pytest.raises(CorruptBatch):
        decode_batch(bytes(damaged))
