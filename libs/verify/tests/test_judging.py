"""What is found in a round beside the checker's anomalies: copies, groups, marks, outages; on histories by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_verify.availability import SECOND, outages
from headrace_verify.checker_history import F, Operation, Polled, Sent, Type
from headrace_verify.judging import Ended, find_changed, judge, mark

READER, MEMBER = 9, 5


def history(*, member_reads: tuple[int, ...] = (0, 1, 2), last_reads: tuple[int, ...] = (0, 1, 2)) -> list[Operation]:
    """Three values of one key, sent one second apart, read by a member and at the end."""
    made: list[tuple[int, Type, F, tuple[Sent | Polled, ...], float]] = []
    for n in range(3):
        made.append((1, Type.INVOKE, F.SEND, (Sent("0", n),), n))
        made.append((1, Type.OK, F.SEND, (Sent("0", n, n),), n + 0.1))
    made.append((MEMBER, Type.INVOKE, F.SUBSCRIBE, (), 3))
    made.append((MEMBER, Type.OK, F.SUBSCRIBE, (), 3))
    for process, offsets in ((MEMBER, member_reads), (READER, last_reads)):
        made.append((process, Type.INVOKE, F.POLL, (), 4))
        made.append((process, Type.OK, F.POLL, (Polled({"0": [(n, n) for n in offsets]}),), 4))
    return [
        Operation(index, process, kind, f, value, int(at * SECOND))
        for index, (process, kind, f, value, at) in enumerate(made)
    ]


def ended() -> Ended:
    copies = [("0", 0), ("0", 1), ("0", 2)]
    return Ended(history(), READER, frozenset({MEMBER}), {"0": 3}, copies, {"0": 3}, 0, 4 * SECOND)


def test_a_sound_round_has_its_figures() -> None:
    found = judge(ended())
    assert dict(found.anomalies) == {}
    assert (found.acknowledged, found.read, found.copied) == (3, 3, 3)
    assert found.operations["send", "ok"] == 3
    assert found.operations["poll", "ok"] == 1, "the last reader is none of the load"
    assert found.seconds == [(1, 1), (1, 1), (1, 1), (0, 0)]
    assert found.outages == [], "one write a second is how this load is, a second without is none"


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("double-output", replace(ended(), copies=[("0", 0), ("0", 0), ("0", 1), ("0", 2)])),
        ("missing-output", replace(ended(), copies=[("0", 0), ("0", 2)])),
        ("early-output", replace(ended(), copiers_committed={"0": 2})),
        ("invented-output", replace(ended(), copies=[("0", 0), ("0", 1), ("0", 2), ("0", 7)])),
        ("skipped-by-group", replace(ended(), history=history(member_reads=(0, 2)))),
        ("vanished", replace(ended(), history=history(last_reads=(0, 2)), copies=[], copiers_committed={})),
        ("unseen", replace(ended(), history=history(member_reads=())[:-2], copies=[], copiers_committed={})),
    ],
)
def test_what_is_not_sound_is_found(name: str, broken: Ended) -> None:
    assert name in judge(broken).anomalies


def test_what_a_group_has_not_committed_may_be_given_to_nobody() -> None:
    behind = replace(ended(), history=history(member_reads=(0,)), group_committed={"0": 1})
    assert "skipped-by-group" not in judge(behind).anomalies


def test_what_is_read_again_must_be_the_same() -> None:
    marks = {"0": mark({0: 10, 2: 12}), "1": mark({})}
    assert find_changed(marks, {"0": {0: 10, 2: 12, 3: 13}}) == [], "what came later does not count"
    assert len(find_changed(marks, {"0": {0: 10}})) == 1
    assert len(find_changed(marks, {"0": {0: 10, 2: 13}})) == 1
    assert len(find_changed(marks, {"0": {0: 10, 1: 12}})) == 1
    assert len(find_changed(marks, {})) == 1


def test_silences_that_overlap_are_one_outage() -> None:
    acks = {"0": [0, 1, 5, 6], "1": [0, 2, 7], "2": [0, 1, 2, 3, 4, 5, 6, 7]}
    times = {key: [at * SECOND for at in found] for key, found in acks.items()}
    [one] = outages(times, 0, 7 * SECOND, 3.0)
    assert (one.begin_ns, one.end_ns, one.partitions, one.seconds) == (SECOND, 7 * SECOND, 2, 6.0)
    assert [round(two.seconds) for two in outages({"0": [0, 3 * SECOND, 6 * SECOND]}, 0, 6 * SECOND, 3.0)] == [3, 3]
