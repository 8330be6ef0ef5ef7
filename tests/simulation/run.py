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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.simulation.mutants import MUTANTS, mutated
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


def one(job: tuple[int, str, str | None]) -> Result:
    """One seed; ``job`` is the seed, the mode and the mutant."""
    seed, mode, mutant = job
    with mutated(mutant):
        return World(seed, mode=mode).run()


def results(
    seeds: Iterable[int], mode: str = "both", mutant: str | None = None, *, processes: int = PROCESSES
) -> Iterator[Result]:
    """All of them, in order, from several processes."""
    jobs = [(seed, mode, mutant) for seed in seeds]
    if processes <= 1:
        yield from map(one, jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(one, jobs, chunksize=4)


def found_after(
    mutant: str, mode: str = "both", seeds_max: int = MUTANT_SEEDS_MAX, *, processes: int = PROCESSES
) -> tuple[int, str] | None:
    """After how many seeds a mutant is found, and by what; None: not within ``seeds_max``."""
    for number, result in enumerate(results(range(seeds_max), mode, mutant, processes=processes), start=1):
        if result.anomaly is not None:
            return number, result.anomaly
    return None


def explain(result: Result) -> str:
    """A failure, for people: what broke, the last events, how to see it again."""
    return (
        f"seed {result.seed}: {result.text}\n--- the last events\n{result.story}\n"
        f"--- replay: make sim SEED={result.seed}\n"
    )


def main(arguments: list[str]) -> int:
    """See the module's text. ``SEED``, ``SEEDS``, ``FROM``, ``MODE`` (both, safety, liveness), ``MUTANTS=1``."""
    settings = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    mode = settings.get("MODE") or "both"
    if settings.get("SEED"):
        mutant = settings.get("MUTANT") or None
        result = one((int(settings["SEED"]), mode, mutant))
        sys.stdout.write(explain(result) if result.anomaly else f"seed {result.seed}: nothing found\n")
        sys.stdout.write(json.dumps({"seed": result.seed, "steps": result.steps, **result.counts}) + "\n")
        return 1 if result.anomaly else 0
    first = int(settings.get("FROM") or 0)
    seeds = int(settings.get("SEEDS") or SEEDS)
    began = time.perf_counter()
    summary = Summary()
    for result in results(range(first, first + seeds), mode):
        summary.add(result)
        if result.anomaly is not None and len(summary.failed) <= 5:
            sys.stderr.write(explain(result))
    found = {}
    if (settings.get("MUTANTS") or "1") != "0":
        for name in MUTANTS:
            after = found_after(name, mode)
            found[name] = None if after is None else {"seeds": after[0], "by": after[1]}
    missed = [name for name, after in found.items() if after is None]
    line = {
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
    for name in missed:
        sys.stderr.write(f"the bug {name} was not found within {MUTANT_SEEDS_MAX} seeds\n")
    sys.stdout.write(json.dumps(line) + "\n")
    return 1 if summary.anomalies or missed else 0
