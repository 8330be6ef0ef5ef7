"""
``make chaos``: all plans one after the other, a report for each, and one line of JSON at the end.

``python tests/chaos/replication/chaos_long.py [--seed N] [--only NAME ...] [--directory DIR] [--keep]``. Directories of
runs without findings are removed. Fails when a run found something, or a gap was more than three times its target.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos_plans import long_plans
from chaos_run import Report, run

PATIENCE = 3


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="All faults, with figures.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", default=[], help="names of plans")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the directories of sound runs too")
    arguments = parser.parse_args()
    where = arguments.directory or Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    plans = [plan for plan in long_plans(arguments.seed) if not arguments.only or plan.name in arguments.only]
    reports: list[Report] = []
    broken: dict[str, str] = {}
    for plan in plans:
        try:
            report = asyncio.run(run(plan, where / plan.name, arguments.seed))
        except Exception as error:  # noqa: BLE001  # the other plans are worth their figures
            broken[plan.name] = f"{type(error).__name__}: {error}"
            print(f"{plan.name} broke: {broken[plan.name]}; see {where / plan.name}", file=sys.stderr)
            continue
        print(report.text(), flush=True)
        reports.append(report)
        if report.sound and not arguments.keep:
            shutil.rmtree(where / plan.name)
    summary = summarize(reports, arguments.seed)
    if broken:
        summary["broken"] = broken
    print(json.dumps(summary))
    return int(bool(broken) or not summary["sound"])


def summarize(reports: Sequence[Report], seed: int) -> dict[str, Any]:
    """The line of JSON: faults, anomalies by kind, availability, times to recover."""
    anomalies = Counter[str]()
    faults: list[dict[str, Any]] = []
    for report in reports:
        anomalies.update(report.verdict.counts)
        faults += [{"run": report.plan.name, **fault} for fault in report.as_json()["faults"]]
    timed = [fault for fault in faults if fault["target_s"] is not None and fault["gap_s"] is not None]
    far = [fault["fault"] for fault in timed if fault["gap_s"] > PATIENCE * fault["target_s"]]
    problems = [f"{report.plan.name}: {problem}" for report in reports for problem in report.problems]
    return {
        "seed": seed,
        "commit": reports[0].commit if reports else "",
        "sound": not anomalies and not problems and not far,
        "acknowledged": sum(report.verdict.sends_ok for report in reports),
        "anomalies": dict(anomalies),
        "problems": problems,
        "above_target": [fault["fault"] for fault in timed if fault["gap_s"] > fault["target_s"]],
        "far_above_target": far,
        "faults": faults,
    }


if __name__ == "__main__":
    sys.exit(main())
