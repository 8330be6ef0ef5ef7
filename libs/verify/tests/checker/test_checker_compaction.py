"""One history made by hand for each anomaly of logs from which records go, and some in which all is as it may be."""

from __future__ import annotations

import pytest

from headrace_verify.checker import Outcome
from headrace_verify.checker_compaction import check_compacted
from headrace_verify.compaction_facts import MS, Policy
from headrace_verify.compaction_history import (
    Began,
    Event,
    GroupAt,
    Handed,
    Kind,
    Point,
    Read,
    Told,
    Write,
    from_lines,
    to_line,
)

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO
SECOND = 1_000 * MS
COMPACTED = {"c": Policy(compacts=True, delete_retention_ms=2_000)}
DELETED = {"c": Policy(compacts=False, deletes=True, retention_ms=5_000)}
BOTH = {"c": Policy(compacts=True, delete_retention_ms=2_000, deletes=True, retention_ms=5_000)}
LAGGING = {"c": Policy(compacts=True, delete_retention_ms=2_000, compaction_lag_ms=3_000)}


def sent(number: int, key: str, at_s: float, outcome: Outcome = OK, *, deletes: bool = False) -> Write:
    """The record ``number``, which is at the offset of its number."""
    began = int(at_s * SECOND)
    offset = number if outcome is OK else None
    return Write(1, "c", key, number, deletes, outcome, offset, began, began + MS)


def points(*records: tuple[int, str] | tuple[int, str, bool]) -> tuple[Point, ...]:
    return tuple(Point(one[0], one[1], one[0], len(one) == 3) for one in records)


def swept(
    process: int, at_s: float, begin: int, end: int, *records: tuple[int, str] | tuple[int, str, bool]
) -> list[Event]:
    """A reader that began at ``begin`` has read to ``end``."""
    now = int(at_s * SECOND)
    return [Began(process, "c", begin, now), Read(process, "c", begin, end, points(*records), now)]


def finally_(
    at_s: float,
    begin: int,
    end: int,
    *records: tuple[int, str] | tuple[int, str, bool],
    kind: Kind = Kind.FINAL,
    process: int = 90,
) -> list[Event]:
    now = int(at_s * SECOND)
    return [
        Began(process, "c", begin, now, kind, first=True),
        Read(process, "c", begin, end, points(*records), now),
    ]


WRITES: list[Event] = [
    sent(0, "a", 1),
    sent(1, "b", 1),
    sent(2, "a", 2),
    sent(3, "b", 3, deletes=True),
    sent(4, "c", 4),
]
DEL = True


def test_what_is_superseded_may_be_gone_and_deletions_when_they_are_old() -> None:
    history = [
        *WRITES,
        *swept(2, 4.5, 0, 5, (0, "a"), (1, "b"), (2, "a"), (3, "b", DEL), (4, "c")),
        *swept(2, 4.6, 0, 5, (2, "a"), (3, "b", DEL), (4, "c")),
        *swept(2, 5.2, 0, 5, (2, "a"), (4, "c")),
        *finally_(9, 0, 5, (2, "a"), (4, "c")),
        *finally_(9, 0, 5, (2, "a"), (3, "b", DEL), (4, "c"), kind=Kind.REPLICA, process=101),
        *finally_(9, 0, 5, (2, "a"), (4, "c"), kind=Kind.REPLICA, process=102),
        GroupAt((7,), "c", 0, 5),
        Handed(7, "c", points((0, "a"), (2, "a"), (4, "c")), 5 * SECOND),
    ]
    verdict = check_compacted(history, COMPACTED)
    assert verdict.counts == {}, verdict.describe()
    assert verdict.allowed == {}
    assert (verdict.sends_ok, verdict.read, verdict.compacted, verdict.expired, verdict.tombstones) == (5, 5, 3, 0, 2)


def test_the_start_of_a_log_may_move_when_its_records_are_old_and_readers_are_told() -> None:
    history = [
        *WRITES,
        Began(2, "c", 0, 2 * SECOND),
        Read(2, "c", 0, 1, points((0, "a")), 2 * SECOND),
        Told(2, "c", 1, 2, int(6.1 * SECOND)),
        Read(2, "c", 2, 5, points((2, "a"), (3, "b", DEL), (4, "c")), 7 * SECOND),
        *finally_(7.5, 3, 5, (3, "b", DEL), (4, "c")),
        *finally_(7.5, 3, 5, (3, "b", DEL), (4, "c"), kind=Kind.REPLICA, process=101),
        GroupAt((2, 7), "c", 0, 5),
        Handed(7, "c", points((3, "b", DEL), (4, "c")), 5 * SECOND),
    ]
    verdict = check_compacted(history, DELETED)
    assert verdict.counts == {}, verdict.describe()
    assert (verdict.expired, verdict.told) == (3, 1)


def test_it_may_be_told_after_the_position_has_moved() -> None:
    history = [
        *WRITES,
        Began(2, "c", 0, SECOND),
        Read(2, "c", 0, 2, (), 7 * SECOND),
        Began(2, "c", 2, int(7.1 * SECOND)),
        Told(2, "c", 0, 2, int(7.2 * SECOND)),
        Read(2, "c", 2, 5, points((2, "a"), (3, "b", DEL), (4, "c")), int(7.2 * SECOND)),
        *finally_(8.5, 3, 5, (3, "b", DEL), (4, "c")),
    ]
    assert check_compacted(history, DELETED).counts == {}
    untold = [event for event in history if not isinstance(event, Told)]
    assert check_compacted(untold, DELETED).counts.keys() == {"poll-skip"}


def test_ranges_may_be_lost_one_after_the_other_and_while_records_are_at_hand() -> None:
    history = [
        *WRITES,
        *swept(2, 4.5, 0, 5, (0, "a"), (1, "b"), (2, "a"), (3, "b", DEL), (4, "c")),  # an earlier time has no tie to it
        Began(2, "c", 0, 5 * SECOND),
        Told(2, "c", 1, 2, int(6.1 * SECOND)),
        Told(2, "c", 2, 3, int(7.1 * SECOND)),
        Read(2, "c", 0, 3, points((0, "a")), 8 * SECOND),
        Read(2, "c", 3, 5, points((3, "b", DEL), (4, "c")), 8 * SECOND),
        *finally_(8.5, 3, 5, (3, "b", DEL), (4, "c")),
    ]
    assert check_compacted(history, DELETED).counts == {}
    again = [event for event in history if not isinstance(event, Read) or event.process != 2 or event.after > 3]
    again.append(Read(2, "c", 3, 5, points((3, "b", DEL), (4, "c")), 8 * SECOND))
    assert check_compacted(again, DELETED).counts.keys() == {"position-jump"}, "nobody said what became of 0"


def test_of_unknown_records_each_history_is_possible() -> None:
    writes = [sent(0, "a", 1), sent(1, "a", 2, INFO)]
    assert check_compacted([*writes, *finally_(9, 0, 1, (0, "a"))], COMPACTED).counts == {}
    assert check_compacted([*writes, *finally_(9, 0, 2, (1, "a"))], COMPACTED).counts == {}
    # It may have been there while the reader passed; in the end it is the value or it never was there.
    assert check_compacted([*writes, *swept(2, 3, 0, 1), *finally_(9, 0, 2, (1, "a"))], COMPACTED).counts == {}
    assert check_compacted([*writes, *finally_(9, 0, 2)], COMPACTED).counts.keys() == {"lost-final"}
    deleted = [sent(0, "a", 1), sent(1, "a", 2, INFO, deletes=True)]
    assert check_compacted([*deleted, *finally_(9, 0, 2)], COMPACTED).counts == {}
    assert check_compacted([*deleted, *finally_(3, 0, 2)], COMPACTED).counts.keys() == {"lost-final"}


@pytest.mark.parametrize(
    ("anomaly", "history"),
    [
        ("inconsistent-offsets", [*WRITES, sent(5, "a", 4, INFO), Handed(7, "c", (Point(2, "a", 5, False),), 1)]),
        ("duplicate", [*WRITES, Handed(7, "c", (Point(9, "c", 4, False),), 1)]),
        ("altered", [*WRITES, *swept(2, 4.5, 2, 3, (2, "z"))]),
        ("altered", [*WRITES, *swept(2, 4.5, 2, 3, (2, "a", DEL))]),
        ("never-sent", [*WRITES, *swept(2, 4.5, 5, 6, (5, "a"))]),
        ("G1a", [*WRITES, sent(5, "a", 4, FAIL), *swept(2, 4.5, 5, 6, (5, "a"))]),
        ("nonmonotonic-send", [sent(6, "a", 1), Write(1, "c", "a", 7, False, OK, 2, 1, 2)]),
        ("nonmonotonic-poll", [*WRITES, *swept(2, 4.5, 2, 5, (4, "c"), (2, "a"), (3, "b", DEL))]),
        ("nonmonotonic-poll", [*WRITES, *swept(2, 4.5, 3, 4, (3, "b", DEL), (4, "c"))]),
        ("position-jump", [*WRITES, *swept(2, 4.5, 2, 3, (2, "a")), Read(2, "c", 4, 5, points((4, "c")), 5 * SECOND)]),
        ("poll-skip", [*WRITES, *swept(2, 4.5, 0, 5, (2, "a"), (3, "b", DEL))]),
        ("poll-skip", [sent(0, "a", 1), sent(1, "a", 4), *swept(2, 3, 0, 1)]),  # the newer one was not sent yet
        ("poll-skip", [sent(0, "a", 1), sent(1, "a", 2, FAIL), *swept(2, 3, 0, 2)]),  # an aborted one is no newer one
        ("lost-tombstone", [*WRITES, *swept(2, 4.9, 0, 5, (2, "a"), (4, "c"))]),
        ("lost-final", [*WRITES, *finally_(9, 0, 5, (0, "a"), (4, "c"))]),  # an older value is the final one
        ("lost-final", [*WRITES, *finally_(9, 0, 5, (4, "c"))]),
        ("unseen", [*WRITES, *finally_(9, 0, 4, (2, "a"))]),
        ("resurrected", [*WRITES, *finally_(9, 0, 5, (1, "b"), (2, "a"), (4, "c"))]),
        ("resurrected", [*WRITES, *swept(2, 9, 0, 5, (1, "b"), (2, "a"), (4, "c"))]),
        ("lost-below-start", [*WRITES, *finally_(9, 3, 5, (4, "c"))]),  # 0 and 1 are compacted, 2 is not
        ("told-wrong", [*WRITES, *finally_(9, 0, 5, (2, "a"), (4, "c")), Told(2, "c", 5, 9, 9 * SECOND)]),
        (
            "group-skip",
            [
                *WRITES,
                *finally_(9, 0, 5, (2, "a"), (4, "c")),
                GroupAt((7, 8), "c", 0, 5),
                Handed(8, "c", points((0, "a"), (4, "c")), 5 * SECOND),
            ],
        ),
        (
            "replicas-differ",
            [
                *WRITES,
                sent(5, "c", 5, INFO),
                *finally_(9, 0, 6, (2, "a"), (5, "c"), kind=Kind.REPLICA, process=101),
                *finally_(9, 0, 6, (2, "a"), (4, "c"), kind=Kind.REPLICA, process=102),
            ],
        ),
        (
            "replicas-differ",
            [
                sent(0, "a", 1),
                *finally_(9, 0, 1, (0, "a"), kind=Kind.REPLICA, process=101),
                *finally_(9, 0, 2, (0, "a"), kind=Kind.REPLICA, process=102),
            ],
        ),
    ],
)
def test_each_anomaly_of_a_compacted_log_is_found(anomaly: str, history: list[Event]) -> None:
    found = set(check_compacted(history, COMPACTED).counts)
    others = {"replicas-differ": {"lost-final"}}.get(anomaly, set())
    assert anomaly in found
    assert found <= {anomaly} | others


@pytest.mark.parametrize(
    ("anomaly", "history"),
    [
        (
            "poll-skip",
            [*WRITES, *swept(2, 9, 0, 5, (1, "b"), (2, "a"), (3, "b", DEL), (4, "c"))],
        ),  # nothing compacts it
        ("lost-below-start", [*WRITES, *finally_(6.5, 3, 5, (3, "b", DEL), (4, "c"))]),  # 2 is 4.5 s old
        (
            "lost-below-start",
            [*WRITES, Told(2, "c", 2, 3, int(6.5 * SECOND)), *finally_(9, 3, 5, (3, "b", DEL), (4, "c"))],
        ),
        (
            "told-wrong",  # the log has 2 to the end
            [
                *WRITES,
                Told(2, "c", 0, 3, 8 * SECOND),
                *finally_(9, 2, 5, (2, "a"), (3, "b", DEL), (4, "c")),
            ],
        ),
        (
            "told-wrong",  # and got it
            [
                *WRITES,
                Began(2, "c", 1, 5 * SECOND),
                Told(2, "c", 1, 2, 6 * SECOND),
                Read(2, "c", 1, 5, points((1, "b"), (2, "a"), (3, "b", DEL), (4, "c")), int(6.1 * SECOND)),
                *finally_(9.1, 2, 5, (2, "a"), (3, "b", DEL), (4, "c")),
            ],
        ),
        ("lost-tombstone", [*WRITES, *finally_(9, 2, 5, (2, "a"), (4, "c"))]),  # deletions are as good as values there
        (
            "group-skip",
            [
                *WRITES,
                *finally_(9, 2, 5, (2, "a"), (3, "b", DEL), (4, "c")),
                GroupAt((7,), "c", 0, 5),
                Told(7, "c", 0, 2, 8 * SECOND),
                Handed(7, "c", points((3, "b", DEL), (4, "c")), 5 * SECOND),
            ],
        ),
    ],
)
def test_each_anomaly_of_a_log_with_retention_is_found(anomaly: str, history: list[Event]) -> None:
    assert check_compacted(history, DELETED).counts.keys() == {anomaly}


def test_with_both_policies_each_is_judged_by_its_rule() -> None:
    assert check_compacted([*WRITES, *finally_(6.5, 2, 5, (2, "a"), (4, "c"))], BOTH).counts == {}
    early = check_compacted([*WRITES, *finally_(6.5, 4, 5, (4, "c"))], BOTH)
    assert early.counts.keys() == {"lost-below-start"}
    skipped = check_compacted([*WRITES, *finally_(6.5, 2, 5, (4, "c"))], BOTH)
    assert skipped.counts.keys() == {"lost-final"}


def test_what_is_too_young_to_be_compacted_is_there() -> None:
    reader = swept(2, 4.5, 0, 5, (2, "a"), (3, "b", DEL), (4, "c"))
    assert check_compacted([*WRITES, *reader], COMPACTED).counts == {}
    assert check_compacted([*WRITES, *reader], LAGGING).counts.keys() == {"poll-skip"}
    later = swept(2, 6.5, 0, 5, (2, "a"), (3, "b", DEL), (4, "c"))
    assert check_compacted([*WRITES, *later], LAGGING).counts == {}


def test_a_deletion_may_be_missed_by_a_slow_reader_and_while_leaders_move() -> None:
    def slow(first_s: float, second_s: float) -> list[Event]:
        return [
            *WRITES,
            Began(2, "c", 0, int((first_s - 0.1) * SECOND)),
            Read(2, "c", 0, 2, points((0, "a"), (1, "b")), int(first_s * SECOND)),
            Read(2, "c", 2, 5, points((2, "a"), (4, "c")), int(second_s * SECOND)),
        ]

    quick = check_compacted(slow(5.5, 5.7), COMPACTED)
    assert quick.counts.keys() == {"resurrected"}
    moved = check_compacted(slow(5.5, 5.7), COMPACTED, [(int(5.6 * SECOND), 6 * SECOND)])
    assert (moved.counts, moved.allowed.keys()) == ({}, {"resurrected"})
    assert check_compacted(slow(3.5, 5.7), COMPACTED).allowed.keys() == {"resurrected"}
    ahead = [Began(2, "c", 0, SECOND) if isinstance(event, Began) else event for event in slow(5.5, 5.7)]
    assert check_compacted(ahead, COMPACTED).allowed.keys() == {"resurrected"}, "it may have been fetched long before"
    newer = [sent(5, "b", 5.6), *slow(5.5, 5.7), Read(2, "c", 5, 6, points((5, "b")), 6 * SECOND)]
    assert check_compacted(newer, COMPACTED).allowed == {}, "it was superseded, so it may go at once"


def test_a_history_is_read_as_it_was_written() -> None:
    history = [
        *WRITES,
        *finally_(9, 0, 5, (2, "a"), (3, "b", DEL)),
        Told(2, "c", 1, 3, 8),
        GroupAt((7, 8), "c", 0, 5),
        Handed(7, "c", points((3, "b", DEL)), 5),
    ]
    assert list(from_lines(map(to_line, history))) == history
    with pytest.raises(ValueError, match="no event"):
        list(from_lines([b'["Poll", {}]']))
