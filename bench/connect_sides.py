"""Connectors over a cluster and a PostgreSQL: how one is run, and how fast what it does grows."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.headrace_side import HeadraceSide
from bench.machine import cpu_seconds
from bench.streams_workloads import LIMIT_S, WARM, Worker, running
from headrace import Consumer, TopicPartition

_STEP_S: Final = 0.02


class Rate(NamedTuple):
    """From the end of the warm-up to the last one."""

    rows_s: float
    cpu_us: float
    """Of the connector's processes, for a row."""


def measure_growth(count: Callable[[], int], total: int, pids: Sequence[int], check: Callable[[], None]) -> Rate:
    """
    Ask how much is done until all is.

    Raises:
        TimeoutError: not in ``LIMIT_S``.
    """
    begun, cpu, first = time.perf_counter(), cpu_seconds(pids), 0  # where all is done at once, its start is in it
    until = time.monotonic() + LIMIT_S
    while (done := count()) < total:
        if not first and done >= WARM * total:
            begun, cpu, first = time.perf_counter(), cpu_seconds(pids), done
        check()
        if time.monotonic() > until:
            raise TimeoutError(f"{done:,} of {total:,} rows were done in {LIMIT_S:.0f} s")
        time.sleep(_STEP_S)
    rows = total - first
    return Rate(rows / (time.perf_counter() - begun), (cpu_seconds(pids) - cpu) / rows * 1e6)


@contextmanager
def connector(cluster: HeadraceSide, folder: Path, config: Mapping[str, str]) -> Iterator[Worker]:
    """`headrace connect run` of one connector, in a process of its own."""
    with running(command("run", cluster, folder, config), {}) as worker:
        yield worker


def command(verb: str, cluster: HeadraceSide, folder: Path, config: Mapping[str, str]) -> list[str]:
    """`headrace connect VERB` of one connector, whose file it writes."""
    file = folder / f"{config['name']}.json"
    file.write_text(json.dumps(dict(config)))
    return [sys.executable, "-m", "headrace_cli", "connect", verb, str(file), "-b", cluster.bootstrap]


class Ends:
    """How many records are committed in topics of one partition."""

    def __init__(self, consumer: Consumer[Any, Any], topic: str) -> None:
        self._consumer, self._at = consumer, TopicPartition(topic, 0)

    @staticmethod
    @contextmanager
    def of(cluster: HeadraceSide, topic: str) -> Iterator[Ends]:
        """For as long as the block runs."""
        with Consumer(bootstrap_servers=cluster.bootstrap, isolation_level="read_committed") as consumer:
            yield Ends(consumer, topic)

    def __call__(self) -> int:
        return self._consumer.end_offsets([self._at])[self._at]
