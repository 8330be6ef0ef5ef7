"""Leader epochs and the search by time, against naive oracles."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.epochs import Epochs
from headrace_broker.core.rows import EpochRow, IndexRow
from headrace_broker.core.segments import Segments
from headrace_broker.core.time_search import first_batch_reaching, ranges_by_age, ranges_reaching
from headrace_common.core.ids import Offset


def test_an_epoch_is_assigned_once_also_without_records() -> None:
    epochs = Epochs()
    assert epochs.latest == -1
    assert epochs.assign(0, Offset(0)) == EpochRow(0, Offset(0))
    assert epochs.assign(0, Offset(5)) is None
    assert epochs.assign(3, Offset(5)) == EpochRow(3, Offset(5))
    assert epochs.assign(4, Offset(5)) == EpochRow(4, Offset(5))
    assert epochs.end_offset_for(3, Offset(9)) == (3, 5)
    assert epochs.end_offset_for(2, Offset(9)) == (0, 5)
    assert epochs.end_offset_for(9, Offset(9)) == (4, 9)
    assert Epochs().end_offset_for(1, Offset(0)) == (-1, -1)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=8))
def test_the_epoch_of_an_offset_is_that_of_the_last_that_began_at_or_before_it(steps: list[tuple[int, int]]) -> None:
    rows, epoch, start = [], 0, 0
    for up, records in steps:
        rows.append(EpochRow(epoch, Offset(start)))
        epoch, start = epoch + up, start + records
    epochs = Epochs(rows)
    for offset in range(start + 2):
        began = [row.epoch for row in rows if row.start <= offset]
        assert epochs.epoch_at(Offset(offset)) == (began[-1] if began else -1)


stamps = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 20), st.booleans()), min_size=1, max_size=20
)  # records in the batch, their timestamp, whether a segment begins here


@given(stamps, st.integers(0, 25), st.integers(0, 10), st.integers(0, 5))
def test_the_batch_found_is_the_first_that_can_hold_the_record(
    batches: list[tuple[int, int, bool]], wanted: int, trim: int, uncommitted: int
) -> None:
    segments, rows, offset = Segments.fresh(Offset(0), 0), list[IndexRow](), 0
    for records, stamp, begins in batches:
        if begins and segments.active.size:
            segments.roll(Offset(offset), 0)
        active = segments.append(Offset(offset), 10, stamp, stamp)
        rows.append(
            IndexRow(
                Offset(offset), records - 1, 10, records, 0, 0, -1, -1, -1,
                active.base_offset, active.size, active.min_timestamp, active.max_timestamp,
            )
        )  # fmt: skip
        offset += records
    end = rows[max(0, len(rows) - uncommitted - 1)].next_offset
    start = Offset(min(trim, end))
    kept = [(row, stamp) for row, (_, stamp, _) in zip(rows, batches, strict=True) if row.next_offset > start]
    visible = [(row, stamp) for row, stamp in kept if row.next_offset <= end]
    bases = [row.base_offset for row, _ in kept]

    def floor(at: Offset) -> IndexRow | None:
        index = bisect_right(bases, at)
        return kept[index - 1][0] if index else None

    all_segments = [*segments.sealed, segments.active]
    found = first_batch_reaching(all_segments, floor, start, end, wanted)
    holders = [row for row, stamp in visible if stamp >= wanted]
    if holders:
        assert found is not None
        assert found.base_offset <= holders[0].base_offset, "never behind the record"
        between = [row for row, _ in visible if found.base_offset <= row.base_offset < holders[0].base_offset]
        assert not between or found.base_offset <= start, "only a trimmed segment makes it look too early"
    reaching = list(ranges_reaching(all_segments, floor, start, end, wanted))
    assert reaching == sorted(reaching)
    covered = {offset for low, high in reaching for offset in range(low, high)}
    assert covered >= {o for row in holders for o in range(max(row.base_offset, start), row.next_offset)}
    aged = list(ranges_by_age(all_segments, floor, start, end))
    assert [bound for bound, _ in aged] == sorted((bound for bound, _ in aged), reverse=True)
    assert sorted(o for _, (low, high) in aged for o in range(low, high)) == list(range(start, end))
    for bound, (low, high) in aged:
        inside = [stamp for row, stamp in visible if low < row.next_offset and row.base_offset < high]
        assert max(inside) <= bound, "nothing in it is younger than it says"
