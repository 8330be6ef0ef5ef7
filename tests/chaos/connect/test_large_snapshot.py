"""
A table of many rows that is read while it changes, by a process that is killed with -9 five times: it goes on where it
was, and in the end the topic says what the table has.

``make chaos-connect`` has 10,000,000 rows; CONNECT_ROWS=20000 a short one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pytest
from tests.integration.connect.killing import killed_behind, run
from tests.integration.connect.shop import Shop, started_shop

from headrace.testing import TestCluster, started_cluster

ROWS: Final = int(os.environ.get("CONNECT_ROWS", "20000"))
KILLS: Final = 5
GONE: Final = -1
TOPIC: Final = "shop.public.a"
LIMIT_S: Final = 240 + ROWS / 10_000
ROW: Final = pa.struct([("id", pa.int64()), ("n", pa.int64())])
SHAPE: Final = pa.schema([("op", pa.string()), ("before", ROW), ("after", ROW)])
Numbers = np.ndarray[Any, np.dtype[Any]]

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600 + 2 * LIMIT_S)]


@contextmanager
def changing(shop: Shop) -> Iterator[list[int]]:
    """Transactions over rows that were read and rows that were not, until the block ends; how many committed."""
    stop, count = threading.Event(), [0]
    chance = np.random.default_rng(7)

    def change() -> None:
        with psycopg.connect(shop.conninfo) as session:
            while not stop.wait(0.01):
                one, other, gone = chance.integers(1, ROWS + 1, 3).tolist()
                n = count[0] + 1
                session.execute("update a set n = %s where id = %s or id = %s", [n, one, other])
                session.execute("delete from a where id = %s", [gone])
                session.execute("insert into a values (%s, %s)", [ROWS + n, n])
                session.commit()
                count[0] = n

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()


class Told:
    """What the records of the topic say, in their order."""

    def __init__(self, size: int) -> None:
        self.reads: Numbers = np.zeros(size, np.int64)
        """How often each row was read."""
        self.state: Numbers = np.full(size, GONE, np.int64)
        self.changes = 0

    def take(self, values: pa.ChunkedArray[Any]) -> None:
        """Values of records; null where a row has gone, which another record has said before."""
        text = b"\n".join(values.drop_null().to_pylist())
        if not text:
            return
        options = pyarrow.json.ParseOptions(explicit_schema=SHAPE, unexpected_field_behavior="ignore")
        said = pyarrow.json.read_json(
            pa.BufferReader(text), pyarrow.json.ReadOptions(block_size=len(text) + 1), options
        ).combine_chunks()
        op, before, after = (said[name].combine_chunks() for name in ("op", "before", "after"))
        ids = pc.coalesce(after.field("id"), before.field("id")).to_numpy(zero_copy_only=False)
        numbers = pc.if_else(after.is_valid(), after.field("n"), GONE).to_numpy(zero_copy_only=False)
        is_read = pc.equal(op, "r").to_numpy(zero_copy_only=False)
        np.add.at(self.reads, ids[is_read], 1)
        self.changes += int((~is_read).sum())
        last = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]
        self.state[ids[last]] = numbers[last]


def told(cluster: TestCluster, size: int) -> Told:
    """What readers of committed records see."""
    found = Told(size)
    with cluster.log_watch(isolation_level="read_committed") as watch:
        end = watch.bounds([(TOPIC, 0)])[TOPIC, 0].end
    with cluster.consumer(TOPIC, isolation_level="read_committed") as consumer:
        position = 0
        while position < end:
            for part in consumer.poll_batches(timeout_ms=10_000, max_rows=100_000):
                found.take(part.table["value"])
                position = part.next_offset
    return found


def rows_of(shop: Shop, size: int) -> Numbers:
    """The table, by id."""
    state = np.full(size, GONE, np.int64)
    with psycopg.connect(shop.conninfo) as session, session.cursor("rows") as cursor:
        cursor.itersize = 100_000
        cursor.execute("select id, n from a")
        while rows := cursor.fetchmany(cursor.itersize):
            ids, numbers = np.array(rows, np.int64).T
            state[ids] = numbers
    return state


def test_a_snapshot_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    with started_cluster(tmp_path / "data") as cluster, started_shop() as shop:
        with cluster.admin() as admin:
            admin.create_topic(TOPIC, 1)
        shop.do("create table a (id bigint primary key, n bigint not null)")
        shop.do(f"insert into a select g, 0 from generate_series(1, {ROWS}) g", "analyze a")
        config = shop.config("shop", "public.a", **{"offset.flush.interval.ms": "200"})
        if ROWS < 1_000_000:
            config |= {"incremental.snapshot.chunk.size": "200", "max.batch.size": "500"}
        stood: list[int] = []
        with changing(shop) as count, cluster.log_watch(isolation_level="read_committed") as watch:

            def committed() -> int:
                return watch.bounds([(TOPIC, 0)])[TOPIC, 0].end

            began = time.monotonic()
            for kill in range(1, KILLS + 1):
                with killed_behind(cluster, tmp_path, config, seconds=LIMIT_S) as until:
                    until(lambda at=ROWS * kill // (KILLS + 1): committed() >= at)
                stood.append(committed())
            seconds = time.monotonic() - began
            assert stood[-1] < ROWS, f"it was killed while it read rows: {stood}"
        run(cluster, tmp_path, config, seconds=LIMIT_S)
        size = ROWS + count[0] + 1
        found, wanted = told(cluster, size), rows_of(shop, size)
        shop.drop_slots()
    print(
        json.dumps(
            {
                "rows": ROWS,
                "transactions": count[0],
                "changes": found.changes,
                "reads": int(found.reads.sum()),
                "killed at": stood,
                "rows/s until the last kill, starts included": round(stood[-1] / seconds),
            }
        ),
        file=sys.stderr,
    )
    assert found.reads.max() == 1, "no row is read twice"
    assert not (wanted[: ROWS + 1] == 0)[found.reads[: ROWS + 1] == 0].any(), "what never changed was read"
    different = np.flatnonzero(found.state != wanted)
    assert not len(different), f"{len(different)} rows differ: {different[:10]}"
    assert found.changes > 0
