"""How an append is cut into batches, and what a reader takes of batches that begin before and end behind its part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.batch import build_fence_batch, stamp
from headrace_common.core.ids import Offset
from headrace_coordinator.adapters.log_batches import BATCH_BYTES, RECORDS_PER_BATCH, build, cut, decode

RECORDS = st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.one_of(st.none(), st.binary(max_size=50))))


@given(RECORDS)
def test_cutting_loses_and_reorders_nothing(records: list[tuple[bytes, bytes | None]]) -> None:
    parts = list(cut(records))
    assert [record for part in parts for record in part] == records
    assert parts


def test_parts_are_bounded_in_bytes_and_records() -> None:
    many = [(b"k", b"")] * (2 * RECORDS_PER_BATCH + 1)
    assert [len(part) for part in cut(many)] == [RECORDS_PER_BATCH, RECORDS_PER_BATCH, 1]
    large = [(b"k", bytes(BATCH_BYTES // 2))] * 3
    assert [len(part) for part in cut(large)] == [1, 1, 1]
    assert [len(part) for part in cut([(b"k", bytes(2 * BATCH_BYTES)), (b"l", b"")])] == [1, 1]


@given(RECORDS.filter(bool), st.integers(0, 12), st.integers(0, 12))
def test_a_reader_gets_what_lies_between_its_offsets(
    records: list[tuple[bytes, bytes | None]], begin: int, until: int
) -> None:
    batches: list[bytes] = [stamp(build_fence_batch(1, timestamp_ms=0), 0, 0)]
    end = 1
    for at in range(0, len(records), 3):
        part = records[at : at + 3]
        batches.append(stamp(build(part, timestamp_ms=0, producer=(1, 0), sequence=at), end, 0))
        end += len(part)
    batches.append(stamp(build((), timestamp_ms=0, producer=(1, 0), sequence=9), end, 0))
    found = decode(batches, Offset(begin), Offset(until), "t-0")
    expected = [record for offset, record in enumerate(records, 1) if begin <= offset < until]
    assert list(zip(found.keys, found.values, strict=True)) == expected
    assert found.next_offset == max(begin, end + 1)
