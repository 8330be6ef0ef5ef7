"""Workers that are killed or stopped at each step of a commit: every row is in the output once, and state is exact."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from headrace.testing import TestCluster
from headrace_streams.adapters.rocksdb_store import RocksDbStores
from headrace_streams.core.state.changelog import prefix
from headrace_streams.worker_process import Ending

from .apps import WORDS, AppUnderTest, Row, app, check_each_count, check_each_count_once, end, some_lines
from .states import check_disks
from .states import counted as state_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

POINTS = ("streams.fed", "streams.flushed", "streams.changelog", "sdk.txn.offsets.after", "sdk.txn.end.before")
DAY_MS = 86_400_000
AFTER = ("sdk.txn.end.after", "streams.committed", "streams.kept")


def test_a_worker_dies_at_each_step(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "counts")
    counted: Counter[str] = Counter()
    for turn, point in enumerate((*POINTS, *AFTER)):
        lines = some_lines(turn, 30)
        counted.update(word for line in lines for word in line.split())
        tested.arm(point, "kill")
        with tested.running() as worker:
            tested.send([line.encode() for line in lines])
            tested.wait_for(point)
            worker.wait()
    with tested.running() as worker:
        found = tested.read(sum(counted.values()))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == Ending.DONE, tested.log()
    check_each_count_once(found, counted)
    assert check_disks(cluster, f"{tested.lines}-counts", [tmp_path / "state"]) == 3
    assert state_of(cluster, f"{tested.lines}-counts") == counted


@pytest.mark.parametrize("program", ["counts", "numbered"])
def test_at_least_once_output_comes_again_and_nothing_is_counted_again(
    cluster: TestCluster, tmp_path: Path, program: str
) -> None:
    """Workers of both guarantees follow each other; the rows of one that was killed before its commit are there."""
    tested = app(cluster, tmp_path, program)
    counted: Counter[str] = Counter()
    for turn, point in enumerate((*POINTS, *AFTER)):
        words = random.Random(turn).choices(WORDS, k=100)
        counted.update(words)
        tested.arm(point, "kill")
        guarantee = "exactly_once" if turn in (2, 5) else "at_least_once"
        with tested.running(processing_guarantee=guarantee) as worker:
            tested.send([word.encode() for word in words], [word.encode() for word in words])
            tested.wait_for(point)
            worker.wait()
    with tested.running(processing_guarantee="at_least_once"):
        found = tested.read_until(lambda rows: len({(row["word"], row["n"]) for _, row in rows}) >= counted.total())
    check_each_count(found, counted)
    if program == "numbered":  # "counts" may have been killed before the words had passed the repartition topic
        assert len(found) > counted.total(), "what was sent before a commit that did not come"


def test_workers_that_slept_change_nothing_and_join_anew(cluster: TestCluster, tmp_path: Path) -> None:
    """Each is stopped in the middle of a commit; another does the work from a disk without state; then they wake."""
    tested = app(cluster, tmp_path, "counts")
    lines = some_lines(7, 80)
    counted = Counter(word for line in lines for word in line.split())
    done = Counter(word for line in lines[:60] for word in line.split())
    sleepers = []
    try:
        for turn, point in enumerate(("streams.fed", "streams.changelog", "sdk.txn.end.before")):
            tested.arm(point, "stop")
            sleepers.append(tested.start(f"state-{turn}"))
            tested.send([line.encode() for line in lines[20 * turn : 20 * turn + 20]])
            tested.wait_for(point)
        with tested.running("state-last"):
            tested.read(sum(done.values()))
            for sleeper in sleepers:
                sleeper.send_signal(signal.SIGCONT)
            tested.wait_for_log("joins anew", len(sleepers))
            tested.send([line.encode() for line in lines[60:]])
            found = tested.read(sum(counted.values()))
            assert all(sleeper.poll() is None for sleeper in sleepers), tested.log()
    finally:
        for sleeper in sleepers:
            end(sleeper)
    check_each_count_once(found, counted)


def test_state_is_the_same_from_a_disk_an_older_disk_and_none(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "numbered")
    counted: Counter[str] = Counter()

    def more(seed: int) -> None:
        words = random.Random(seed).choices(WORDS, k=200)
        counted.update(words)
        tested.send([b"x"] * len(words), [word.encode() for word in words])

    more(1)
    with tested.running() as worker:
        tested.read(sum(counted.values()))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == Ending.DONE, tested.log()
    shutil.copytree(tmp_path / "state", tmp_path / "older")
    for turn, state in enumerate(("state", "older", "none", "state")):
        more(2 + turn)
        with tested.running(state):
            found = tested.read(sum(counted.values()))
        check_each_count_once(found, counted)


def test_a_program_that_fails_says_which_record_and_does_not_go_on(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "windows")
    tested.send([b'{"user": "ann", "at": 1}', b"no json"])
    with tested.running() as worker:
        assert worker.wait(60) == Ending.FAILED
    assert f"{tested.lines}-" in tested.log()
    assert "at offset" in tested.log()


def test_dead_letters_come_once_each(cluster: TestCluster, tmp_path: Path) -> None:
    """What is no JSON, and what has no key, beside what is counted; workers die before and after a verdict."""
    tested = app(cluster, tmp_path, "letters", 1)
    tested.late = cluster.unique_topic("dead", 1)
    counted: Counter[str] = Counter()
    buried: Counter[tuple[bytes | None, bytes]] = Counter()
    for turn, point in enumerate(("streams.changelog", "sdk.txn.end.before", "sdk.txn.end.after")):
        letters = [(b"a", b"no json %d" % turn), (None, b'{"x": %d}' % turn), (b"b", b'{"x": "y%d"}' % turn)]
        words = random.Random(turn).choices(WORDS, k=20)
        counted.update(words)
        buried.update(letters)
        records: list[tuple[bytes | None, bytes]] = [(word.encode(), b'{"x": 1}') for word in words]
        records[7:7] = letters
        tested.arm(point, "kill")
        with tested.running() as worker, cluster.producer() as producer:
            producer.send_many(tested.lines, [value for _, value in records], keys=[key for key, _ in records])
            producer.flush()
            tested.wait_for(point)
            worker.wait()
    with tested.running():
        found = tested.read(counted.total())
    check_each_count_once(found, counted)
    with cluster.consumer(tested.late, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        letters_there = consumer.read_to_end()
    assert Counter((letter.key, letter.value) for letter in letters_there) == buried
    places = {dict(letter.headers)["headrace.error.offset"] for letter in letters_there}
    assert len(places) == buried.total(), "each says of which record it is"


def test_state_that_is_older_than_deletions_are_kept_is_rebuilt(cluster: TestCluster, tmp_path: Path) -> None:
    """It is not as the changelog has it, as if records had been deleted meanwhile that nobody can read any more."""
    tested = app(cluster, tmp_path, "numbered")
    counted = Counter(WORDS * 3)

    def run() -> list[Row]:
        with tested.running() as worker:
            found = tested.read(counted.total())
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == Ending.DONE, tested.log()
        return found

    words = [word.encode() for word in WORDS * 3]
    tested.send([b"x"] * len(words), words)
    check_each_count_once(run(), counted)
    with RocksDbStores(tmp_path / "state", f"{tested.lines}-numbered") as stores:
        disks = stores.tidy(0)
        for (part, partition), checkpoint in disks.items():
            store = stores.open(part, partition)
            rows = [(prefix("numbers") + key, None) for key, _ in store.cold("numbers").scan()]
            store.write(rows, replace(checkpoint, at_ms=checkpoint.at_ms - DAY_MS))
            store.close()
            assert rows
    assert len(disks) == 3
    counted.update(WORDS)
    tested.send([b"x"] * len(WORDS), words[: len(WORDS)])
    check_each_count_once(run(), counted)


def test_a_record_of_16_mb_is_an_error_of_the_record(cluster: TestCluster, tmp_path: Path) -> None:
    """Neither the output's topic takes it nor a repartition topic: both rows are dead letters, and the others go on."""
    lines, dead = (cluster.unique_topic(name, max_message_bytes=str(16 << 20)) for name in ("lines", "dead"))
    tested = AppUnderTest(cluster, tmp_path, "large", lines, cluster.unique_topic("words"), dead)
    huge = b"x" * 16_000_000
    with cluster.producer(max_request_size=16 << 20) as producer:
        producer.send_many(lines, [b"first", huge, b"last"])
        producer.flush()
    with tested.running() as worker:
        found = tested.read(4)
        assert worker.poll() is None, tested.log()
    assert Counter(row["word"] for _, row in found) == {"first": 2, "last": 2}
    with cluster.consumer(dead, isolation_level="read_committed") as consumer:
        letters = list(consumer.read_to_end())
    assert [letter.value == huge for letter in letters] == [True, True]
    reasons = sorted(dict(letter.headers)["headrace.error.message"].decode() for letter in letters)
    assert "and a repartition topic takes rows of 8,3" in reasons[0]
    assert f"its record for {tested.words} has 16,000,0" in reasons[1]


def test_final_windows_come_once_each(cluster: TestCluster, tmp_path: Path) -> None:
    """
    Killed between windows: event times are state, so nothing is closed twice or forgotten, and who is late for a window
    that closed before the kill is late.
    """
    tested = app(cluster, tmp_path, "windows", 1)
    tested.late = cluster.unique_topic("late", 1)
    expected: Counter[tuple[str, int]] = Counter()
    chance = random.Random(3)
    clock = 0
    for turn in range(4):
        rows = [b'{"user": "old", "at": 1}'] if turn else []
        for _ in range(100):
            clock += chance.randrange(10)
            user = chance.choice("abc")
            expected[user, clock // 100 * 100] += 1
            rows.append(b'{"user": "%s", "at": %d}' % (user.encode(), clock))
        if turn == 3:  # far ahead, so that all windows close
            rows.append(b'{"user": "z", "at": %d}' % (clock + 100_000))
        tested.arm("streams.committed", "kill")
        with tested.running() as worker:
            tested.send(rows)
            worker.wait(60)
    with tested.running():
        found = tested.read(len(expected))
    counted = Counter({(row["user"], _ms(row["window_start"])): row["n"] for _, row in found})
    assert counted == expected
    assert len(found) == len(expected), "no window came twice"
    with cluster.consumer(tested.late, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        assert [orjson.loads(record.value)["user"] for record in consumer.read_to_end()] == ["old"] * 3


def _ms(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1_000)


def test_records_that_were_deleted_before_they_were_read_stop_the_app(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "counts", 1)
    tested.send([b"one two"])
    with tested.running() as worker:
        tested.read(2)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == Ending.DONE, tested.log()
    tested.send([b"three"] * 5)
    with cluster.admin() as admin:
        admin.delete_records({(tested.lines, 0): 4})
    with tested.running() as worker:
        assert worker.wait(60) == Ending.FAILED, tested.log()
    assert "Keep records for longer than the app may stand still" in tested.log()
    assert len(tested.read(2)) == 2, "nothing of what lies behind the gap was taken"
