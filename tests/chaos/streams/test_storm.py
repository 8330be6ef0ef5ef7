"""
A word count by two workers, which are killed and stopped at each step of a commit and replaced in their sleep, whose
disks are full for a while and whose transactions are aborted, while brokers, coordinators and the controller are killed
and stopped: each number of each word comes, exactly once or at least once as was asked for, and the state is that of
the words: in the changelogs, and on each disk as of its checkpoint.

STREAMS_LONG=1 is the long form (root: disks that can be full; 10 minutes for each guarantee, and then until each point
of a commit was hit often enough); CHAOS_SEED names the
faults.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from tests.chaos.points import HITTING_S, STOP, Aborts, Points, rage_until_hit
from tests.chaos.transactions.storm import (
    FAULTS,
    SEED,
    STOPS,
    Crew,
    Storm,
    hurt_cluster,
    make_topic,
    nothing_hangs,
    report,
    until,
)
from tests.integration.streams.apps import Row, check_each_count, check_each_count_once
from tests.integration.streams.states import check_disks, counted

from headrace.testing import TestCluster
from headrace_streams.config import EXACTLY_ONCE

LONG = os.environ.get("STREAMS_LONG") == "1"
SECONDS, LINES_S = (600.0, 250) if LONG else (14.0, 430)
HITS = 20 if LONG else 0
"""Each point has to be hit so often by a kill, and by a stop."""
PARTITIONS = 3
SLOTS = 4 if LONG else 2
"""Workers at a time."""
WORDS = [f"word{number}" for number in range(300)]
STEP_S = 0.1
POINTS_EVERY_S = 0.2 if LONG else 1.0
FULL_S = (2.0, 8.0)
ABORTED = "streams.aborted"
POINTS = (
    "streams.fed",
    "streams.flushed",
    "streams.encoded",
    "streams.changelog",
    "sdk.txn.offsets.after",
    "sdk.txn.end.before",
    "sdk.txn.end.after",
    "streams.committed",
    "streams.kept",
    ABORTED,
)
"""One or more for each step of a commit."""
SLEEP_S = (4.0, 8.0)
"""Longer than the group's session: others have its tasks when a worker wakes."""
DISK_BYTES = 256 << 20
READ_S = 900.0 if LONG else 120.0
"""For what was written, some of it twice, to be read record by record."""
ROWS_AT_ONCE = 20_000
END_S = 240.0
"""For what is left to be acknowledged."""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(SECONDS + HITTING_S + END_S + READ_S + 600 if LONG else 300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data", "lines", "words", app="lines-counts") as started:
        yield started


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Path]:
    """Where workers have their state; a small disk in the long form."""
    where = tmp_path / "states"
    where.mkdir()
    if not LONG:
        yield where
        return
    assert os.geteuid() == 0, "the long form mounts a tmpfs: run it as root, or in a user namespace (unshare -rm)"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(where)], check=True, timeout=20)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True, timeout=20)


class Load(threading.Thread):
    """Writes lines evenly, until it is told to end."""

    def __init__(self, cluster: TestCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic = cluster, topic
        self._ending = threading.Event()
        self.words: Counter[str] = Counter()
        self.lines = 0

    def end(self) -> None:
        """Returns when all is acknowledged."""
        self._ending.set()
        self.join(END_S)
        assert not self.is_alive(), "the load was acknowledged"

    def run(self) -> None:
        """To the last acknowledgement; a line that was not acknowledged fails the test by its words."""
        chance, began = random.Random(SEED), time.monotonic()
        with self._cluster.producer(delivery_timeout_ms=180_000) as producer:
            while not self._ending.wait(STEP_S):
                due = int((time.monotonic() - began) * LINES_S) + 1
                lines = [chance.choices(WORDS, k=3) for _ in range(self.lines, due)]
                self.words.update(word for line in lines for word in line)
                producer.send_many(self._topic, [" ".join(line).encode() for line in lines])
                self.lines = due
            producer.flush(180)


class Workers(Crew):
    """Who was replaced in its sleep wakes, joins anew and shares the work for a while; then it is killed."""

    points: Points
    chance: random.Random
    disk: Disk
    aborts: Aborts

    def tend(self) -> None:
        """Also those that woke, and those that stand still at a point."""
        self.disk.tend()
        if self.points.armed == ABORTED:
            self.aborts.abort_soon()
        done = self.points.look()
        if done is not None and done[0] == STOP:
            self._replaced(done[1])
        super().tend()
        for worker in self.sleeping:
            if worker.wakes_at == float("inf") and worker.errors.read_text(errors="replace").count("joins anew"):
                worker.process.kill()

    def stop(self) -> None:
        """All end well, so that their disks have what they know."""
        told: set[int] = set()
        for worker in self.sleeping:
            worker.wakes_at = min(worker.wakes_at, time.monotonic())

        def all_ended() -> bool:
            self.tend()
            awake = [worker for worker in self.sleeping if worker.wakes_at == float("inf")]
            for worker in (*self.working.values(), *awake):
                if worker.at_work() and worker.process.pid not in told:
                    told.add(worker.process.pid)
                    worker.process.terminate()
            return not self.working and not self.sleeping

        until(all_ended, "workers end", END_S)

    def _replaced(self, pid: int) -> None:
        seconds = self.chance.uniform(*SLEEP_S)
        for slot, worker in list(self.working.items()):
            if worker.process.pid == pid:
                self.replace(slot, seconds)
        for worker in self.sleeping:
            if worker.process.pid == pid:
                worker.wakes_at = time.monotonic() + seconds


class Disk:
    """One that is full now and then."""

    def __init__(self, where: Path, chance: random.Random) -> None:
        self._ballast = where / "ballast"
        self._chance = chance
        self._room_at = float("inf")

    def tend(self) -> None:
        """There is room again when it is time."""
        if time.monotonic() >= self._room_at:
            self._ballast.unlink()
            self._room_at = float("inf")

    def fill(self) -> None:
        """No byte is left for some seconds."""
        if self._ballast.exists():
            return
        self._room_at = time.monotonic() + self._chance.uniform(*FULL_S)
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError:
                return

    @contextmanager
    def mended(self) -> Iterator[None]:
        """There is room in the end."""
        try:
            yield
        finally:
            self._ballast.unlink(missing_ok=True)


def standing(cluster: TestCluster, crew: Workers) -> str:
    """Who holds what up: positions, transactions that are open, and what workers said last."""
    with cluster.admin() as admin:
        told = [f"{tp}: {lag}" for tp, lag in admin.group_lag("lines-counts").items()]
        told += [str(one) for one in admin.list_transactions(states=["ongoing"]).transactions]
        told += [str(admin.describe_group("lines-counts"))]
    told.append(f"armed: {crew.points.armed}")
    for worker in (*crew.working.values(), *crew.sleeping):
        last = worker.errors.read_text(errors="replace")[-1_000:]
        told.append(f"{worker.name}, {worker.process.pid}, wakes at {worker.wakes_at}:\n{last}")
    return "\n".join(told)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_each_number_of_each_word_comes(
    cluster: TestCluster, tmp_path: Path, disks: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    lines, words = (make_topic(cluster, name, PARTITIONS) for name in ("lines", "words"))
    monkeypatch.setenv("LINES", lines)
    monkeypatch.setenv("WORDS", words)
    monkeypatch.setenv("HEADRACE_FAILPOINTS_DIR", str(tmp_path / "points"))
    bootstrap = ",".join(cluster.bootstrap_servers)
    # The first starts find an empty disk, later ones that of an earlier worker.
    program = ["-m", "tests.chaos.streams.worker", bootstrap]
    crew = Workers(tmp_path, lambda slot, number: [*program, str(disks / f"state-{number % 4}"), guarantee], SLOTS)
    crew.chance = random.Random(SEED)
    crew.points = points = Points(tmp_path / "points", POINTS, crew.chance, POINTS_EVERY_S)
    load = Load(cluster, lines)
    crew.disk, crew.aborts = Disk(disks, crew.chance), Aborts(cluster)
    storm = Storm(cluster, crew, random.Random(SEED), FAULTS | dict.fromkeys(STOPS, 1) | {"abort transaction": 3})
    storm.changes = {"abort transaction": crew.aborts.abort, "fill disk": crew.disk.fill}
    if LONG:
        storm.faults["fill disk"] = 1
        storm.pauses = (0.5, 3.0)
    check = check_each_count_once if guarantee == EXACTLY_ONCE else check_each_count
    found: list[Row] = []
    seen: set[tuple[object, object]] = set()
    try:
        crew.start_all()
        load.start()
        with crew.disk.mended():
            rage_until_hit(storm, SECONDS, [points], HITS)
        load.end()
        total = sum(load.words.values())
        with cluster.consumer(words, isolation_level="read_committed") as consumer:

            def all_there() -> bool:
                crew.tend()
                rows = [(r.key, orjson.loads(r.value)) for r in consumer.poll(500, max_records=ROWS_AT_ONCE)]
                found.extend(rows)
                seen.update((row["word"], row["n"]) for _, row in rows)
                return len(seen) >= total

            try:
                until(all_there, f"{total} words are counted", READ_S)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{len(seen)} are\n{standing(cluster, crew)}") from None
            found.extend((r.key, orjson.loads(r.value)) for r in consumer.read_to_end())

        def all_kept() -> bool:
            crew.tend()
            return counted(cluster, f"{lines}-counts") == load.words

        until(all_kept, "the state is that of the words", READ_S)
        crew.stop()
    finally:
        crew.end()
        print("\n".join(storm.told))
        report(f"streams, {guarantee}", storm, lines=load.lines, words=len(found))
        print(json.dumps({"guarantee": guarantee, "points": points.told}), file=sys.stderr)
    nothing_hangs(cluster, [words])
    check(found, load.words)
    looked_at = check_disks(cluster, f"{lines}-counts", sorted(disks.glob("state-*")))
    assert looked_at >= PARTITIONS, "of each task at least one disk"
    assert storm.counts["kill worker"] + storm.counts["replace worker"] > 0, "workers were hurt"
    assert points.hits.total() > 0, "at steps of a commit too"
    assert points.least >= HITS, f"each point was hit {HITS} times: {points.told}"
