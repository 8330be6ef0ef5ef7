"""The judgements of ``crew.py`` on diaries made by hand: each finds what it is for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import cast

import pytest

from headrace import TopicPartition
from headrace.testing import TestCluster

from .crew import Crew, Member, Watch, assert_committed, assert_handled, assert_one_owner, pauses_ms, read_again_s

MS = 1_000_000
ZERO = TopicPartition("t", 0)


class Gone:
    """In place of a process that has ended."""

    def poll(self) -> int:
        return 0


def member(folder: Path, name: str, *lines: str) -> Member:
    diary = folder / name
    diary.write_text("".join(f"{line}\n" for line in lines))
    return Member(name, diary, cast("subprocess.Popen[bytes]", Gone())).look()


def crew(folder: Path, *members: Member) -> Crew:
    found = Crew(cast("TestCluster", None), folder / "crew", "g", "t")
    found.members += members
    return found


def watch(*seen: tuple[int, int]) -> Watch:
    found = Watch.__new__(Watch)
    found.seen, found.trouble = [(at, {ZERO: offset}) for at, offset in seen], []
    return found


def test_a_record_that_nobody_handled(tmp_path: Path) -> None:
    one, two = member(tmp_path, "1", "1 r t 0 0 4", "2 r t 0 6 8"), member(tmp_path, "2", "3 r t 0 7 9")
    with pytest.raises(AssertionError, match="1 of 10 records were never handled, from 5 on"):
        assert_handled(crew(tmp_path, one, two), {ZERO: 10})
    again = member(tmp_path, "3", "4 r t 0 5 5")
    assert assert_handled(crew(tmp_path, one, two, again), {ZERO: 10}) == 2


def test_a_commit_of_what_was_not_handled_yet(tmp_path: Path) -> None:
    one = member(tmp_path, "1", "10 r t 0 0 4", "30 r t 0 5 9")
    assert_committed(crew(tmp_path, one), watch((11, 5), (31, 10)))
    with pytest.raises(AssertionError, match="10 was committed when 5 was not handled yet"):
        assert_committed(crew(tmp_path, one), watch((11, 5), (29, 10)))


def test_a_commit_that_was_taken_back(tmp_path: Path) -> None:
    one = member(tmp_path, "1", "10 r t 0 0 9")
    with pytest.raises(AssertionError, match="4 was committed after 5"):
        assert_committed(crew(tmp_path, one), watch((11, 5), (12, 4)))


@pytest.mark.parametrize(
    ("end", "fine"), [("20 - t:0", True), ("20 ! t:0", True), ("40 ! t:0", True), ("40 - t:0", False)]
)
def test_two_owners(tmp_path: Path, end: str, fine: bool) -> None:
    one, two = member(tmp_path, "1", "10 + t:0,t:1", end), member(tmp_path, "2", "30 + t:0")
    if fine:
        assert_one_owner([one, two])
    else:
        with pytest.raises(AssertionError, match="2 got it while 1 had it"):
            assert_one_owner([one, two])


def test_a_kill_ends_what_a_member_had(tmp_path: Path) -> None:
    one, two = member(tmp_path, "1", "10 + t:0"), member(tmp_path, "2", "30 + t:0")
    one.killed_ns = 20
    assert_one_owner([one, two])


def test_pauses_count_from_when_a_reader_had_the_record_and_only_where_nothing_moved(tmp_path: Path) -> None:
    lines = [f"{at * MS} r t 0 {first} {last}" for at, first, last in ((10, 0, 0), (20, 1, 1), (320, 2, 9))]
    reader = member(tmp_path, "r", f"{9 * MS} r t 0 0 0", f"{19 * MS} r t 0 1 1", f"{70 * MS} r t 0 2 2")
    stayed = member(tmp_path, "1", f"{MS} + t:0", *lines)
    assert pauses_ms([stayed], reader, 5 * MS, 400 * MS) == [250.0, 1.0]
    moved = member(tmp_path, "2", f"{6 * MS} + t:0", *lines)
    assert pauses_ms([moved], reader, 5 * MS, 400 * MS) == []


def test_what_a_member_had_is_read_again_when_all_of_it_is(tmp_path: Path) -> None:
    left = member(tmp_path, "1", f"{900 * MS} r t 0 0 5")
    other = member(tmp_path, "2", f"{500 * MS} r t 0 0 5", f"{1_250 * MS} r t 0 6 6", f"{1_300 * MS} r t 0 7 7")
    assert read_again_s(left, [left, other], {ZERO}, 1_000 * MS) == 0.25
    assert read_again_s(left, [left, other], {ZERO, TopicPartition("t", 1)}, 1_000 * MS) is None
