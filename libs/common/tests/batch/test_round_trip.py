"""Any records in, the same records out: both formats, all codecs, lists and Arrow."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.batch import (
    Codec,
    DecodedBatch,
    RecordColumns,
    build_batch,
    build_row_batch,
    check_crc,
    decode_batch,
    read_header,
)
from headrace_common.core.batch.arrow_schema import headers_type
from headrace_common.core.errors import InvalidRecord, RecordTooLarge

from .samples import BUILDERS, CODECS, Records, records

ARROW_TYPES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()]


def check_same(decoded: DecodedBatch, given_records: Records, base_offset: int) -> None:
    assert decoded.values() == given_records.values
    assert decoded.keys() == given_records.all_keys
    assert decoded.timestamps() == given_records.all_timestamps
    assert decoded.headers() == given_records.all_headers
    assert decoded.offsets() == list(range(base_offset, base_offset + given_records.count))
    assert decoded.record_count == given_records.count
    assert decoded.has_keys == any(key is not None for key in given_records.all_keys)
    assert decoded.has_headers == any(given_records.all_headers)
    assert decoded.timestamps_equal == (len(set(given_records.all_timestamps)) == 1)


def check_arrow(table: pa.RecordBatch, decoded: DecodedBatch) -> None:
    table.validate(full=True)
    assert table["offset"].to_pylist() == decoded.offsets()
    assert table["timestamp_ms"].to_pylist() == decoded.timestamps()
    assert table["key"].to_pylist() == decoded.keys()
    assert table["value"].to_pylist() == decoded.values()
    pairs = [[(pair["key"], pair["value"]) for pair in each] for each in table["headers"].to_pylist()]
    assert pairs == decoded.headers()


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("codec", CODECS)
@given(given_records=records(), base_offset=st.integers(0, 2**60))
def test_records_come_back(build: Any, codec: Codec, given_records: Records, base_offset: int) -> None:
    batch = build(given_records.columns, codec=codec, base_offset=base_offset)
    decoded = decode_batch(batch)
    check_same(decoded, given_records, base_offset)
    check_arrow(decoded.to_arrow(), decoded)
    header = decoded.header
    assert header == read_header(batch)
    assert header.size == len(batch)
    assert header.max_timestamp == max(given_records.all_timestamps)
    assert header.base_timestamp == given_records.all_timestamps[0]
    assert not decoded.is_control


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("value_size", [1, 100, 70_000])
def test_what_compresses_is_compressed(build: Any, codec: Codec, value_size: int) -> None:
    values: list[bytes | None] = [bytes([65 + number % 3]) * value_size for number in range(200_000 // value_size // 4)]
    values = values or [b"a" * value_size] * 3
    batch = build(RecordColumns(values), codec=codec)
    assert read_header(batch).codec is codec
    assert len(batch) < len(build(RecordColumns(values)))
    assert decode_batch(batch).values() == values


def test_what_does_not_compress_says_that_it_is_not_compressed() -> None:
    batch = build_batch(RecordColumns([b"\x01\x9f"]), codec=Codec.ZSTD)
    assert read_header(batch).codec is Codec.NONE


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("kind", ARROW_TYPES, ids=str)
@given(data=st.data())
def test_arrow_columns_of_any_width_are_taken(build: Any, kind: pa.DataType, data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.one_of(st.none(), st.text(max_size=6)), min_size=1, max_size=40))
    first = data.draw(st.integers(0, len(texts) - 1))
    plain = [None if text is None else text.encode() for text in texts][first:]
    array = pa.array(["before", *texts], pa.string()).cast(kind)[first + 1 :]
    decoded = decode_batch(build(RecordColumns(array, keys=array)))
    assert decoded.values() == plain
    assert decoded.keys() == plain
    assert decoded.to_arrow()["value"].to_pylist() == plain


@pytest.mark.parametrize("build", BUILDERS)
def test_chunked_dictionary_and_fixed_size_columns_are_taken(build: Any) -> None:
    words = ["red", "blue", None, "red"] * 8
    plain = [None if word is None else word.encode() for word in words]
    chunked = pa.chunked_array([pa.array(words[:5]), pa.array(words[5:])])
    assert decode_batch(build(RecordColumns(chunked))).values() == plain
    assert decode_batch(build(RecordColumns(pa.array(words).dictionary_encode()))).values() == plain
    fixed = pa.array([b"abcd", None, b"efgh"] * 7, pa.binary(4))[1:]
    assert decode_batch(build(RecordColumns(fixed))).values() == fixed.to_pylist()


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("count", [3, 30])
def test_timestamps_may_come_as_numpy(build: Any, count: int) -> None:

    stamps = np.arange(10**12, 10**12 + count)[::-1]
    decoded = decode_batch(build(RecordColumns([b"v"] * count, timestamps_ms=stamps)))
    assert decoded.timestamps() == stamps.tolist()
    assert decoded.header.max_timestamp == 10**12 + count - 1


@pytest.mark.parametrize("build", BUILDERS)
@given(data=st.data())
def test_holes_stay_holes(build: Any, data: st.DataObject) -> None:
    deltas = sorted(data.draw(st.sets(st.integers(0, 200), min_size=1, max_size=40)))
    last = data.draw(st.integers(deltas[-1], 300))
    values: list[bytes | None] = [b"%d" % delta for delta in deltas]
    columns = RecordColumns(values, offset_deltas=deltas, last_offset_delta=last)
    decoded = decode_batch(build(columns, base_offset=1000, base_sequence=5, producer_id=1, producer_epoch=0))
    assert decoded.offsets() == [1000 + delta for delta in deltas]
    assert decoded.to_arrow()["offset"].to_pylist() == decoded.offsets()
    assert decoded.values() == values
    assert (decoded.header.last_offset, decoded.header.next_offset) == (1000 + last, 1001 + last)
    assert decoded.header.last_sequence == 5 + last
    assert decoded.header.dense == (len(deltas) == last + 1)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("codec", CODECS)
def test_a_hundred_thousand_headers_on_one_record(build: Any, codec: Codec) -> None:
    headers: list[tuple[str, bytes | None]] = [(f"key-{number}", b"value") for number in range(100_000)]
    decoded = decode_batch(build(RecordColumns([b"v"], headers=[headers]), codec=codec))
    assert decoded.headers() == [headers]
    assert len(decoded.to_arrow()["headers"][0]) == 100_000


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("count", [4095, 4096, 4097, 10_000])
@pytest.mark.parametrize("nulls", [False, True])
def test_large_batches_come_back(build: Any, count: int, nulls: bool) -> None:
    values: list[bytes | None] = [b"%d" % number for number in range(count)]
    if nulls:
        values[7] = None
    decoded = decode_batch(build(RecordColumns(values, keys=[b"k" * (number % 5) for number in range(count)])))
    assert decoded.values() == values
    assert decoded.keys() == [b"k" * (number % 5) for number in range(count)]
    check_arrow(decoded.to_arrow(), decoded)


@given(records(count_max=120))
def test_lists_and_arrow_columns_give_the_same_batch(given_records: Records) -> None:
    """Lists are written with the standard library, Arrow columns with numpy and pyarrow."""
    listed, stamps, headers = given_records, given_records.timestamps_ms, given_records.headers
    pairs = None if headers is None else [[{"key": key, "value": value} for key, value in each] for each in headers]
    columns = RecordColumns(
        pa.array(listed.values, pa.binary()),
        None if listed.keys is None else pa.array(listed.keys, pa.binary()),
        stamps if isinstance(stamps, int) else np.array(stamps),
        None if pairs is None else pa.array(pairs, headers_type()),
    )
    assert build_batch(listed.columns) == build_batch(columns)


@pytest.mark.parametrize("count", [1, 20])
def test_times_with_a_fraction_are_cut_and_those_beyond_64_bits_are_refused(count: int) -> None:
    values = [b"v"] * count
    cut: Any = [1_000.9] * count
    assert build_batch(RecordColumns(values, None, cut)) == build_batch(RecordColumns(values, None, 1_000))
    with pytest.raises(OverflowError):
        build_batch(RecordColumns(values, None, [2**63] * count))


def test_one_record_of_a_hundred_bytes_is_small() -> None:
    assert len(build_batch(RecordColumns([bytes(100)], timestamps_ms=1_700_000_000_000))) <= 176


@pytest.mark.parametrize("count", [3, 1000])
def test_arrow_of_columns_is_not_a_copy(count: int) -> None:
    batch = build_batch(
        RecordColumns([b"%05d" % number for number in range(count)], keys=[b"k%d" % (7 * count)] * count)
    )
    whole = pa.py_buffer(batch)
    table = decode_batch(batch).to_arrow()
    for name in ("key", "value"):
        blob = table[name].buffers()[2]
        assert blob is not None
        assert whole.address <= blob.address < whole.address + whole.size


def test_batches_may_be_decoded_from_a_part_of_a_message() -> None:
    batch = build_batch(RecordColumns([b"a", b"bb"], keys=[b"k", None], timestamps_ms=[1, 2]))
    for shift in range(8):
        decoded = decode_batch(memoryview(bytes(shift) + batch)[shift:])
        assert decoded.values() == [b"a", b"bb"]
        table = decoded.to_arrow()
        table.validate(full=True)
        assert table["timestamp_ms"].to_pylist() == [1, 2]


def test_log_append_time_is_the_time_of_every_record() -> None:
    from headrace_common.core.batch import stamp_log_append_time

    for build in BUILDERS:
        batch = stamp_log_append_time(build(RecordColumns([b"a"] * 20, timestamps_ms=list(range(20)))), 7, 3, 555)
        decoded = decode_batch(batch)
        assert decoded.timestamps() == [555] * 20
        assert decoded.timestamps_equal
        assert decoded.offsets()[0] == 7
        assert decoded.to_arrow()["timestamp_ms"].to_pylist() == [555] * 20
        check_crc(batch, read_header(batch))


@pytest.mark.parametrize("build", BUILDERS)
def test_columns_that_do_not_fit_together_are_refused(build: Any) -> None:
    for columns in (
        RecordColumns([]),
        RecordColumns([b"v"], keys=[]),
        RecordColumns([b"v"], timestamps_ms=[1, 2]),
        RecordColumns([b"v"], headers=[[], []]),
        RecordColumns([b"v"], headers=[[("\ud800", b"")]]),
        RecordColumns([b"v", b"w"], offset_deltas=[1, 1]),
        RecordColumns([b"v", b"w"], offset_deltas=[-1, 1]),
        RecordColumns([b"v", b"w"], offset_deltas=[0, 5], last_offset_delta=4),
        RecordColumns([b"v", b"w"], offset_deltas=[0, 2**31]),
    ):
        with pytest.raises(InvalidRecord):
            build(columns)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("count", [2, 20])
def test_what_is_not_bytes_is_refused(build: Any, count: int) -> None:
    with pytest.raises(TypeError):
        build(RecordColumns([7] * count))
    with pytest.raises(TypeError):
        build(RecordColumns(pa.array([1.5] * count)))


@pytest.mark.parametrize("build", BUILDERS)
def test_more_records_than_a_batch_may_hold_are_refused(build: Any) -> None:
    with pytest.raises(RecordTooLarge):
        build(RecordColumns([b""] * ((1 << 20) + 1)))


def test_rows_are_those_of_kafkas_clients() -> None:
    """The bytes that aiokafka gives for the same records, apart from the fields of the leader."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    for codec in CODECS:
        builder = DefaultRecordBatchBuilder(2, int(codec), 1, 9, 2, 4, 1 << 20)
        for delta in range(50):
            builder.append(delta, 1000 + delta, b"key", b"value" * 9, [("h", b"x"), ("n", None)])
        theirs = bytes(builder.build())
        ours = build_row_batch(
            RecordColumns(
                [b"value" * 9] * 50, [b"key"] * 50, list(range(1000, 1050)), [[("h", b"x"), ("n", None)]] * 50
            ),
            codec=codec,
            producer_id=9,
            producer_epoch=2,
            base_sequence=4,
            transactional=True,
        )
        assert ours[21:] == theirs[21:] or codec is Codec.GZIP  # gzip has a time in it
        assert decode_batch(theirs).headers() == decode_batch(ours).headers()
