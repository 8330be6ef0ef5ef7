"""
Runs seeds on several processes and says what came of them.

``python -m tests.simulation SEED=7`` replays one seed with its story; ``SEEDS=1000`` runs so many. The last line on
stdout is one JSON object with the counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Protocol

from tests.simulation.compaction import COMPACTED_EVERY
from tests.simulation.mutants import MUTANTS, OF_COMPACTION, mutated
from tests.simulation.world import Result, World

PROCESSES = 2
SEEDS = 2_000
MUTANT_SEEDS_MAX = 1_000


@dataclass
class Summary:
    """What a range of seeds came to."""

    seeds: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    anomalies: Counter[str] = field(default_factory=Counter)
    failed: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """One more seed."""
        self.seeds += 1
        self.steps += result.steps
        self.counts.update(result.counts)
        if result.anomaly is not None:
            self.anomalies[result.anomaly] += 1
            if len(self.failed) < 5:
                self.failed.append(result)


class Runs(Protocol):
    """A world."""

    def run(self) -> Result:
        """Its whole life."""


@dataclass(frozen=True)
class Suite:
    """One kind of world, and the known bugs that it must find."""

    world: Callable[..., Runs]
    mutants: Collection[str]
    mutated: Callable[[str | None], AbstractContextManager[None]]
    share: int
    """One of so many seeds."""


REPLICATION = "replication"
SUITES = {
    REPLICATION: Suite(World, MUTANTS, mutated, 1),
}
Job = tuple[int, str, str | None]
"""The seed, the mode and the mutant."""


def one(job: Job, suite: str = REPLICATION) -> Result:
    """One seed."""
    seed, mode, mutant = job
    with SUITES[suite].mutated(mutant):
        return SUITES[suite].world(seed, mode=mode).run()


ONE = {REPLICATION: one}
"""By name, for processes of their own."""


def results(
    seeds: Iterable[int],
    mode: str = "both",
    mutant: str | None = None,
    *,
    processes: int = PROCESSES,
    suite: str = REPLICATION,
) -> Iterator[Result]:
    """All of them, in order, from several processes."""
    jobs = [(seed, mode, mutant) for seed in seeds]
    run = ONE[suite]
    if processes <= 1:
        yield from map(run, jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(run, jobs, chunksize=4)


def found_after(
    mutant: str,
    mode: str = "both",
    seeds_max: int = MUTANT_SEEDS_MAX,
    *,
    processes: int = PROCESSES,
    suite: str = REPLICATION,
) -> tuple[int, str] | None:
    """After how many seeds a mutant is found, and by what; None: not within ``seeds_max``."""
    each = COMPACTED_EVERY if suite == REPLICATION and mutant in OF_COMPACTION else 1
    found = results(range(0, seeds_max * each, each), mode, mutant, processes=processes, suite=suite)
    for number, result in enumerate(found, start=1):
        if result.anomaly is not None:
            return number, result.anomaly
    return None


def explain(result: Result, suite: str = REPLICATION) -> str:
    """A failure, for people: what broke, the last events, how to see it again."""
    which = "" if suite == REPLICATION else f" WORLD={suite}"
    return (
        f"seed {result.seed}: {result.text}\n--- the last events\n{result.story}\n"
        f"--- replay: make sim{which} SEED={result.seed}\n"
    )


def replay(settings: dict[str, str], suite: str, mode: str) -> int:
    """One seed again."""
    result = one((int(settings["SEED"]), mode, settings.get("MUTANT") or None), suite)
    sys.stdout.write(explain(result, suite) if result.anomaly else f"seed {result.seed}: nothing found\n")
    sys.stdout.write(json.dumps({"seed": result.seed, "steps": result.steps, **result.counts}) + "\n")
    return 1 if result.anomaly else 0


def many(suite: str, first: int, seeds: int, mode: str, mutants: Iterable[str]) -> tuple[bool, dict[str, object]]:
    """Many seeds, then mutants; whether all is well, and what came of it."""
    began = time.perf_counter()
    summary = Summary()
    for result in results(range(first, first + seeds), mode, suite=suite):
        summary.add(result)
        if result.anomaly is not None and len(summary.failed) <= 5:
            sys.stderr.write(explain(result, suite))
    found = {}
    for name in mutants:
        after = found_after(name, mode, suite=suite)
        found[name] = None if after is None else {"seeds": after[0], "by": after[1]}
    missed = [name for name, after in found.items() if after is None]
    for name in missed:
        sys.stderr.write(f"the bug {name} was not found within {MUTANT_SEEDS_MAX} seeds\n")
    told: dict[str, object] = {
        "seeds": summary.seeds,
        "first": first,
        "mode": mode,
        "steps": summary.steps,
        "seconds": round(time.perf_counter() - began, 1),
        "anomalies": dict(summary.anomalies),
        "failed_seeds": [result.seed for result in summary.failed],
        "mutants": found,
        "counts": dict(sorted(summary.counts.items())),
    }
    return not summary.anomalies and not missed, told


def main(arguments: list[str]) -> int:
    """
    See the module's text. ``WORLD`` (replication; both: all of them), ``SEED``, ``SEEDS``,
    ``FROM``, ``MODE`` (both, safety, liveness), ``MUTANTS=0``, ``MUTANT`` (looks for this one alone).
    """
    settings = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    mode, world = settings.get("MODE") or "both", settings.get("WORLD") or "both"
    if settings.get("SEED"):
        return replay(settings, REPLICATION if world == "both" else world, mode)
    mutant = settings.get("MUTANT")
    suites = [name for name in SUITES if world in ("both", name) and (not mutant or mutant in SUITES[name].mutants)]
    if not suites:
        sys.stderr.write(f"WORLD is both or one of {', '.join(SUITES)}; MUTANT one that the world knows\n")
        return 2
    well, line = True, dict[str, object]()
    for name in suites:
        suite = SUITES[name]
        wanted = settings.get("SEEDS")
        seeds = int(wanted) if wanted and len(suites) == 1 else int(wanted or SEEDS) // suite.share
        seeds = 0 if mutant else seeds
        mutants = [mutant] if mutant else suite.mutants if (settings.get("MUTANTS") or "1") != "0" else ()
        passed, told = many(name, int(settings.get("FROM") or 0), seeds, mode, mutants)
        well = well and passed
        if name == REPLICATION:
            line = told
        else:
            line[name] = told
    sys.stdout.write(json.dumps(line) + "\n")
    return 0 if well else 1
