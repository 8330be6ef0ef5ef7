"""
``make chaos-compaction``: all plans one after the other, then brokers that are broken on purpose; one line of JSON for
each, and one for all at the end.

``python tests/chaos/compaction/compaction_long.py [--seed N] [--only NAME ...] [--directory DIR] [--keep]``. Sound
runs leave no directory. Fails when a run found something, and when a broken broker was not found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parent.parent / "replication"))

from compaction_faults import STEPS, long_plans
from compaction_mutants import FOUND, plan_of
from compaction_run import Report, run


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="Old records go, under all faults, with figures.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", default=[], help="names of plans; mutants is one")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the directories of sound runs too")
    arguments = parser.parse_args()
    where = arguments.directory or Path(tempfile.mkdtemp(prefix="headrace-aging-"))
    reports: list[Report] = []
    for plan in [STEPS, *long_plans(arguments.seed)]:
        if arguments.only and plan.name not in arguments.only:
            continue
        report = asyncio.run(run(plan, where / plan.name, arguments.seed))
        print(report.text(), flush=True)
        reports.append(report)
        if report.sound and not arguments.keep:
            shutil.rmtree(where / plan.name)
    summary = summarize(reports, arguments.seed)
    if not arguments.only or "mutants" in arguments.only:
        summary["mutants"] = broken = mutants(where, arguments.seed, keep=arguments.keep)
        summary["sound"] = summary["sound"] and all(broken.values())
    print(json.dumps(summary))
    return int(not summary["sound"])


def mutants(where: Path, seed: int, *, keep: bool) -> dict[str, dict[str, int]]:
    """Mutant → what was found of what must be; nothing: it was not seen."""
    found: dict[str, dict[str, int]] = {}
    for mutant, wanted in FOUND.items():
        plan = plan_of(mutant)
        report = asyncio.run(run(plan, where / plan.name, seed))
        print(json.dumps(report.as_json()), flush=True)
        found[mutant] = {name: count for name, count in report.verdict.counts.items() if name in wanted}
        if found[mutant] and not keep:
            shutil.rmtree(where / plan.name)
    return found


def summarize(reports: list[Report], seed: int) -> dict[str, Any]:
    """The line of JSON."""
    faults, anomalies, allowed, counts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for report in reports:
        told = report.as_json()
        faults.update(report.faults)
        anomalies.update(report.verdict.counts)
        allowed.update(told["allowed"])
        counts.update({name: value for name, value in told.items() if isinstance(value, int) and name in SUMMED})
    return {
        "seed": seed,
        "commit": reports[0].commit if reports else "",
        "sound": all(report.sound for report in reports),
        "seconds": round(sum(report.seconds for report in reports)),
        "faults": dict(faults),
        **counts,
        "longest_gap_s": max((round(r.gap.seconds, 2) for r in reports if r.gap is not None), default=None),
        "anomalies": dict(anomalies),
        "allowed": dict(allowed),
        "problems": [f"{report.plan.name}: {problem}" for report in reports for problem in report.problems],
    }


SUMMED = {
    "acknowledged",
    "unknown",
    "read",
    "deletions_read",
    "ranges_told_lost",
    "passes",
    "compacted_records",
    "expired_records",
}


if __name__ == "__main__":
    sys.exit(main())
