"""
Runs seeds of each kind of world on several processes and says what came of them.

``python -m tests.lab`` takes ``NAME=value``, each of which may be left out:

KIND: one of ``KINDS``, else all. SEED: this one again, with its story. SEEDS, FROM: how many, and the first; of some
kinds a share, unless they run alone. MUTANTS: ``0`` for none, ``all`` for the rare ones too, from the first seed on;
else a seed that found one before is played first. MUTANT: look for this one alone, from the first seed on. STARTS: look
for mutants from so many starting seeds and tell the median. SEEDS_MAX: after so many seeds a mutant is missed.

The last line on stdout is one JSON object with the counts of each kind.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from multiprocessing import TimeoutError as MultiprocessingTimeout
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult, Pool, ThreadPool
from statistics import median
from typing import Final

from tests.lab.compaction import mutants as of_compaction
from tests.lab.compaction import world as compaction
from tests.lab.groups import mutants as of_groups
from tests.lab.groups import world as groups
from tests.lab.kind import Kind, Outcome, seeds_for
from tests.lab.replication import mutants as of_replication
from tests.lab.replication import world as replication
from tests.lab.streams import mutants as of_streams
from tests.lab.streams import world as streams
from tests.lab.transactions import mutants as of_transactions
from tests.lab.transactions import world as transactions
from tests.lab.whole import world as whole
from tests.lab.work import mutants as of_work
from tests.lab.work import world as work

PROCESSES: Final = 2
LOOKS: Final = PROCESSES + 1
"""So many mutants are looked for at a time: no process waits for work, and few seeds are played for nothing."""
SEEDS: Final = 200
MUTANT_SEEDS_MAX: Final = 1_000
SOON: Final = 3
"""A mutant that takes more seeds is told with the one that found it, to be played first from then on."""
START_STEP: Final = 100_000
"""Starting seeds of a mutant are so far apart."""
GARBAGE: Final = 50_000
"""So many new objects before garbage is looked for: a world makes many, and lives for half a second."""
SEED_S_MAX: Final = 120.0
"""So long a seed may take, of the machine's time; most take one."""
FAILED_MAX: Final = 5
"""So many failures are told in full."""

Ahead = Callable[[], int]
"""How many seeds may be begun before it is known whether they are wanted."""

KINDS: Final = {
    "replication": Kind(replication.play, of_replication.MUTANTS, of_replication.RARE, of_replication.FOUND),
    "compaction": Kind(compaction.play, of_compaction.MUTANTS, of_compaction.RARE, of_compaction.FOUND, share=5),
    "groups": Kind(groups.play, of_groups.MUTANTS, of_groups.RARE, of_groups.FOUND, share=4),
    "transactions": Kind(
        transactions.play, of_transactions.MUTANTS, of_transactions.RARE, of_transactions.FOUND, share=4
    ),
    "work": Kind(work.play, of_work.MUTANTS, of_work.RARE, of_work.FOUND, share=8),
    "streams": Kind(streams.play, of_streams.MUTANTS, of_streams.RARE, of_streams.FOUND, share=20),
    "whole": Kind(whole.play, share=25, least={"acknowledged": 100, "taken over": 3}),
}


@dataclass
class Summary:
    """What a range of seeds came to."""

    seeds: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    """The first problem of each seed that has one."""

    def add(self, seed: int, outcome: Outcome, least: Mapping[str, int]) -> None:
        """One more seed, and what it is to exceed."""
        self.seeds += 1
        self.steps += outcome.steps
        self.counts.update(outcome.counts)
        happened = {name: outcome.counts.get(name, 0) for name in least}
        idle = [f"idle: {name}: {count}" for name, count in happened.items() if count <= least[name]]
        for problem in [*outcome.problems, *idle][:1]:
            self.failed[seed] = problem


@cache
def _settle_down() -> None:
    """Once a process: nobody reads its log, and what was imported is never looked through for garbage."""
    logging.disable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def play(kind: str, mutant: str | None, seed: int) -> Outcome:
    """One seed; a world that ends by an error has found one."""
    _settle_down()
    with KINDS[kind].mutated(mutant):
        try:
            return asyncio.run(KINDS[kind].play(seed))
        except Exception as error:  # noqa: BLE001 - see above
            return Outcome([f"{type(error).__name__}: {error}"], [], 0, 0.0)


def play_all(
    pool: Pool,
    kind: str,
    seeds: Sequence[int],
    mutant: str | None = None,
    ahead: Ahead = lambda: 2 * PROCESSES,
) -> Iterator[Outcome]:
    """Seeds in order; no more than ``ahead`` are begun before their outcome is wanted."""
    begun: deque[tuple[int, AsyncResult[Outcome]]] = deque()
    for seed in seeds:
        begun.append((seed, pool.apply_async(play, (kind, mutant, seed))))
        while len(begun) >= ahead():
            yield _take(kind, *begun.popleft())
    while begun:
        yield _take(kind, *begun.popleft())


def _take(kind: str, seed: int, result: AsyncResult[Outcome]) -> Outcome:
    try:
        return result.get(SEED_S_MAX)
    except MultiprocessingTimeout:  # a pool says nothing of a process of its own that died
        return Outcome([f"{kind}, seed {seed} has not ended after {SEED_S_MAX:.0f} s"], [], 0, 0.0)


def find(pool: Pool, kind: str, mutant: str, seeds: Sequence[int], ahead: Ahead) -> tuple[int, str] | None:
    """After how many of these seeds a mutant is found, and by what; None: by none of them."""
    outcomes = play_all(pool, kind, seeds, mutant, ahead)
    for number, outcome in enumerate(outcomes, start=1):
        if outcome.problems:
            return number, outcome.problems[0]
    return None


def find_from(pool: Pool, kind: str, mutant: str, starts: int, seeds_max: int, ahead: Ahead) -> dict[str, object]:
    """From several starting seeds: after how many, and their median; one that is missed counts ``seeds_max``."""
    ranges = [range(first, first + seeds_max) for first in range(0, starts * START_STEP, START_STEP)]
    found = [find(pool, kind, mutant, each, ahead) for each in ranges]
    seeds = [None if one is None else one[0] for one in found]
    by = next((one[1] for one in found if one is not None), None)
    return {"median": median(seeds_max if one is None else one for one in seeds), "seeds": seeds, "by": by}


def explain(kind: str, seed: int, outcome: Outcome) -> str:
    """A failure, for people: what broke, what befell the cluster, how to see it again."""
    text = "\n".join([*outcome.problems[:10], "--- what befell it", *outcome.story])
    return f"{kind}, seed {seed}: {text}\n--- replay: make sim KIND={kind} SEED={seed}\n"


def replay(kind: str, mutant: str | None, seed: int) -> int:
    """One seed again, with its story."""
    outcome = play(kind, mutant, seed)
    sys.stdout.write(explain(kind, seed, outcome))
    counts = dict(sorted(outcome.counts.items()))
    sys.stdout.write(json.dumps({"seed": seed, "steps": outcome.steps, "seconds": outcome.seconds, **counts}) + "\n")
    return int(bool(outcome.problems))


def play_many(pool: Pool, kind: str, seeds: Sequence[int]) -> Summary:
    """So many seeds; the first failures are told as they come."""
    summary = Summary()
    for seed, outcome in zip(seeds, play_all(pool, kind, seeds), strict=True):
        summary.add(seed, outcome, KINDS[kind].least)
        if outcome.problems and len(summary.failed) <= FAILED_MAX:
            sys.stderr.write(explain(kind, seed, outcome))
    return summary


def find_mutants(
    pool: Pool, kind: str, mutants: Iterable[str], starts: int, seeds_max: int, known: Mapping[str, int]
) -> dict[str, object]:
    """
    What each takes to be found; None: it was missed. Seeds that are ``known`` to find one are played before all others.

    Each is looked for seed by seed, and some beside each other: seeds that are begun before it is known whether they
    are wanted are played for nothing. The last ones play ahead, so that all processes have work.
    """
    names = list(mutants)
    left = set(names)

    def ahead() -> int:
        return ceil(LOOKS / max(1, min(LOOKS, len(left))))

    def look(name: str) -> dict[str, object] | None:
        try:
            if starts:
                return find_from(pool, kind, name, starts, seeds_max, ahead)
            seeds = seeds_for(name, known, seeds_max)
            after = find(pool, kind, name, seeds, ahead)
            if after is not None and after[0] > SOON:
                sys.stderr.write(
                    f"{kind}: seed {seeds[after[0] - 1]} finds {name}, after {after[0] - 1} others: see FOUND\n"
                )
            return None if after is None else {"seeds": after[0], "by": after[1]}
        finally:
            left.discard(name)

    found: dict[str, object] = {}
    with ThreadPool(LOOKS) as looks:
        for name, seen in zip(names, looks.imap(look, names), strict=True):
            found[name] = seen
            if starts:
                sys.stderr.write(f"{name}: {json.dumps(seen)}\n")
            elif seen is None:
                sys.stderr.write(f"the bug {name} was not found within {seeds_max} seeds\n")
    return found


def run(
    pool: Pool,
    name: str,
    seeds: Sequence[int],
    mutants: Sequence[str],
    starts: int,
    seeds_max: int,
    known: Mapping[str, int],
) -> dict[str, object]:
    """Seeds, then mutants, of one kind: what came of them."""
    began = time.perf_counter()
    summary = play_many(pool, name, seeds)
    seconds = round(time.perf_counter() - began, 1)
    return {
        "seeds": summary.seeds,
        "steps": summary.steps,
        "seconds": seconds,
        "failed": summary.failed,
        "mutants": find_mutants(pool, name, mutants, starts, seeds_max, known),
        "mutants_seconds": round(time.perf_counter() - began - seconds, 1),
        "counts": dict(sorted(summary.counts.items())),
    }


def main(arguments: Sequence[str]) -> int:
    """See the module's text. The exit code is 1 where something is wrong."""
    asked = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    wanted, mutant = asked.get("KIND") or "all", asked.get("MUTANT") or None
    names = [n for n, kind in KINDS.items() if wanted in ("all", n) and (not mutant or mutant in kind.mutants)]
    if not names:
        sys.stderr.write(f"KIND is one of {', '.join(KINDS)}; MUTANT one that it knows\n")
        return 2
    if asked.get("SEED"):
        return replay(names[0], mutant, int(asked["SEED"]))
    starts, seeds_max = int(asked.get("STARTS") or 0), int(asked.get("SEEDS_MAX") or MUTANT_SEEDS_MAX)
    first, which = int(asked.get("FROM") or 0), asked.get("MUTANTS") or "1"
    told, well = dict[str, object](), True
    with get_context("spawn").Pool(PROCESSES) as pool:
        for name in names:
            kind = KINDS[name]
            seeds = 0 if mutant or starts else int(asked.get("SEEDS") or SEEDS) // (kind.share if len(names) > 1 else 1)
            sought = [one for one in kind.mutants if which != "0" and (which == "all" or one not in kind.rare)]
            known: Mapping[str, int] = {} if mutant or which == "all" else kind.found
            line = run(
                pool, name, range(first, first + seeds), [mutant] if mutant else sought, starts, seeds_max, known
            )
            well = well and not line["failed"] and all(line["mutants"].values())  # type: ignore[attr-defined]  # a mapping
            told[name] = line
    sys.stdout.write(json.dumps(told) + "\n")
    return int(not well)
