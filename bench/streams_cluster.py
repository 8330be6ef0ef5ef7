"""Workers of Streams on a cluster of one broker, in processes of their own."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import headrace
from bench import streams_workloads as work
from bench.headrace_side import HeadraceSide
from bench.machine import cpu_seconds
from bench.rows import Row, compare, interleaved, percentile
from bench.sizes import sized
from bench.streams_workloads import CLIENTS, PARTITIONS, Records, Worker, Workload, fill, our_worker, output, running
from headrace import Consumer, Producer
from headrace.records import TopicPartition

GUARANTEES: dict[str, dict[str, Any]] = {
    "at least once": {"processing_guarantee": "at_least_once"},
    "exactly once": {"processing_guarantee": "exactly_once", "commit_interval_ms": 20},
}
ONE_AT_A_TIME = {
    ("at least once", 0.5): "≤ 3",
    ("at least once", 0.99): "",
    ("exactly once", 0.5): "≤ 40",
    ("exactly once", 0.99): "",
}


def suite(workload: Workload, full: int, quick: int = 2_000) -> Callable[[int], list[Row]]:
    """The rate of a workload by one worker, and its CPU."""

    def run(runs: int) -> list[Row]:
        with HeadraceSide.running(flush="os") as cluster, tempfile.TemporaryDirectory() as root:
            ours = work.Ours(cluster, workload, sized(full, quick), Path(root))
            found = [ours.run() for _ in range(runs)]
        name = f"streams {workload.about}"
        return [
            compare(name, "rows/s", [one["rows_s"] for one in found]),
            compare(f"{name}: worker's CPU", "µs/record", [one["cpu_us"] for one in found]),
        ]

    return run


def latency(runs: int) -> list[Row]:
    """
    One record at a time through a filter, by each guarantee: from when it is sent until a reader has it. Beside it
    one that goes through a topic alone, without an app.
    """

    def one(settings: dict[str, Any]) -> list[float]:
        with _filter(cluster, {**settings, "state_dir": tempfile.mkdtemp(dir=root)}) as topics:
            return _one_at_a_time(cluster, *topics, sized(300, 20))

    def bare() -> list[float]:
        topic = cluster.topic(1)
        return _one_at_a_time(cluster, topic, topic, sized(300, 20))

    with HeadraceSide.running(flush="os") as cluster, tempfile.TemporaryDirectory() as root:
        sides = [partial(one, settings) for settings in GUARANTEES.values()]
        *by_app, alone = interleaved(runs, *sides, bare)
    found = dict(zip(GUARANTEES, by_app, strict=True))
    return [
        compare(
            f"streams in to out, {guarantee}, p{share * 100:.0f} / a topic alone",
            "ms",
            [percentile(times, share) for times in found[guarantee]],
            [percentile(times, share) for times in alone],
            target=goal,
        )
        for (guarantee, share), goal in ONE_AT_A_TIME.items()
    ]


def commits(runs: int) -> list[Row]:
    """What a commit of a worker with state is made of: one record at a time, each a transaction; medians."""
    found: list[dict[str, list[float]]] = []
    with HeadraceSide.running(flush="os") as cluster, tempfile.TemporaryDirectory() as root:
        for number in range(runs):
            times = Path(root) / f"times-{number}"
            topics = {"SOURCE": cluster.topic(1), "TARGET": cluster.topic(1)}
            settings = {"commit_interval_ms": 20, "state_dir": f"{root}/state-{number}"}
            command, environment = our_worker("keys", topics, settings | {"bootstrap_servers": cluster.bootstrap})
            timed = [command[0], str(CLIENTS / "streams_timed.py"), *command[3:]]
            with running(timed, environment | {"TIMES": str(times)}):
                value = b'{"amount":1.0,"at":1}'
                _one_at_a_time(cluster, *topics.values(), sized(300, 20), value=value)
            found.append(json.loads(times.read_text()))
    steps = [step for step in found[0] if found[0][step]]
    return [compare(f"streams commit, {step}", "ms", [median(one[step]) for one in found]) for step in steps]


@contextmanager
def _filter(cluster: HeadraceSide, settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A worker that passes everything on from the first topic to the second."""
    topics = {"SOURCE": cluster.topic(1), "TARGET": cluster.topic(1)}
    with running(*our_worker("filter", topics, {**settings, "bootstrap_servers": cluster.bootstrap})):
        yield topics["SOURCE"], topics["TARGET"]


def _one_at_a_time(
    cluster: HeadraceSide, source: str, target: str, count: int, *, value: bytes | None = None
) -> list[float]:
    """In ms, sorted. ``value``: of each record; None: its number."""
    took: list[float] = []
    with (
        Producer(cluster.bootstrap, linger_ms=0) as producer,  # or its wait for company would be most of it
        Consumer(
            target, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer,
    ):
        for number in range(count + 20):
            begun = time.perf_counter()
            producer.send(source, b"%d" % number if value is None else value, key=b"%d" % (number % 100))
            while not consumer.poll(60_000):
                pass
            if number >= 20:  # the first find everything cold
                took.append((time.perf_counter() - begun) * 1e3)
    return sorted(took)


class Restart:
    """An app of ours with a key for each of ``count`` records."""

    def __init__(self, cluster: HeadraceSide, state: Path, count: int) -> None:
        self.state, self.count = state, count
        self._cluster = cluster
        self._topics = {"SOURCE": cluster.topic(PARTITIONS), "TARGET": cluster.topic(PARTITIONS)}

    def write(self, records: Records) -> None:
        """Into the app's source."""
        fill(self._cluster, self._topics["SOURCE"], records)

    def started(self) -> Any:
        """A worker, for a block."""
        settings = {"bootstrap_servers": self._cluster.bootstrap, "state_dir": str(self.state)}
        return running(*our_worker("keys", self._topics, settings))

    def output(self) -> Any:
        """Reads the app's output, for a block."""
        return output(self._cluster, self._topics["TARGET"])


def restarts(app: Any, runs: int) -> tuple[list[float], list[float]]:
    """
    How long the app takes, in ms, from its start to the first output for what was written while it stood: with its
    disk, and without. ``app`` is as ``Restart`` is.
    """
    tally = work.Totals()
    with app.output() as poll:
        app.write(work.every_user_once(app.count))
        with app.started() as worker:
            _read(poll, tally, app.count, worker)

        def again(*, wipe: bool) -> float:
            if wipe:
                shutil.rmtree(app.state)
            app.write(work.every_user_once(1))
            # The key has been seen, so its count shows whether its state is here.
            begun = time.perf_counter()
            with app.started() as worker:
                found = work.Totals()
                _read(poll, found, 1, worker)
                took = (time.perf_counter() - begun) * 1e3
            assert found.done > 1, f"a restarted app has forgotten: {found.answer()}"
            return took

        kept, wiped = interleaved(runs, lambda: again(wipe=False), lambda: again(wipe=True))
        return kept, wiped


def _read(poll: Callable[[int], Iterable[tuple[bytes, bytes]]], tally: work.Totals, least: int, worker: Worker) -> None:
    until = time.monotonic() + work.LIMIT_S
    while tally.done < least:
        for key, value in poll(50_000):
            tally.add(key, value)
        worker.check()
        assert time.monotonic() < until, f"{tally.done:,} of {least:,} inputs were done in {work.LIMIT_S:.0f} s"


def workers(runs: int) -> list[Row]:
    """What workers spend on a row of a filter, two beside one: they read, write and commit for themselves."""
    records = Records([b"%090d" % number for number in range(sized(1_000_000, 5_000))])
    with HeadraceSide.running(flush="os") as cluster, tempfile.TemporaryDirectory() as root:
        one, two = interleaved(
            runs,
            lambda: _by(1, cluster, records, Path(tempfile.mkdtemp(dir=root))),
            lambda: _by(2, cluster, records, Path(tempfile.mkdtemp(dir=root))),
        )
    name = "streams filter, 2 workers / 1"
    cpu = [[run["cpu_us"] for run in side] for side in (two, one)]
    rates = [[run["rows_s"] for run in side] for side in (two, one)]
    return [
        compare(f"{name}: CPU of all workers", "µs/record", *cpu, target="≤ 1.1"),
        compare(f"{name}: rate", "rows/s", *rates),
    ]


def _by(count: int, cluster: HeadraceSide, records: Records, state: Path) -> dict[str, float]:
    topics = {"SOURCE": cluster.topic(PARTITIONS), "TARGET": cluster.topic(PARTITIONS)}
    settings = {"bootstrap_servers": cluster.bootstrap, "state_dir": str(state)}
    with ExitStack() as stack:
        shown = [stack.enter_context(running(*our_worker("filter", topics, settings))) for _ in range(count)]
        _wait_settled(cluster, f"bench-{topics['SOURCE']}", count)
        pids = [worker.pid for worker in shown]
        begun, cpu, read = time.perf_counter(), cpu_seconds(pids), 0
        fill(cluster, topics["SOURCE"], records)
        poll = stack.enter_context(output(cluster, topics["TARGET"]))
        while read < len(records.values):
            read += len(list(poll(50_000)))
            for worker in shown:
                worker.check()
        seconds, used = time.perf_counter() - begun, cpu_seconds(pids) - cpu
    return {"rows_s": read / seconds, "cpu_us": used / read * 1e6}


def _wait_settled(cluster: HeadraceSide, app: str, count: int, timeout_s: float = 60.0) -> None:
    """Until so many workers have a task each at least, and every task has its worker."""
    until = time.monotonic() + timeout_s
    with headrace.AdminClient(cluster.bootstrap) as admin:
        while time.monotonic() < until:
            try:
                owners = [item.owner for item in admin.describe_group(app).items]
            except headrace.HeadraceError:
                owners = []
            if owners and all(owners) and len(set(owners)) == count:
                return
            time.sleep(0.1)
    raise TimeoutError(f"{app} had not {count} workers with tasks after {timeout_s:.0f} s")


def _wait_still(cluster: HeadraceSide, partitions: list[TopicPartition], still_s: int, timeout_s: float = 300) -> None:
    """Until something has been written there, and then nothing for so long."""
    written, since, until = 0, time.monotonic(), time.monotonic() + timeout_s
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        while not written or time.monotonic() - since < still_s:
            time.sleep(0.2)
            if (now := sum(consumer.end_offsets(partitions).values())) != written:
                written, since = now, time.monotonic()
            assert time.monotonic() < until, f"{written} records were written, but not none for {still_s} s"


def idle(runs: int) -> list[Row]:
    """An app of 64 tasks that send rows to 64 others, by one worker: what it and the broker spend when no rows come."""
    tasks, look_s = sized(64, 4), sized(20, 1)
    values = [b'{"amount":1.0,"at":%d}' % number for number in range(tasks * 4)]
    keys = [b"u%d" % number for number in range(len(values))]
    spent: dict[str, list[float]] = {"worker": [], "broker": []}
    with HeadraceSide.running(flush="os") as cluster, tempfile.TemporaryDirectory() as root:
        for _ in range(runs):
            topics = {"SOURCE": cluster.topic(tasks), "TARGET": cluster.topic(1)}
            settings = {"bootstrap_servers": cluster.bootstrap, "state_dir": tempfile.mkdtemp(dir=root)}
            app = f"bench-{topics['SOURCE']}"
            with running(*our_worker("idle", topics, settings)) as worker, Producer(cluster.bootstrap) as producer:
                _wait_settled(cluster, app, 1)
                producer.send_many(topics["SOURCE"], values, keys, partition=[n % tasks for n in range(len(values))])
                producer.flush()
                hop = f"{app}.by-time.repartition"
                _wait_still(cluster, [TopicPartition(hop, number) for number in range(tasks)], still_s=sized(10, 1))
                pids = {"worker": worker.pid, "broker": cluster.pid("broker-1")}
                before = {name: cpu_seconds([pid]) for name, pid in pids.items()}
                time.sleep(look_s)
                for name, pid in pids.items():
                    spent[name].append((cpu_seconds([pid]) - before[name]) / look_s * 100)
                worker.check()
    return [
        compare(f"streams {tasks} × {tasks} tasks, idle: {name}", "% of a core", used, target="≤ 2")
        for name, used in spent.items()
    ]
