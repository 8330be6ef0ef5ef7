"""Snapshots of a worker: when they are taken, which are used, and that nothing but time depends on them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import StorageFailed
from headrace_common.runtime.clock import give_way, limit_ms, limit_s
from headrace_streams.adapters.memory_store import MemoryTaskStore
from headrace_streams.adapters.snapshots import ArrowSnapshots, SnapshotFailed
from headrace_streams.config import StreamsConfig
from headrace_streams.core.snapshots import FileFacts, Log, Manifest, Snapshot, SnapshotDamaged, obsolete, useful
from headrace_streams.patience import Patience
from headrace_streams.plan.cut import SubTopology
from headrace_streams.ports import Checkpoint, Snapshots
from headrace_streams.runtime import snapshotting
from headrace_streams.runtime.following import Changelogs
from headrace_streams.runtime.owned import Owned, Spec
from headrace_streams.runtime.snapshotting import Snapshotting

LOG_ID, OTHER = "ab12-0", "cd34-0"
CHANGELOG = TopicPartition("app.words.changelog", 0)
TASK = "words/0"
DAY_MS = 86_400_000
NOW_MS = 10 * DAY_MS
OLD_MS = NOW_MS - DAY_MS // 2 - 1
"""Deletions of then may be gone from the changelog."""
KEYS = [b"a", b"b", b"c", b"d"]


def taken(next_offset: int, epoch: int = 1, at_ms: int = NOW_MS, log_id: str = LOG_ID, **more: Any) -> Snapshot:
    return Snapshot(next_offset, epoch, at_ms, log_id, **more)


# --- what is decided --------------------------------------------------------------------------------------------------


def test_a_name_says_all_and_names_sort_as_commits_do() -> None:
    for one in (taken(7), taken(2**62, 2**62, 0, "a-b_1-12"), taken(9, complete=False)):
        assert Snapshot.parse(one.name, complete=one.complete) == one
    assert sorted([taken(10).name, taken(9, 2).name, taken(9, 1).name]) == [
        one.name for one in (taken(9, 1), taken(9, 2), taken(10))
    ]
    for strange in ("notes", "7-1-0-x", taken(7).name + "/..", taken(7).name.replace("0", "x", 1)):
        assert Snapshot.parse(strange, complete=True) is None


LOG = Log(LOG_ID, start=5, end=20, oldest_ms=OLD_MS + 1, newest_ms=NOW_MS)


@pytest.mark.parametrize(
    ("one", "trusted"),
    [
        (taken(5), True),
        (taken(20), True),
        (taken(10, at_ms=OLD_MS + 1), True),
        (taken(4), False),
        (taken(21), False),
        (taken(10, at_ms=OLD_MS), False),
        (taken(10, at_ms=NOW_MS + 1), False),
        (taken(10, log_id=OTHER), False),
        (taken(10, complete=False), False),
    ],
)
def test_which_can_be_trusted(one: Snapshot, trusted: bool) -> None:
    assert useful([one], LOG, begin=0, lag=0) == [one] * trusted


def test_the_newest_comes_first_and_only_what_is_worth_it() -> None:
    found = [taken(8), taken(12, 1), taken(12, 3), taken(9)]
    assert useful(found, LOG, begin=7, lag=1) == [taken(12, 3), taken(12, 1), taken(9)]
    assert useful(found, LOG, begin=12, lag=0) == []


def test_the_last_two_stay() -> None:
    found = [taken(7), taken(9), taken(8), taken(9, 2)]
    assert sorted(obsolete(found, LOG_ID, OLD_MS)) == [taken(7), taken(8)]


def test_what_was_begun_and_never_ended_goes_when_another_is_newer() -> None:
    cut_off = [taken(8, complete=False), taken(10, complete=False)]
    assert obsolete([*cut_off, taken(9)], LOG_ID, OLD_MS) == [taken(8)]
    assert obsolete(cut_off, LOG_ID, OLD_MS) == []
    assert obsolete([taken(9), taken(7), cut_off[0]], LOG_ID, OLD_MS) == [taken(8)]


def test_of_another_log_only_what_is_old_goes() -> None:
    found = [taken(9), taken(1, log_id=OTHER), taken(99, at_ms=OLD_MS, log_id=OTHER), taken(98, log_id=OTHER)]
    assert obsolete(found, LOG_ID, OLD_MS + 1) == [taken(99, at_ms=OLD_MS, log_id=OTHER)]


def test_the_last_two_stay_though_they_are_old() -> None:
    """Nobody has committed since; what is not complete is of no use."""
    found = [taken(9, at_ms=OLD_MS), taken(8, at_ms=OLD_MS), taken(10, at_ms=OLD_MS, complete=False)]
    assert obsolete(found, LOG_ID, OLD_MS + 1) == found[2:]


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = Manifest({"CURRENT": FileFacts(3, "ab"), "8.sst": FileFacts(0, "")})
    assert Manifest.decode(manifest.encode()) == manifest


# --- a worker ---------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> float:
        return float(self.ms)

    async def sleep_ms(self, ms: float) -> None:
        self.ms += int(ms)
        await give_way()


class Changelog:
    """One partition; notes from where it was read."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes | None]] = []
        self.start = 0
        self.began: list[int] = []
        self._position: int | None = None

    def write(self, number: int, key: bytes = b"", *, deletes: bool = False) -> None:
        """One commit."""
        self.rows.append((key or KEYS[number % len(KEYS)], None if deletes else str(number).encode()))

    def expected(self) -> dict[bytes, bytes]:
        return {key: value for key, value in dict(self.rows).items() if value is not None}

    async def starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.start)

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, len(self.rows))

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._position = positions.get(CHANGELOG)
        if self._position is not None:
            self.began.append(self._position)
            self._position = max(self.start, self._position)

    async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        assert self._position is not None, "a consumer that reads nothing waits for ever"
        await give_way()
        end = len(self.rows)
        if self._position == end:
            return []
        keys, values = zip(*self.rows[self._position :], strict=True)
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
        self._position = end
        return [PartitionTable(CHANGELOG.topic, CHANGELOG.partition, table, end, 0, end, end)]


async def at_once(call: Callable[..., Any], *args: Any) -> Any:
    await give_way()
    return call(*args)


class Machine:
    """A worker's part in snapshots, with an empty disk."""

    def __init__(self, log: Changelog, snapshots: Snapshots, *, epoch: int = 1, lag: int = 0, **more: Any) -> None:
        config = StreamsConfig(acceptable_recovery_lag=lag, delete_retention_ms=DAY_MS)
        self.log = log
        self.clock = Clock()
        self.counts: Counter[str] = Counter()
        outside: Any = SimpleNamespace(
            **{
                "snapshots": snapshots,
                "changelogs": log,
                "clock": self.clock,
                "compute": at_once,
                "look": at_once,
                **more,
            }
        )
        self.snapshotting = Snapshotting(config, outside, self.counts)
        spec = Spec(SubTopology("words", (), ("in",), ()), 0, ("in",), {}, CHANGELOG, LOG_ID)
        self.store = MemoryTaskStore()
        self.owned = Owned(spec, None, self.store, epoch=epoch)  # type: ignore[arg-type]
        self.snapshotting.owned = {TASK: self.owned}
        self.changelogs = Changelogs(
            log,  # type: ignore[arg-type]
            self.clock,  # type: ignore[arg-type]
            config.trusted_ms,
            at_once,
            Patience(self.clock, 1_000),  # type: ignore[arg-type]
            self.snapshotting.bring,
        )

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.store._rows.scan())

    def commit(self, number: int) -> None:
        """As a worker does it: the changelog first, then the disk."""
        self.log.write(number)
        self.store.write(self.log.rows[-1:], Checkpoint(LOG_ID, len(self.log.rows), self.clock.now_ms()))

    async def take(self) -> None:
        """What it does every ten minutes."""
        assert self.snapshotting._outside.snapshots is not None
        await self.snapshotting._take_in_time(self.snapshotting._outside.snapshots, self.owned, self.store)

    async def restore(self) -> None:
        async with self.following():
            self.changelogs.follow(self.owned)
            await self.changelogs.reach(CHANGELOG, len(self.log.rows))

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.changelogs.run())
        try:
            async with limit_s(20):
                yield
        finally:
            running.cancel()
            await asyncio.wait([running])


@pytest.fixture
def place() -> ArrowSnapshots:
    return ArrowSnapshots("mock:///snapshots", "app")


@pytest.fixture
def log() -> Changelog:
    return Changelog()


async def owner(log: Changelog, place: Snapshots, commits: int = 10, **more: Any) -> Machine:
    """Whoever had the task first, with a snapshot as of its last commit."""
    machine = Machine(log, place, **more)
    for number in range(commits):
        machine.commit(number)
    await machine.take()
    return machine


async def test_an_empty_disk_begins_with_a_snapshot(log: Changelog, place: ArrowSnapshots) -> None:
    first = await owner(log, place)
    for number in range(10, 13):
        first.commit(number)
    second = Machine(log, place)
    await second.restore()
    assert (second.rows(), log.began) == (log.expected(), [10])
    assert second.counts == {"snapshots_restored": 1}
    assert first.counts == {"snapshots": 1}


async def test_a_deletion_behind_the_snapshot_counts(log: Changelog, place: ArrowSnapshots) -> None:
    await owner(log, place)
    log.write(0, b"a", deletes=True)
    second = Machine(log, place)
    await second.restore()
    assert b"a" not in second.rows()
    assert second.rows() == log.expected()


@pytest.mark.parametrize(("on_disk", "lag", "began"), [(9, 1, 9), (8, 1, 10), (0, 10, -1), (0, 9, 10)])
async def test_a_disk_that_is_near_is_used_as_it_is(
    log: Changelog, place: ArrowSnapshots, on_disk: int, lag: int, began: int
) -> None:
    await owner(log, place)
    second = Machine(log, place, lag=lag)
    if on_disk:
        second.store.write(log.rows[:on_disk], Checkpoint(LOG_ID, on_disk, NOW_MS))
    await second.restore()
    assert (second.rows(), log.began) == (log.expected(), [began])


async def test_nothing_is_asked_for_a_disk_that_is_near(log: Changelog) -> None:
    second = await owner(log, Broken("find"))
    second.counts.clear()
    await second.restore()
    assert (log.began, second.counts) == ([10], {})


@pytest.mark.parametrize("checkpoint", [Checkpoint(OTHER, 10, NOW_MS), Checkpoint(LOG_ID, 10, OLD_MS)])
async def test_a_disk_that_cannot_be_trusted_is_as_an_empty_one(
    log: Changelog, place: ArrowSnapshots, checkpoint: Checkpoint
) -> None:
    await owner(log, place)
    second = Machine(log, place)
    second.store.write([(b"strange", b"x")], checkpoint)
    await second.restore()
    assert (second.rows(), log.began) == (log.expected(), [10])


def damage(place: ArrowSnapshots, one: Snapshot, file: str = "rows") -> None:
    with place._files.open_output_stream(f"{place._at(TASK, one)}/{file}") as target:
        target.write(b"damaged")


async def test_a_damaged_one_is_left_out(
    log: Changelog, place: ArrowSnapshots, caplog: pytest.LogCaptureFixture
) -> None:
    first = await owner(log, place)
    first.commit(10)
    await first.take()
    damage(place, taken(11))
    second = Machine(log, place)
    await second.restore()
    assert (second.rows(), log.began) == (log.expected(), [10])
    assert second.counts == {"snapshots_restored": 1, "snapshots_failed": 1}
    assert "a snapshot of task words/0 is left out: the snapshot " in caplog.text
    damage(place, taken(10), "manifest.json")
    third = Machine(log, place)
    await third.restore()
    assert (third.rows(), log.began[-1]) == (log.expected(), -1)
    assert third.counts == {"snapshots_failed": 2}


async def test_one_that_is_not_complete_is_not_looked_at(log: Changelog, place: ArrowSnapshots) -> None:
    await owner(log, place)
    place._files.delete_file(f"{place._at(TASK, taken(10))}/manifest.json")
    second = Machine(log, place)
    await second.restore()
    assert (second.rows(), log.began, second.counts) == (log.expected(), [-1], {})


@pytest.mark.parametrize(
    ("held", "named"),
    [
        (Checkpoint(OTHER, 10, NOW_MS), taken(10)),
        (Checkpoint(LOG_ID, 9, NOW_MS), taken(10)),
        (Checkpoint(LOG_ID, 11, NOW_MS), taken(10)),
        (Checkpoint(LOG_ID, 10, OLD_MS), taken(10)),
        (None, taken(10)),
    ],
)
async def test_one_that_holds_another_state_is_not_believed(
    log: Changelog, place: ArrowSnapshots, tmp_path: Path, held: Checkpoint | None, named: Snapshot
) -> None:
    """Its name and its manifest are in order; its rows are of somebody else."""
    for number in range(10):
        log.write(number)
    strange = MemoryTaskStore()
    strange.write([(b"strange", b"x")], held)  # type: ignore[arg-type]
    strange.copy(tmp_path)
    await place.put(TASK, named, tmp_path)
    second = Machine(log, place)
    await second.restore()
    assert (second.rows(), log.began) == (log.expected(), [-1])
    if held is None or held.log_id == OTHER or held.next_offset < named.next_offset:
        assert second.counts == {"snapshots_failed": 1}


async def test_what_is_below_the_start_of_the_log_is_not_used(log: Changelog, place: ArrowSnapshots) -> None:
    """Else reading on would fail, and an empty disk would not."""
    await owner(log, place)
    for number in range(10, 14):
        log.write(number)
    log.start = 11
    second = Machine(log, place)
    await second.restore()
    assert log.began == [-1]


class Broken(ArrowSnapshots):
    """Cannot do some things."""

    def __init__(self, *broken: str) -> None:
        super().__init__("mock:///snapshots", "app")
        self.broken = set(broken)

    async def _refuse(self, what: str, do: Awaitable[Any]) -> Any:
        result = await do
        if what in self.broken:
            raise SnapshotFailed("the place is away")
        return result

    async def find(self, task: str) -> list[Snapshot]:
        found: list[Snapshot] = await self._refuse("find", super().find(task))
        return found

    async def put(self, task: str, snapshot: Snapshot, directory: Path) -> None:
        await self._refuse("put", super().put(task, snapshot, directory))

    async def get(self, task: str, snapshot: Snapshot, directory: Path) -> None:
        await self._refuse("get", super().get(task, snapshot, directory))

    async def delete(self, task: str, snapshot: Snapshot) -> None:
        await self._refuse("delete", super().delete(task, snapshot))


@pytest.mark.parametrize("broken", ["find", "get"])
async def test_a_place_that_is_away_costs_time_alone(
    log: Changelog, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = Broken()
    await owner(log, place)
    place.broken = {broken}
    second = Machine(log, place)
    await second.restore()
    assert (second.rows(), log.began) == (log.expected(), [-1])
    assert second.counts == {"snapshots_failed": 1}
    assert "the place is away" in caplog.text


@pytest.mark.parametrize(
    ("of_limit", "taking", "bringing", "said"),
    [
        (10_000, "find", "find", "the place of snapshots has not answered for 10000 ms"),
        (600_000, "put", "get", "it took longer than 600000 ms"),
    ],
)
async def test_a_place_that_does_not_answer_is_given_up(
    log: Changelog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    of_limit: int,
    taking: str,
    bringing: str,
    said: str,
) -> None:
    class Silent(Broken):
        async def _refuse(self, what: str, do: Awaitable[Any]) -> Any:
            result = await do
            if what in self.broken:
                await asyncio.Event().wait()
            return result

    place = Silent()
    first = await owner(log, place)
    monkeypatch.setattr(snapshotting, "limit_ms", lambda ms: limit_ms(1 if ms == of_limit else None))
    place.broken = {taking}
    first.commit(10)
    await first.take()
    assert first.counts == {"snapshots": 1, "snapshots_failed": 1}
    assert f"no snapshot of task words/0 was taken: {said}" in caplog.text
    place.broken = {bringing}
    second = Machine(log, place)
    await second.restore()
    assert (second.rows(), second.counts) == (log.expected(), {"snapshots_failed": 1})
    assert f"task words/0 is restored from its changelog alone: {said}" in caplog.text


async def test_a_task_that_is_given_up_while_a_snapshot_is_brought_is_let_go_of(log: Changelog) -> None:
    asked = asyncio.Event()

    class Slow(Broken):
        async def get(self, task: str, snapshot: Snapshot, directory: Path) -> None:
            asked.set()
            await asyncio.Event().wait()

    place = Slow()
    await owner(log, place)
    second = Machine(log, place)
    async with second.following():
        second.changelogs.follow(second.owned)
        await asked.wait()
        assert second.changelogs.lags() == {}, "it is not known yet"
        await second.changelogs.leave(CHANGELOG)
        assert f"prepare {TASK}" not in {task.get_name() for task in asyncio.all_tasks()}
    assert second.rows() == {}


# --- taking them ------------------------------------------------------------------------------------------------------


async def test_one_is_taken_each_interval_of_what_has_changed(log: Changelog, place: ArrowSnapshots) -> None:
    machine = Machine(log, place)
    machine.commit(0)
    running = asyncio.create_task(machine.snapshotting.run())
    async with limit_s(20):
        for number in range(1, 5):
            while machine.counts["snapshots"] < number:
                await give_way()
            began_ms = machine.clock.ms
            while machine.clock.ms < began_ms + 3 * 600_000:
                await give_way()
            assert machine.counts == {"snapshots": number}, "nothing has changed"
            machine.commit(number)
    running.cancel()
    await asyncio.wait([running])
    assert len(await place.find(TASK)) in (2, 3)


async def test_the_last_two_are_there(log: Changelog, place: ArrowSnapshots) -> None:
    machine = await owner(log, place)
    for number in range(10, 14):
        machine.commit(number)
        await machine.take()
    assert sorted(await place.find(TASK)) == [taken(13), taken(14)]
    assert machine.counts == {"snapshots": 5}


async def test_a_worker_that_was_put_out_and_does_not_know_it_changes_nothing(
    log: Changelog, place: ArrowSnapshots
) -> None:
    """Its disk is behind; what it writes is true, and is deleted as the older one."""
    zombie = await owner(log, place, epoch=1)
    successor = Machine(log, place, epoch=2)
    await successor.restore()
    zombie_only = Machine(log, place, epoch=1)
    zombie_only.store.write(log.rows[:9], Checkpoint(LOG_ID, 9, NOW_MS))
    for number in range(10, 13):
        successor.commit(number)
        await successor.take()
        await zombie_only.take()
    assert sorted(await place.find(TASK)) == [taken(12, 2), taken(13, 2)]
    assert zombie_only.counts == {}, "there are newer ones"
    third = Machine(log, place)
    await third.restore()
    assert (third.rows(), log.began[-1]) == (log.expected(), 13)
    assert zombie.counts == {"snapshots": 1}


async def test_two_that_write_at_the_same_time_write_beside_each_other(log: Changelog) -> None:
    begin = asyncio.Event()

    class Slow(Broken):
        async def put(self, task: str, snapshot: Snapshot, directory: Path) -> None:
            await begin.wait()
            await super().put(task, snapshot, directory)

    place = Slow()
    one, other = Machine(log, place, epoch=1), Machine(log, place, epoch=2)
    one.commit(0)
    other.store.write(log.rows, Checkpoint(LOG_ID, 1, NOW_MS))
    takes = [asyncio.create_task(machine.take()) for machine in (one, other)]
    await give_way()
    begin.set()
    await asyncio.gather(*takes)
    assert sorted(await place.find(TASK)) == [taken(1, 1), taken(1, 2)]
    third = Machine(log, place)
    await third.restore()
    assert (third.rows(), log.began) == (log.expected(), [1])


async def test_state_that_is_too_old_to_be_used_is_not_written(log: Changelog, place: ArrowSnapshots) -> None:
    machine = Machine(log, place)
    machine.commit(0)
    machine.clock.ms += DAY_MS // 2 + 1
    await machine.take()
    assert (await place.find(TASK), machine.counts) == ([], {})
    machine.store.wipe()
    await machine.take()
    assert (await place.find(TASK), machine.counts) == ([], {})


@pytest.mark.parametrize("broken", ["find", "put", "delete"])
async def test_one_that_cannot_be_taken_is_counted_and_the_next_is_tried(
    log: Changelog, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = Broken()
    machine = await owner(log, place)
    machine.commit(10)
    await machine.take()
    place.broken = {broken}
    machine.commit(11)
    await machine.take()
    assert machine.counts["snapshots_failed"] == 1
    assert "no snapshot of task words/0 was taken: the place is away" in caplog.text
    place.broken = set()
    machine.commit(12)
    await machine.take()
    assert max(await place.find(TASK)) == taken(13)
    assert machine.counts["snapshots_failed"] == 1


async def test_what_is_cut_off_or_of_another_log_stands_in_no_way(
    log: Changelog, place: ArrowSnapshots, tmp_path: Path
) -> None:
    """A topic that was made anew begins at 0 again."""
    (tmp_path / "rows").write_bytes(b"x")
    await place.put(TASK, taken(99, log_id=OTHER), tmp_path)
    await place.put(TASK, taken(10, 7), tmp_path)
    place._files.delete_file(f"{place._at(TASK, taken(10, 7))}/manifest.json")
    await owner(log, place)
    assert [one.next_offset for one in sorted(await place.find(TASK)) if one.complete] == [10, 99]


async def test_a_task_that_leaves_meanwhile_is_no_failure(log: Changelog, place: ArrowSnapshots) -> None:
    machine = Machine(log, place)
    machine.commit(0)

    def closed(directory: Path) -> None:
        machine.snapshotting.owned = {}
        raise StorageFailed("it is closed")

    machine.store.copy = closed  # type: ignore[method-assign]
    await machine.take()
    assert machine.counts == {}


async def test_uncommitted_state_is_in_no_snapshot(log: Changelog, place: ArrowSnapshots) -> None:
    """A commit that is in the changelog, and whose verdict this worker does not know yet, is not on its disk."""
    machine = await owner(log, place, commits=3)
    log.write(3)
    await machine.take()
    assert await place.find(TASK) == [taken(3)]


# --- a law ------------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["commit", "commit", "delete", "take", "damage", "cut off", "move"]),
        st.integers(0, len(KEYS) - 1),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(did=steps)
def test_what_is_restored_is_what_the_changelog_says(did: list[tuple[str, int]]) -> None:
    """Whatever snapshots there are, of whoever, damaged or not."""
    asyncio.run(_check(did))


async def _check(did: list[tuple[str, int]]) -> None:
    log, place = Changelog(), ArrowSnapshots("mock:///snapshots", "app")
    epoch = 1
    machine = Machine(log, place, epoch=epoch)
    for what, key in did:
        if what in ("commit", "delete"):
            log.write(len(log.rows), KEYS[key], deletes=what == "delete")
            machine.store.write(log.rows[-1:], Checkpoint(LOG_ID, len(log.rows), NOW_MS))
        elif what == "take":
            await machine.take()
        elif what in ("damage", "cut off") and (found := await place.find(TASK)):
            damage(place, max(found), "rows" if what == "damage" else "manifest.json")
        elif what == "move":
            epoch += 1
            machine = Machine(log, place, epoch=epoch)
            await machine.restore()
            assert machine.rows() == log.expected()
    last = Machine(log, place)
    await last.restore()
    assert last.rows() == log.expected()


def test_a_manifest_knows_its_files() -> None:
    manifest = Manifest({"CURRENT": FileFacts(3, "ab")})
    manifest.check("CURRENT", FileFacts(3, "ab"))
    for wrong in (FileFacts(4, "ab"), FileFacts(3, "cd")):
        with pytest.raises(SnapshotDamaged, match="its file CURRENT has"):
            manifest.check("CURRENT", wrong)
