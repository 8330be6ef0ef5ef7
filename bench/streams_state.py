"""Streams: what a row costs a task with more keys than it may keep in memory: RocksDB, no broker."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench.rows import Row, compare
from bench.sizes import sized
from headrace.streams import App, agg, json
from headrace_streams.adapters.rocksdb_store import RocksDbStores
from headrace_streams.core.rows import Numbers
from headrace_streams.core.state import changelog
from headrace_streams.core.state.cache import StateCache
from headrace_streams.core.state.changelog import Progress
from headrace_streams.plan.cut import Assembly
from headrace_streams.ports import Checkpoint

MEMORY: Final = 64 << 20
BATCH: Final = 10_000
COMMIT: Final = 10
"""So many batches are one commit."""
MANY: Final = 100_000
"""So many keys have nearly all rows, where some come more often than others."""


@dataclass(frozen=True, slots=True)
class Spent:
    """On some rows."""

    cpu_us: float
    """For each."""
    found: float
    """The share of keys that were in memory, in percent."""


class Counted:
    """A task of sum and count by key, with its state on disk."""

    def __init__(self, stores: RocksDbStores) -> None:
        app = App("state")
        orders = app.stream("orders", value=json("amount double"), key="user")
        orders.group_by("user").agg(total=agg.sum("amount"), n=agg.count(), name="totals").to("out")
        assembly = Assembly(app.name, app.graph, {"orders": 1})
        (part,) = assembly.parts
        self._disk = stores.open(part.name, 0)
        self._cache = StateCache(sized(MEMORY, 64 << 10))
        self._task = assembly.make(part, 0)
        self._task.open(self._disk.cold, {})
        self._offset = self._batches = 0

    def count(self, users: Iterable[Numbers]) -> Spent:
        """A row of each of these users, in batches."""
        (store,) = self._task.stores
        hits, misses, rows = store.hits, store.misses, 0
        cpu_s = 0.0
        for batch in users:
            records = self._records(batch)
            begun = time.process_time()
            self._task.feed("orders", records)
            self._batches += 1
            if self._batches % COMMIT == 0:
                self._commit()
            cpu_s += time.process_time() - begun
            rows += len(batch)
        hits, misses = store.hits - hits, store.misses - misses
        return Spent(cpu_s / rows * 1e6, 100 * hits / max(1, hits + misses))

    def _records(self, users: Numbers) -> pa.Table:
        first, self._offset = self._offset, self._offset + len(users)
        columns = {
            "key": pa.array([b"u%d" % user for user in users.tolist()], pa.binary()),
            "value": pa.array([b'{"amount":0.25}'] * len(users), pa.binary()),
            "timestamp_ms": pa.array(np.full(len(users), 1, np.int64)),
            "offset": pa.array(np.arange(first, self._offset, dtype=np.int64)),
        }
        return pa.table(columns)

    def _commit(self) -> None:
        self._task.flush()
        self._task.take()
        rows = changelog.rows(self._task.changes(), Progress({"orders": self._offset}))
        self._disk.write(rows, Checkpoint("log", self._offset, 0))
        self._task.settle()
        self._cache.fit(self._task.stores)


def larger(runs: int) -> list[Row]:
    """Ten million keys, 64 MiB of them in memory: each once, then rows evenly of all, then mostly of a few."""
    keys, rows = sized(10_000_000, 100_000), sized(1_000_000, 20_000)
    spent: dict[str, list[Spent]] = {"first": [], "last": [], "evenly": [], "mostly of a few": []}
    for run in range(runs):
        chance = np.random.default_rng(run)
        with tempfile.TemporaryDirectory() as root, RocksDbStores(Path(root), "state") as stores:
            task = Counted(stores)
            new = np.arange(keys)
            spent["first"].append(task.count(_batches(new[:rows])))
            task.count(_batches(new[rows:-rows]))
            spent["last"].append(task.count(_batches(new[-rows:])))
            spent["evenly"].append(task.count(_batches(chance.integers(0, keys, rows))))
            few = chance.integers(0, min(MANY, keys // 100), rows)
            spent["mostly of a few"].append(
                task.count(_batches(np.where(chance.random(rows) < 0.95, few, chance.integers(0, keys, rows))))
            )
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    name = f"streams state, {keys:,} keys in {MEMORY >> 20} MiB"
    return [
        *(compare(f"{name}: {what}", "µs/record", [one.cpu_us for one in found]) for what, found in spent.items()),
        *(compare(f"{name}: {what}, in memory", "%", [one.found for one in found]) for what, found in spent.items()),
        compare(f"{name}: the process at its highest", "MiB", [peak_mib]),
    ]


def _batches(users: Numbers) -> Iterator[Numbers]:
    for first in range(0, len(users), BATCH):
        yield users[first : first + BATCH]
