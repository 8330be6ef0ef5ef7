"""Cutting a chunk up, held against a naive oracle that looks at one record at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._core.batch import Batch, Piece
from headrace._core.chunk import Chunk
from headrace._core.lane import LaneRules
from headrace._core.partitioner import Sticky, split
from headrace._core.producing import BatchSizes, ProducerCore
from headrace_common.core.batch import Codec, decode_batch
from headrace_common.core.batch.stamp_runs import StampRuns
from headrace_common.core.murmur2 import partition_for

ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=12)),
        st.one_of(st.none(), st.none(), st.integers(0, 4)),
        st.one_of(st.none(), st.integers(0, 10**12)),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


def chunk_of(rows: list[tuple[bytes | None, int | None, int | None, bool]], *, arrow: bool = False) -> Chunk:
    chunk = Chunk("t", opened_ms=0, record_max=1 << 20)
    for at, (key, partition, stamp, headed) in enumerate(rows):
        if not at % 7:
            chunk.mark(1_000 + at)
        chunk.values.append(b"%d" % at)
        chunk.keys.append(key)
        if partition is not None:
            chunk.name_partition(at, at + 1, partition)
        if stamp is not None:
            chunk.stamps.append((at, at + 1, stamp))
        if headed:
            chunk.headers[at] = [("h", b"%d" % at)]
    chunk.granted = 50 * len(rows)
    if arrow:
        chunk.values, chunk.keys = pa.array(chunk.values, pa.binary()), pa.array(chunk.keys, pa.binary())
    return chunk


def listed(column: Any) -> list[Any]:
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)


@given(rows=ROWS, partitions=st.integers(5, 12), arrow=st.booleans())
def test_every_row_goes_where_it_belongs_in_order(rows: Any, partitions: int, arrow: bool) -> None:
    chunk = chunk_of(rows, arrow=arrow)
    order, pieces = split(chunk, partitions, Sticky(0, 10**9), None)
    assert sum(piece.size_bytes for _, piece in pieces) == chunk.granted
    found: dict[int, list[Any]] = {}
    for partition, piece in pieces:
        count = len(piece.values)
        stamps = [piece.timestamps] * count if isinstance(piece.timestamps, int) else listed(piece.timestamps)
        keys = [None] * count if piece.keys is None else listed(piece.keys)
        headers = [()] * count if piece.headers is None else piece.headers
        found.setdefault(partition, []).extend(zip(listed(piece.values), keys, stamps, map(list, headers), strict=True))
    expected: dict[int, list[Any]] = {}
    for at, (key, partition, stamp, headed) in enumerate(rows):
        place = partition if partition is not None else 0 if key is None else partition_for(key, partitions)
        clock = 1_000 + at - at % 7 if stamp is None else stamp
        expected.setdefault(place, []).append((b"%d" % at, key, clock, [("h", b"%d" % at)] if headed else []))
    assert found == expected
    assert order is None or sorted(order) == list(range(len(rows)))


@given(rows=ROWS, partitions=st.integers(5, 12), batch_bytes=st.integers(60, 900))
def test_every_handle_finds_its_record(rows: Any, partitions: int, batch_bytes: int) -> None:
    chunk = chunk_of(rows)
    rules = LaneRules(False, 1, 0, 1_000, 1, 1, Codec.NONE)
    core = ProducerCore(rules, BatchSizes(batch_bytes, 2 * batch_bytes, 1 << 20), request_bytes=1 << 20)
    core.take(chunk, partitions, 1 << 20)
    for row in range(len(rows)):
        found = chunk.locate(row)
        assert found is not None
        batch, place = found
        values = [value for piece in batch.pieces for value in listed(piece.values)]
        assert values[place] == b"%d" % row


def test_the_sticky_partition_changes_when_it_has_had_its_share() -> None:
    sticky = Sticky(5, 1_000)
    assert list(sticky.runs(10, 500, 3)) == [(10, 2)]
    assert list(sticky.runs(10, 500, 3)) == [(10, 2)]
    assert list(sticky.runs(10, 500, 3)) == [(10, 0)]
    assert list(sticky.runs(100, 5_000, 3)) == [(10, 0), (20, 1), (20, 2), (20, 0), (30, 1)]


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 1_000])
def test_keyless_rows_in_one_partition_are_not_touched(rows: int) -> None:
    chunk = chunk_of([(None, None, None, False)] * rows)
    values = chunk.values
    order, [(_, piece)] = split(chunk, 3, Sticky(0, 10**9))
    assert order is None
    assert piece.values is values
    assert piece.keys is None


STAMPS = st.one_of(
    st.just(7),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 2**40), min_size=3, max_size=3),
    st.builds(lambda first, second: StampRuns([(1, first), (2, second)]), st.integers(0, 9), st.integers(0, 9)),
    st.lists(st.integers(0, 2**40), min_size=3, max_size=3).map(np.array),
)


@given(st.lists(STAMPS, min_size=1, max_size=4))
def test_a_batch_has_the_timestamps_of_its_pieces(given_stamps: list[Any]) -> None:
    batch = Batch("t", 0, 0)
    for stamps in given_stamps:
        batch.add(Piece([b"v"] * 3, None, stamps, None, 60))
    encoded = batch.encode(Codec.NONE, None, -1)
    expected = [int(each) for stamps in given_stamps for each in ([stamps] * 3 if isinstance(stamps, int) else stamps)]
    assert decode_batch(encoded).timestamps() == expected
    assert [batch.timestamp(place) for place in range(batch.count)] == expected
