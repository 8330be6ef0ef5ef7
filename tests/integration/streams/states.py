"""The state of a word count: what its changelogs say, and what the disks of its workers have of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import quote

from headrace.records import Record
from headrace.testing import TestCluster
from headrace_streams import App, agg, string
from headrace_streams.adapters.memory_store import MemoryTaskStore
from headrace_streams.adapters.rocksdb_store import RocksDbStores
from headrace_streams.core.state.changelog import CONTROL, newest, prefix
from headrace_streams.plan.cut import Assembly
from headrace_streams.plan.nodes import changelog_topic
from headrace_streams.ports import Checkpoint, TaskStore
from headrace_verify.reading import all_stable, partitions_of

from .apps import wait_until

PART, STORE = "by-word", "counts"
READ_MS_MAX: Final = 120_000
Log = list[Record[bytes, bytes]]


def counted(cluster: TestCluster, app: str) -> Counter[str]:
    """What committed records of the changelogs say, to the operator itself."""
    program = App("read")
    words = program.stream("lines", value=string).group_by("value", name=PART)
    words.agg(n=agg.count(), name=STORE, emit="every")
    logs = _logs(cluster, app)
    assembly = Assembly("read", program.graph, {"lines": len(logs)})
    found: Counter[str] = Counter()
    for partition, log in logs.items():
        store = MemoryTaskStore()
        store.write(list(_rows(log).items()), Checkpoint("", 0, 0))
        table = assembly.read(STORE, partition, store.cold(STORE))
        for row in [] if table is None else table.to_pylist():
            found[row["value"]] += row["n"]
    return found


def check_disks(cluster: TestCluster, app: str, directories: Iterable[Path]) -> int:
    """Each disk of a task has what its changelog said at its checkpoint; how many there are. No worker runs."""
    topics = [changelog_topic(app, PART)]
    wait_until(lambda: all_stable(cluster.bootstrap_servers, topics), "transactions have ended", lambda: topics)
    logs = _logs(cluster, app)
    looked_at = 0
    with ExitStack() as stack:
        for state_dir in directories:
            for _ in (state_dir / quote(app, safe="")).glob("[0-9]*"):  # each time the next that is free
                stores = stack.enter_context(RocksDbStores(state_dir, app))
                for (part, partition), checkpoint in stores.tidy(0).items():
                    assert part == PART
                    store = stores.open(part, partition)
                    _check_disk(store, checkpoint, logs[partition], f"{stores.directory}: task {partition}")
                    store.close()
                    looked_at += 1
    return looked_at


def _check_disk(store: TaskStore, checkpoint: Checkpoint, log: Log, what: str) -> None:
    """Of keys that came again behind the checkpoint, compaction may have taken the records before it."""
    below, later = ([r for r in log if (r.offset < checkpoint.next_offset) is here] for here in (True, False))
    again = {record.key for record in later}
    start = prefix(STORE)
    held = {start + key: value for key, value in store.cold(STORE).scan()}
    if (progress := store.get(CONTROL)) is not None:
        held[CONTROL] = progress
    said = _rows(below)
    assert {k: v for k, v in held.items() if k not in again} == {k: v for k, v in said.items() if k not in again}, what
    assert all(held[key] == said[key] for key in held.keys() & said.keys()), what
    assert held.keys() <= {record.key for record in log}, what


def _rows(log: Log) -> dict[bytes, bytes]:
    found = newest((record.key or b"", record.value) for record in log)
    return {key: value for key, value in found.items() if value is not None}


def _logs(cluster: TestCluster, app: str) -> dict[int, Log]:
    found: defaultdict[int, Log] = defaultdict(list)
    with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions := partitions_of(consumer, changelog_topic(app, PART)))
        for record in consumer.read_to_end(timeout_ms=READ_MS_MAX):
            found[record.partition].append(record)
    return {tp.partition: found[tp.partition] for tp in partitions}
