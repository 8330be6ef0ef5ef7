"""
The checker of compacted logs beside a naive log: whatever a right compaction leaves is sound to it, and whatever it
takes beyond that is found.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace_verify.checker import Outcome
from headrace_verify.checker_compaction import check_compacted
from headrace_verify.compaction_facts import MS, Policy
from headrace_verify.compaction_history import Began, Event, Kind, Point, Read, Write

SECOND = 1_000 * MS
RETENTION_S = 5
POLICIES = {"c": Policy(compacts=True, delete_retention_ms=RETENTION_S * 1_000)}


@dataclass(frozen=True)
class Sent:
    """One record a second, at the offset of that second."""

    key: str
    deletes: bool
    outcome: Outcome


SENT = st.builds(
    Sent,
    st.sampled_from("abc"),
    st.booleans(),
    st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.FAIL]),
)


def left(records: list[Sent], cleaned_to: int, now_s: int) -> list[Point]:
    """What is there at ``now_s`` when everything below ``cleaned_to`` was compacted then."""
    committed = [(n, one) for n, one in enumerate(records) if one.outcome is Outcome.OK]
    newest = {one.key: n for n, one in committed if n < cleaned_to}
    found: list[Point] = []
    for n, one in committed:
        old = one.deletes and n + RETENTION_S < now_s
        if n >= cleaned_to or (newest[one.key] == n and not old):
            found.append(Point(n, one.key, n, one.deletes))
    return found


def writes(records: list[Sent]) -> list[Event]:
    return [
        Write(1, "c", one.key, n, one.deletes, one.outcome, n, n * SECOND, n * SECOND + 1)
        for n, one in enumerate(records)
    ]


def swept(process: int, kind: Kind, points: list[Point], end: int, now_s: int) -> list[Event]:
    now = now_s * SECOND - SECOND // 2
    return [Began(process, "c", 0, now, kind, first=True), Read(process, "c", 0, end, tuple(points), now)]


@given(st.lists(SENT, min_size=1, max_size=25), st.data())
def test_what_a_compaction_leaves_is_sound_and_each_record_less_is_found(
    records: list[Sent], data: st.DataObject
) -> None:
    end = len(records)
    cleaned = data.draw(st.lists(st.integers(0, end), min_size=2, max_size=2))
    now_s = end + data.draw(st.integers(0, 10))
    kinds = [Kind.FINAL, Kind.REPLICA, Kind.REPLICA]
    views = [left(records, to, now_s) for to in (*cleaned, end)]
    history = writes(records)
    for process, (kind, view) in enumerate(zip(kinds, views, strict=True), 90):
        history += swept(process, kind, view, end, now_s)
    verdict = check_compacted(history, POLICIES)
    assert verdict.counts == {}, verdict.describe()
    least = views[-1]
    if least:
        victim = data.draw(st.sampled_from(least))
        thinner = [point for point in least if point != victim]
        counts = check_compacted([*history, *swept(99, Kind.REPLICA, thinner, end, now_s)], POLICIES).counts
        wanted = {"lost-tombstone"} if victim.deletes else {"lost-final", "replicas-differ"}
        assert counts.keys() & wanted, f"nobody missed {victim}"


@given(st.lists(SENT, min_size=2, max_size=25), st.data())
def test_a_value_that_comes_back_is_found(records: list[Sent], data: st.DataObject) -> None:
    """A deletion goes, and what it deleted stays."""
    end = len(records)
    now_s = end + 2 * RETENTION_S
    committed = [(n, one) for n, one in enumerate(records) if one.outcome is Outcome.OK]
    last = {one.key: n for n, one in committed}
    gone = [
        n
        for n, one in committed
        if not one.deletes
        and records[last[one.key]].deletes
        and not any(m > n and o.key == one.key and not o.deletes for m, o in committed)
    ]
    if not gone:
        return
    risen = data.draw(st.sampled_from(gone))
    points = sorted([*left(records, end, now_s), Point(risen, records[risen].key, risen, False)])
    history = [*writes(records), *swept(90, Kind.FINAL, points, end, now_s)]
    assert "resurrected" in check_compacted(history, POLICIES).counts
