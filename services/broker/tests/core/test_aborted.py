"""The aborted index against a naive list, over any interleaving of transactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.aborted import AbortedIndex
from headrace_broker.core.rows import AbortedRow
from headrace_common.core.ids import Offset

STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "abort", "commit"])), max_size=40)


def history(steps: list[tuple[int, str]]) -> list[AbortedRow]:
    """One offset for each step: a producer writes, or ends what it has open."""
    opened: dict[int, int] = {}
    rows: list[AbortedRow] = []
    for offset, (producer, what) in enumerate(steps):
        if what == "write":
            opened.setdefault(producer, offset)
        elif producer in opened:
            first = opened.pop(producer)
            if what == "abort":
                stable = min(opened.values(), default=offset + 1)
                rows.append(AbortedRow(producer, Offset(first), Offset(offset), Offset(stable)))
    return rows


@given(STEPS, st.integers(0, 40), st.integers(0, 40))
def test_it_finds_what_a_look_at_all_finds(steps: list[tuple[int, str]], start: int, count: int) -> None:
    rows = history(steps)
    index = AbortedIndex(rows)
    end = start + count + 1
    naive = [row for row in rows if row.first < end and row.last >= start]
    assert index.find_overlapping(Offset(start), Offset(end)) == naive


@given(STEPS, st.integers(0, 40), st.integers(0, 40))
def test_it_is_cut_and_trimmed_with_its_log(steps: list[tuple[int, str]], start: int, end: int) -> None:
    rows = history(steps)
    index = AbortedIndex(rows)
    index.truncate(Offset(end))
    index.drop_below(Offset(start))
    assert index.rows() == [row for row in rows if start <= row.last < end]
    assert len(index) == len(index.rows())


def test_a_long_transaction_is_found_behind_short_ones() -> None:
    rows = [AbortedRow(1, Offset(5), Offset(6), Offset(0)), AbortedRow(2, Offset(0), Offset(9), Offset(10))]
    assert AbortedIndex(rows).find_overlapping(Offset(0), Offset(1)) == rows[1:]
    assert AbortedIndex(rows).find_overlapping(Offset(5), Offset(6)) == rows
