"""Batches that lost records: all that is left is as it was, and readers pass over what is gone."""

from itertools import compress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_common.core.batch import (
    Codec,
    DecodedBatch,
    RecordColumns,
    build_gap_batch,
    check_crc,
    decode_batch,
    filter_records,
    read_header,
    stamp_log_append_time,
    strip_records,
)
from headrace_common.core.batch.arrow_schema import batch_schema
from headrace_common.core.errors import CorruptBatch, UnsupportedVersion

from .samples import BUILDERS, CODECS, Records, column_batch, records, reseal

PRODUCER = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 11, "base_offset": 1000, "leader_epoch": 5}
STAYS = (
    "base_offset",
    "leader_epoch",
    "magic",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "last_sequence",
    "transactional",
    "timestamp_type",
)


def rows_of(batch: DecodedBatch) -> list[tuple[Any, ...]]:
    columns = batch.offsets(), batch.timestamps(), batch.keys(), batch.values(), batch.headers()
    return list(zip(*columns, strict=True))


def check(before: bytes, keep: list[bool]) -> bytes:
    after = filter_records(before, keep)
    old, new = decode_batch(before), decode_batch(after)
    assert rows_of(new) == list(compress(rows_of(old), keep))
    assert [getattr(new.header, name) for name in STAYS] == [getattr(old.header, name) for name in STAYS]
    assert new.header.codec in (old.header.codec, Codec.NONE)
    table = new.to_arrow()
    table.validate(full=True)
    assert table.schema == batch_schema()
    assert table["offset"].to_pylist() == new.offsets()
    assert table["value"].to_pylist() == new.values()
    assert table["headers"].to_pylist() == [
        [{"key": key, "value": value} for key, value in each] for each in new.headers()
    ]
    return after


@pytest.mark.parametrize("build", BUILDERS)
@given(st.sampled_from(CODECS), records(), st.data())
@settings(max_examples=120)
def test_only_the_dropped_records_are_gone(
    build: Any, codec: Codec, given_records: Records, data: st.DataObject
) -> None:
    """Twice, since what was sparse before is compacted again."""
    batch = build(given_records.columns, codec=codec, transactional=True, **PRODUCER)
    count = given_records.count
    keep = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    once = check(batch, keep)
    left = sum(keep)
    check(once, data.draw(st.lists(st.booleans(), min_size=left, max_size=left)))


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("codec", CODECS)
def test_the_codec_stays_where_it_gains(build: Any, codec: Codec) -> None:
    batch = build(RecordColumns([b"value" * 30] * 100, keys=[b"%d" % at for at in range(100)]), codec=codec)
    assert read_header(filter_records(batch, [at % 2 == 0 for at in range(100)])).codec is codec


@pytest.mark.parametrize("build", BUILDERS)
def test_all_kept_is_the_same_bytes(build: Any) -> None:
    batch = build(RecordColumns([b"a", b"b"]))
    assert filter_records(batch, [True, True]) is batch


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("codec", CODECS)
def test_nothing_left_is_a_header_alone(build: Any, codec: Codec) -> None:
    batch = build(RecordColumns([b"value"] * 40), codec=codec, **PRODUCER)
    empty = filter_records(batch, np.zeros(40, np.bool_))
    assert empty == strip_records(batch) == strip_records(empty)
    header = read_header(empty)
    check_crc(empty, header)
    assert (header.size, header.record_count, header.codec) == (64 if header.magic == 3 else 61, 0, Codec.NONE)
    assert (header.base_offset, header.next_offset, header.last_sequence) == (1000, 1040, 50)
    assert rows_of(decode_batch(empty)) == []
    table = decode_batch(empty).to_arrow()
    assert (table.schema, len(table)) == (batch_schema(), 0)


@pytest.mark.parametrize("build", BUILDERS)
def test_log_append_time_stays_that_of_all(build: Any) -> None:
    batch = stamp_log_append_time(build(RecordColumns([b"a", b"b", b"c"], timestamps_ms=[1, 2, 3])), 5, 1, 99)
    assert decode_batch(check(batch, [False, True, True])).timestamps() == [99, 99]


def test_a_gap_covers_its_offsets_and_says_nothing_else() -> None:
    gap = build_gap_batch(10, 5_000_000_000 - 3_000_000_000, 4, base_timestamp=5, max_timestamp=9)
    header = read_header(gap)
    check_crc(gap, header)
    assert (header.base_offset, header.next_offset, header.record_count, header.size) == (10, 2_000_000_000, 0, 64)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.attributes) == (-1, -1, -1, 0)
    assert (header.leader_epoch, header.base_timestamp, header.max_timestamp) == (4, 5, 9)
    assert decode_batch(gap).keys() == []


@pytest.mark.parametrize("attributes", [Codec.ZSTD, 0x20])
def test_a_header_alone_has_no_codec_and_no_control_record(attributes: int) -> None:
    batch = bytearray(strip_records(BUILDERS[0](RecordColumns([b"a"]))))
    batch[22] |= attributes
    with pytest.raises(CorruptBatch):
        read_header(reseal(bytes(batch)))


@pytest.mark.parametrize("build", BUILDERS)
def test_no_records_and_still_a_body_is_corrupt(build: Any) -> None:
    batch = bytearray(build(RecordColumns([b"a"])))
    batch[60] = 0
    with pytest.raises(CorruptBatch):
        read_header(reseal(bytes(batch)))


def test_columns_of_a_newer_version_are_not_dropped_silently() -> None:
    batch = column_batch(2, [(3, 2, b"ab"), (60, 0, b"")])
    assert decode_batch(batch).values() == [b"a", b"b"]
    with pytest.raises(UnsupportedVersion, match="60"):
        filter_records(batch, [True, False])
