"""
Runs of a Spark application that is hurt: what happens in each, and what came of it.

``test_short`` runs one, ``spark_long`` all. A run has a cluster of its own: three brokers, two coordinators.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.testing import TestCluster

from ..transactions.storm import LOOK_S, until
from .copying import EXACT, FILES, LOOSE, Copying
from .lives import Lives
from .weather import Weather

POINTS = ("spark.claim.before", "spark.prepare.after", "spark.unit.before", "spark.unit.after")
"""Before a task claims, after it prepared, before the unit is committed, and before Spark's log says so."""
WHOM = ("process", "application", "coordinator", "broker")
"""Who is killed there: the process that comes to the point, or somebody else while it is stopped."""
GONE_S = 60.0


@dataclass
class Report:
    """What happened, and what was found."""

    name: str
    seed: int
    directory: Path
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    lives: Counter[str] = field(default_factory=Counter)
    batches: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    repeated: int = 0
    """Batches of which a sink said that they had been committed before."""
    failures: int = 0
    """Queries that failed and were started again."""
    aborted_rows: int = 0
    anomalies: dict[str, dict[str, int]] = field(default_factory=dict)
    """Query → what is wrong with what it wrote."""
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """No query that promises it broke exactly once."""
        return not self.problems and not any(found for name, found in self.anomalies.items() if name != LOOSE)

    def as_json(self) -> dict[str, Any]:
        """One line."""
        told = {name: value for name, value in vars(self).items() if name != "directory"}
        return told | {"seconds": round(self.seconds), "sound": self.sound}

    def text(self) -> str:
        """For people."""
        where = "" if self.sound else f"\n{self.directory}"
        return json.dumps(self.as_json(), default=dict) + where


@dataclass
class Run:
    """A scenario that has begun."""

    copying: Copying
    lives: Lives
    weather: Weather
    report: Report

    def judge(self) -> None:
        """All sinks, by all readers."""
        for name in self.copying.queries:
            self.report.anomalies[name] = dict(self.copying.anomalies(name))
        self.report.rows = self.copying.written
        self.count()

    def count(self) -> None:
        """What was done."""
        copying, report = self.copying, self.report
        report.batches = copying.batches()
        report.aborted_rows = sum(copying.aborted(name) for name in copying.queries if name.startswith(EXACT))


@contextlib.contextmanager
def begun(copying: Copying, name: str, seed: int, **environment: str) -> Iterator[Run]:
    """An application that runs while the block does; the report then has all that was counted, and what went wrong."""
    lives = copying.lives(**environment)
    weather = Weather(copying.cluster, lives, lambda: sum(copying.batches().values()), random.Random(seed))
    run = Run(copying, lives, weather, Report(name, seed, copying.directory))
    began = time.monotonic()
    try:
        lives.start()
        yield run
    except AssertionError as error:  # told in the report, beside what happened before
        run.report.problems.append(str(error)[:4_000])
    finally:
        lives.end()
        (copying.directory / "faults.log").write_text("\n".join(weather.told) + "\n")
        report = run.report
        report.seconds, report.faults, report.lives = time.monotonic() - began, weather.counts, lives.ends
        report.repeated, report.failures = lives.repeated(), lives.count("query failed: ")


def short(cluster: TestCluster, directory: Path, seed: int) -> Report:
    """
    All is killed between the unit and Spark's log; then Python processes, a coordinator and a broker.

    Beside the sinks that promise it there is one that does not, whose last batch is repeated, so that the judge is seen
    to find what it looks for.
    """
    copying = Copying(cluster, directory / "short", per_batch=300)
    copying.write(2_000)
    copying.add(EXACT)
    copying.add(FILES)
    copying.add(LOOSE, transactional="false")
    with begun(copying, "short", seed) as run:
        run.weather.await_work()
        until(
            lambda: copying.checkpoint(LOOSE).done() >= 1,
            "a batch with rows is done, not only the first, which has none",
        )
        run.weather.await_hit(copying.failpoints, POINTS[-1], "stop")
        run.lives.kill()
        copying.checkpoint(LOOSE).forget_done()
        for fault in ("kill python", "kill coordinator-1", "kill broker-2"):
            run.weather.await_batches(2)
            run.weather.hurt(fault)
        run.lives.finish()
        run.judge()
    return run.report


def storm(cluster: TestCluster, directory: Path, seed: int) -> Report:
    """Everything at random moments, while inputs come."""
    copying = Copying(cluster, directory / "storm", available_now=False, per_batch=150)
    copying.write(4_000)
    copying.add(EXACT)
    copying.add(FILES)
    with begun(copying, "storm", seed) as run:
        run.weather.await_work()
        inputs = Inputs(copying, every_s=2.0, records=100)

        def enough() -> bool:
            if copying.written < STORM_ROWS:
                inputs.write()
            return min(copying.batches().values()) >= BATCHES_MIN

        run.weather.rage(STORM_S, enough)
        end(run)
    if min(run.report.batches.values(), default=0) < BATCHES_MIN:
        run.report.problems.append(f"fewer than {BATCHES_MIN} batches")
    return run.report


BATCHES_MIN, STORM_S, STORM_ROWS = 50, 300.0, 8_000


@dataclass
class Inputs:
    """Writes a little now and then."""

    copying: Copying
    every_s: float
    records: int
    next_at: float = 0.0

    def write(self) -> None:
        """If it is time."""
        if time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + self.every_s
            self.copying.write(self.records)


def points(cluster: TestCluster, directory: Path, seed: int) -> Report:
    """At each named point each of them is killed once."""
    copying = Copying(cluster, directory / "points", available_now=False)
    copying.write(1_000)
    copying.add(EXACT)
    with begun(copying, "points", seed) as run:
        for point in POINTS:
            for whom in WHOM:
                run.weather.await_work()
                copying.write(400)
                hurt_at(run, point, whom)
                copying.write(100)
                run.weather.await_batches(1)
        end(run)
    return run.report


def hurt_at(run: Run, point: str, whom: str) -> None:
    """One case."""
    weather, failpoints = run.weather, run.copying.failpoints
    if whom == "process":
        weather.await_hit(failpoints, point, "kill")
        return
    pid = weather.await_hit(failpoints, point, "stop")
    match whom:
        case "application":
            weather.hurt("kill application")
        case "coordinator":
            weather.hurt("kill coordinator-1")
            weather.hurt("kill coordinator-2")
        case _:
            weather.hurt(f"kill broker-{weather.chance.randint(1, 3)}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def zombies(cluster: TestCluster, directory: Path, seed: int) -> Report:
    """At each point, and at no point, an application stops, a second one takes its place, and the first wakes."""
    copying = Copying(cluster, directory / "zombies", available_now=False)
    copying.write(1_000)
    copying.add(EXACT)
    copying.add(FILES)
    with begun(copying, "zombies", seed) as run:
        inputs = Inputs(copying, every_s=3.0, records=60)
        for point in (*POINTS, None):
            run.weather.await_work()
            copying.write(400)
            if point is not None:
                run.weather.await_hit(copying.failpoints, point, "stop")
            run.weather.hurt("replace application")
            wait(run, inputs.write)
        end(run)
    return run.report


def wait(run: Run, meanwhile: Callable[[], None]) -> None:
    """Until the one that was stopped is gone; when it has woken and stays for too long, it is killed."""
    deadline: float | None = None
    while run.lives.asleep:
        run.lives.tend()
        meanwhile()
        time.sleep(LOOK_S)
        if deadline is None and all(life.wakes is None for life in run.lives.asleep):
            run.weather.tell("it wakes")
            deadline = time.monotonic() + GONE_S
        if deadline is not None and time.monotonic() > deadline:
            run.weather.tell("the one that was stopped lives on: killed")
            run.weather.counts["kill of what was woken"] += 1
            for life in run.lives.asleep:
                life.kill()


def end(run: Run) -> None:
    """No more inputs and no more faults; then judge."""
    finish(run)
    run.judge()


def finish(run: Run) -> None:
    """The application comes to its end with what is written."""
    run.weather.cluster.local.wait_ready()
    run.copying.finish.touch()
    run.lives.finish()


SCENARIOS: dict[str, Callable[[TestCluster, Path, int], Report]] = {
    scenario.__name__: scenario for scenario in (storm, points, zombies)
}
