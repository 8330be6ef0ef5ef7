"""``python -m tests.lab --seeds 200``: many runs, how many a minute, and the seeds that show something."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time

from tests.lab.world import FAULTS, play


def main() -> int:
    """The exit code: 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--faults", type=int, default=FAULTS)
    asked = parser.parse_args()
    logging.disable()
    began, messages, bad = time.perf_counter(), 0, 0
    for seed in range(asked.start, asked.start + asked.seeds):
        try:
            outcome = asyncio.run(play(seed, asked.faults))
        except Exception as error:  # noqa: BLE001 - a run that ends so is one that shows something
            bad += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        messages += outcome.messages
        if outcome.problems:
            bad += 1
            print(f"seed {seed}:", *outcome.faults, *outcome.problems[:10], sep="\n  ")
    minutes = (time.perf_counter() - began) / 60
    print(
        f"{asked.seeds} seeds, {bad} bad, {asked.seeds / minutes:.0f} a minute, {messages // asked.seeds} messages each"
    )
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
