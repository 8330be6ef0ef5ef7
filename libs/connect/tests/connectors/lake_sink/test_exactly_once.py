"""Each record counts once: killed at any access, with two holders, with puts whose outcome is unknown, with repeats."""

from __future__ import annotations

from itertools import count, cycle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from libs.connect.tests.connectors.lake_sink.holders import Holder, Holders
from libs.connect.tests.connectors.lake_sink.lakes import (
    Follower,
    Killed,
    Killer,
    Mortal,
    numbers,
    on,
    opened,
    put,
    started,
    stored,
)
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import LakeSink, committed_files
from headrace_connect.connectors.places import find_place
from headrace_connect.plugin import PartitionTaken, RetriableError

TOKENS = count()


def work(sink: LakeSink | Follower, end_at: int) -> None:
    """Write ``end_at`` records in steps of three, from where the lake says, with a token for every other one."""
    position = sink.open([P0], 1).get(P0, 0)
    while position < end_at:
        end = min(end_at, position + 3)
        put(sink, position, end)
        sink.commit({P0: end}, b"token %d" % next(TOKENS) if position % 2 else None)
        position = end


def test_killed_at_any_access(tmp_path: Path) -> None:
    moments: set[str] = set()
    for moment in range(1, 1_000):
        lake = tmp_path / str(moment)
        killer = Killer(moment)
        sink = started(lake)
        try:
            work(on(sink, Mortal(lake, killer)), 7)
        except Killed:
            moments.add(killer.last)
        else:
            break
        work(started(lake), 7)
        assert sorted(numbers(lake)) == list(range(7)), f"{moment}, {killer.last}"
    assert moments >= {"before write", "behind write", "before commit", "behind commit", "before token", "behind token"}


def test_a_follower_is_killed_at_any_access(tmp_path: Path) -> None:
    moments: set[str] = set()
    for moment in range(1, 1_000):
        lake = tmp_path / str(moment)
        killer = Killer(moment)
        try:
            work(Follower(lake, Mortal(lake, killer)), 7)
        except Killed:
            moments.add(killer.last)
        else:
            break
        work(Follower(lake, find_place(str(lake))) if moment % 2 else started(lake), 7)
        assert sorted(numbers(lake)) == list(range(7)), f"{moment}, {killer.last}"
    assert moments >= {"before write", "behind write", "before commit", "behind commit"}


def test_the_holder_that_was_paused_writes_nothing_more(tmp_path: Path) -> None:
    old, new = opened(tmp_path), opened(tmp_path)
    put(old, 0, 8)
    put(new, 0, 3)
    new.commit({P0: 3}, None)
    with pytest.raises(PartitionTaken):
        old.commit({P0: 8}, None)
    assert numbers(tmp_path) == [0, 1, 2]
    assert old.open([P0], 1) == {P0: 3}
    put(old, 3, 8)
    old.commit({P0: 8}, None)
    put(new, 3, 5)
    with pytest.raises(PartitionTaken):
        new.commit({P0: 5}, None)
    assert sorted(numbers(tmp_path)) == list(range(8))
    assert len(list((tmp_path / TOPIC / "0").glob("*.parquet"))) == 2, "files of refused commits are deleted"


def test_positions_go_ahead_and_never_back(tmp_path: Path) -> None:
    """Commits are the positions: to go back, data would have to be removed."""
    old, sink, mover = opened(tmp_path), opened(tmp_path), started(tmp_path)
    mover.rewind({P0: None, P1: 0})
    assert not list(tmp_path.rglob("*.commit")), "there was nothing to change"
    put(sink, 0, 5)
    sink.commit({P0: 5}, None)
    old.open([P0], 1)
    put(old, 5, 8)
    for wanted in (4, 0, None):
        with pytest.raises(InvalidConfig, match="another path, or use format=delta"):
            mover.rewind({P1: 7, P0: wanted})
    assert sink.open([P0, P1], 1) == {P0: 5}, "of several none was changed"
    mover.rewind({P0: 100, P1: 7})
    with pytest.raises(PartitionTaken):
        old.commit({P0: 8}, None)
    assert sink.open([P0, P1], 1) == {P0: 100, P1: 7}
    mover.rewind({P0: 100})
    put(sink, 100, 102)
    sink.commit({P0: 102}, None)
    assert sorted(numbers(tmp_path)) == [*range(5), 100, 101]


def test_the_first_commit_decides_wherever_reading_began(tmp_path: Path) -> None:
    """The topic's first records may be deleted between the starts of two holders."""
    one, other = opened(tmp_path), opened(tmp_path)
    put(one, 0, 10)
    put(other, 5, 15)
    other.commit({P0: 15}, None)
    with pytest.raises(PartitionTaken):
        one.commit({P0: 10}, None)
    assert numbers(tmp_path) == list(range(5, 15))


@pytest.mark.parametrize("moment", ["before commit", "behind commit", "before token", "behind token"])
@pytest.mark.parametrize("token", [None, b"a token"])
def test_a_commit_whose_outcome_is_unknown(tmp_path: Path, moment: str, token: bytes | None) -> None:
    """As a request that times out: the same instance asks the lake, and it is decided."""
    if token is None and "token" in moment:
        return
    sink = started(tmp_path)
    place = Unsure(tmp_path, moment)
    on(sink, place)
    sink.open([P0], 1)
    put(sink, 0, 2)
    place.armed = True
    with pytest.raises(RetriableError):
        sink.commit({P0: 2}, token)
    with pytest.raises(RetriableError, match="opened again"):
        put(sink, 2, 3)
    position = sink.open([P0], 1).get(P0)
    done = moment == "behind token" or (token is None and moment == "behind commit")
    assert position == (2 if done else None)
    if token is not None:
        assert sink.settle(token) is done
    place.lands()
    again = sink.open([P0], 1).get(P0, 0)
    assert again == (position or 0), "what comes late changes nothing"
    put(sink, again, 4)
    sink.commit({P0: 4}, None)
    assert sorted(numbers(tmp_path)) == [0, 1, 2, 3]


class Unsure(Mortal):
    """One request gets no answer; it is carried out at once, or when it ``lands``."""

    def __init__(self, directory: Path, moment: str) -> None:
        super().__init__(directory, lambda _: False)
        self.moment = moment
        self._late: list[tuple[str, bytes]] = []
        self.armed = False

    def create(self, name: str, data: bytes) -> bool:
        what = "token" if "/tokens/" in name else name.rpartition(".")[2]
        now = self.armed and self.moment.endswith(what)
        if now:
            self.armed = False
            if self.moment.startswith("before"):
                self._late.append((name, data))
            else:
                super().create(name, data)
            raise RetriableError("nobody answers")
        return super().create(name, data)

    def lands(self) -> None:
        """The requests that were under way."""
        for name, data in self._late:
            super().create(name, data)


def test_a_repeated_request_finds_its_own_commit(tmp_path: Path) -> None:
    place = find_place(str(tmp_path))
    assert place.create("a/b", b"one")
    assert place.create("a/b", b"one")
    assert not place.create("a/b", b"two")
    assert (tmp_path / "a" / "b").read_bytes() == b"one"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_token_commits_all_partitions_or_none(tmp_path: Path) -> None:
    one, other = started(tmp_path), started(tmp_path)
    one.open([P0, P1], 1)
    other.open([P1], 1)
    for partition in (P0, P1):
        one.write(rows([{"n": partition.partition}], partition=partition))
    other.write(rows([{"n": 9}], partition=P1))
    other.commit({P1: 1}, None)
    with pytest.raises(PartitionTaken):
        one.commit({P0: 1, P1: 1}, b"t")
    assert numbers(tmp_path) == [9]
    assert not one.settle(b"t")
    assert one.open([P0, P1], 1) == {P1: 1}
    for attempt in range(3):  # void commits before the one that counts
        one.write(rows([{"n": 0}]))
        assert not one.settle(b"t%d" % attempt)
        with pytest.raises(PartitionTaken):
            one.commit({P0: 1}, b"t%d" % attempt)
        assert one.open([P0], 1) == {}
    one.write(rows([{"n": 0}]))
    one.commit({P0: 1}, b"last")
    assert one.settle(b"last")
    assert sorted(numbers(tmp_path)) == [0, 9]
    assert started(tmp_path).open([P0], 2) == {P0: 1}


def test_who_opens_decides_a_token_that_nobody_used(tmp_path: Path) -> None:
    dead = on(started(tmp_path), Mortal(tmp_path, lambda moment: moment == "before token"))
    dead.open([P0], 1)
    put(dead, 0, 3)
    with pytest.raises(Killed):
        dead.commit({P0: 3}, b"t")
    assert committed_files(str(tmp_path)) == [], "a reader decides nothing, and sees nothing"
    late = on(started(tmp_path), find_place(str(tmp_path)))
    assert late.open([P0], 2) == {}
    assert not late.settle(b"t")
    put(late, 0, 2)
    late.commit({P0: 2}, None)
    assert numbers(tmp_path) == [0, 1]


def test_a_store_that_overwrites_is_refused(tmp_path: Path) -> None:
    class Careless(Mortal):
        def create(self, name: str, data: bytes) -> bool:
            self.write(name, data)
            return True

    sink = started(tmp_path)
    on(sink, Careless(tmp_path, lambda _: False))
    with pytest.raises(InvalidConfig, match="If-None-Match"):
        sink._lake._records.probe()  # type: ignore[attr-defined]


class HoldersOfParquet(Holders):
    """Sinks and followers; some get no answer to a request, which is carried out at once or later."""

    holders = Holders.holders
    COUNT = 12

    def __init__(self) -> None:
        super().__init__()
        self.follows = cycle([False, True])

    def made(self) -> Holder:
        place = Unsure(self.path, "before commit")
        follows = next(self.follows)
        return {"sink": Follower(self.path, place) if follows else on(started(self.path), place), "place": place}

    def found(self) -> list[tuple[int, int]]:
        if not (self.path / TOPIC / "_schema").exists():
            return []
        return [(row["partition"], row["n"]) for row in stored(self.path)]

    @rule(
        holder=holders,
        token=st.sampled_from([None, b"a", b"b", b"c"]),
        moment=st.sampled_from(["", "before commit", "behind commit", "before token", "behind token"]),
    )
    def commits(self, holder: Holder, token: bytes | None, moment: str) -> None:
        place: Unsure = holder["place"]
        place.moment, place.armed = moment, bool(moment)
        self.commit(holder, token)
        place.armed = False

    @rule(holder=holders)
    def lands(self, holder: Holder) -> None:
        holder["place"].lands()

    @rule(holder=holders, token=st.sampled_from([b"a", b"b", b"c"]))
    def settles(self, holder: Holder, token: bytes) -> None:
        first = holder["sink"].settle(token)
        assert holder["sink"].settle(token) is first

    @rule(holder=holders, partition=st.sampled_from([P0, P1]))
    def closes(self, holder: Holder, partition: TopicPartition) -> None:
        holder["sink"].close([partition])
        holder["read"].pop(partition, None)
        holder["done"].pop(partition, None)


TestHolders = HoldersOfParquet.TestCase
TestHolders.settings = settings(
    max_examples=8, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
