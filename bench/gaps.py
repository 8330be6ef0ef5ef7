"""The longest time without an acknowledged write on any of 24 partitions while something is killed or stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.kafka_side import HERE

PARTITIONS = 24
BEFORE_SECONDS = 3.0
READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Gap:
    """What writers saw of one fault."""

    seconds: float
    """The longest time without an ack on any partition, from the fault on."""
    others_seconds: float
    """The same on partitions that another broker led."""
    before_seconds: float
    """The same in the seconds before: what the load and the machine have by themselves."""
    errors: int


def measure(
    lib: str, bootstrap: str, topic: str, led: set[int], fault: Callable[[], None], watch_seconds: float
) -> Gap:
    """Write to all partitions, let ``fault`` happen, watch for a while. ``led``: partitions of the broker it hits."""
    with tempfile.TemporaryDirectory(prefix="bench-gap-") as folder:
        out = Path(folder) / "acks"
        command = [sys.executable, "-m", "bench.clients.gap_client", "--lib", lib, "--bootstrap", bootstrap]
        command += ["--topic", topic, "--partitions", str(PARTITIONS), "--out", str(out)]
        with (Path(folder) / "errors").open("w+") as errors:
            writer = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=HERE.parent
            )
            try:
                assert writer.stdout is not None
                line = writer.stdout.readline()
                if line.strip() != "ready":
                    errors.seek(0)
                    raise RuntimeError(f"the writer of the gap benchmark did not start:\n{errors.read()[-3000:]}")
                time.sleep(BEFORE_SECONDS)
                began = time.monotonic_ns()
                fault()
                time.sleep(max(0.0, watch_seconds - (time.monotonic_ns() - began) / 1e9))
                ended = time.monotonic_ns()
                rest, _ = writer.communicate(timeout=180)
            finally:
                writer.kill()
                writer.wait()
        said = json.loads(rest.strip().splitlines()[-1])
        return _gap(_read(out), led, began, ended, said["errors"])


def _read(path: Path) -> dict[int, list[int]]:
    acks: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for line in path.read_text().splitlines():
        partition, at = line.split()
        acks[int(partition)].append(int(at))
    return acks


def _gap(acks: dict[int, list[int]], led: set[int], began: int, ended: int, errors: int) -> Gap:
    after = {partition: longest(times, began, ended) for partition, times in acks.items()}
    before = max(longest(times, began - int(BEFORE_SECONDS * 1e9), began) for times in acks.values())
    others = max((seconds for partition, seconds in after.items() if partition not in led), default=0.0)
    return Gap(max(after.values()), others, before, errors)


def longest(times: list[int], begin: int, end: int) -> float:
    """Seconds of the longest gap that touches the time from ``begin`` to ``end``; ``times`` in ns, as they came."""
    ordered = sorted(times)
    low = max(bisect_right(ordered, begin) - 1, 0)
    high = min(bisect_left(ordered, end) + 1, len(ordered))
    window = ordered[low:high] or [begin]
    edges = [*window, end] if window[-1] < end else window  # one that never answers again has a gap until the end
    return max((after - before for before, after in pairwise(edges)), default=0) / 1e9
