"""Wall and CPU time of this whole process, threads included."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from types import TracebackType

from bench.rows import percentile


class Clock:
    """``with Clock() as clock: …`` then ``clock.report(...)``."""

    wall = 0.0
    cpu = 0.0

    def __enter__(self) -> Clock:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.wall, self.cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu

    def report(self, records: int, size: int, rounds: Sequence[float] = ()) -> None:
        """Print rate, bytes and CPU per record; with the seconds of each round also their rate and percentiles."""
        emit(
            records=records,
            rec_s=records / self.wall,
            mb_s=records * size / self.wall / 1e6,
            cpu_us=self.cpu / records * 1e6,
            **({"rounds_s": len(rounds) / self.wall, **latencies(rounds)} if rounds else {}),
        )


def emit(**row: object) -> None:
    """Print one JSON line."""
    print(json.dumps(row), flush=True)


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in ms."""
    values = sorted(v * 1000 for v in seconds)
    return {
        "n": len(values),
        "p50_ms": percentile(values, 0.5),
        "p99_ms": percentile(values, 0.99),
        "p999_ms": percentile(values, 0.999),
        "max_ms": values[-1],
    }


def emit_latencies(seconds: Sequence[float]) -> None:
    """Print percentiles in ms."""
    emit(**latencies(seconds))
