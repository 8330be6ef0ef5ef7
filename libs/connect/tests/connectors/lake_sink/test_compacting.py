"""Small files of a Delta table are put together beside a sink: the same rows, and positions that stay."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from libs.connect.tests.connectors.lake_sink.kinds import DELTA, ICEBERG
from libs.connect.tests.connectors.sql_sink.records import P0, P1, rows

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import LakeSink, compacting
from headrace_connect.connectors.lake_sink.compacting import Compacted, compact
from headrace_connect.plugin import PartitionTaken, RetriableError

MIB = 1 << 20


def put(sink: LakeSink, start: int, end: int, partition: TopicPartition = P0) -> None:
    sink.write(rows([{"n": n, "x": 9 - n % 10} for n in range(start, end)], start=start, partition=partition))
    sink.commit({partition: end}, b"token %d of %d" % (start, partition.partition))


def files(directory: Path) -> int:
    return len(DeltaTable(str(directory / "t")).file_uris())


def test_rows_and_positions_are_the_same_beside_a_sink_that_goes_on(tmp_path: Path) -> None:
    sink = DELTA.started(tmp_path)
    sink.open([P0, P1], 1)
    for start in range(0, 12, 3):
        put(sink, start, start + 3)
        put(sink, start, start + 3, P1)
    before = DELTA.stored(tmp_path)
    done = compact(DELTA.settings(tmp_path), 256 * MIB)
    assert (done.files_before, done.files_after, done.partitions) == (8, 1, 1)
    assert DELTA.stored(tmp_path) == before
    assert files(tmp_path) == 1
    put(sink, 12, 13)
    again = DELTA.started(tmp_path)
    assert again.open([P0, P1], 2) == {P0: 13, P1: 12}
    assert again.settle(b"token 9 of 1")
    again.commit({P0: 20}, None)
    with pytest.raises(PartitionTaken):
        put(sink, 13, 14)
    assert compact(DELTA.settings(tmp_path), 256 * MIB).files_before == 2
    assert compact(DELTA.settings(tmp_path), 256 * MIB) == Compacted(), "there is nothing to do"


def test_beside_commits_at_any_moment(tmp_path: Path) -> None:
    sink = DELTA.opened(tmp_path)
    put(sink, 0, 1)
    done = threading.Event()

    def write() -> None:
        for n in range(1, 10):
            put(sink, n, n + 1)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    count = 0
    while not done.is_set():
        count += compact(DELTA.settings(tmp_path), 256 * MIB).partitions
    writer.join()
    assert count > 1
    assert DELTA.numbers(tmp_path) == list(range(10))
    assert DELTA.started(tmp_path).open([P0], 2) == {P0: 10}


def test_directories_stay_and_large_files_too(tmp_path: Path) -> None:
    values = {"partition_by": 'm=col("n") % 2'}
    settings = DELTA.settings(tmp_path, **values)
    sink = DELTA.started(tmp_path, **values)
    sink.open([P0], 1)
    for start in range(0, 8, 2):
        put(sink, start, start + 2)
    assert compact(settings, 1).files_before == 0, "none is small"
    done = compact(settings, 256 * MIB)
    assert (done.files_before, done.files_after, done.partitions) == (8, 2, 2)
    assert DELTA.numbers(tmp_path) == list(range(8))


def test_what_was_replaced_is_deleted_after_a_while(tmp_path: Path) -> None:
    sink = DELTA.opened(tmp_path)
    for n in range(4):
        put(sink, n, n + 1)
    settings = DELTA.settings(tmp_path)
    parquet = tmp_path / "t"
    assert compact(settings, 256 * MIB).deleted == 0
    assert len(list(parquet.glob("*.parquet"))) == 5, "the table's own time is a week"
    (parquet / "part-of-a-commit-under-way.parquet").touch()
    assert compact(settings, 256 * MIB, keep_hours=0).deleted == 4
    assert len(list(parquet.glob("*.parquet"))) == 2, "what no commit names yet stays"
    assert DELTA.numbers(tmp_path) == [0, 1, 2, 3]
    assert DELTA.started(tmp_path).open([P0], 2) == {P0: 4}


def test_rows_are_sorted_where_that_is_asked(tmp_path: Path) -> None:
    sink = DELTA.opened(tmp_path)
    for n in range(4):
        put(sink, n, n + 1)
    settings = DELTA.settings(tmp_path)
    assert compact(settings, 256 * MIB, z_order=["x"]).files_after == 1
    table = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert table.column("x").to_pylist() == sorted(table.column("x").to_pylist())
    assert DELTA.numbers(tmp_path) == [0, 1, 2, 3]
    with pytest.raises(InvalidConfig, match=r"the table t has no column 'nx'"):
        compact(settings, 256 * MIB, z_order=["n", "nx"])


def test_who_changes_the_same_files_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a repair, or another compaction: what was planned is planned again."""
    sink = DELTA.opened(tmp_path)
    for n in range(4):
        put(sink, n, n + 1)
    settings, others = DELTA.settings(tmp_path), [1]
    optimize = compacting.optimize

    def late(table: DeltaTable, *given: Any) -> Any:
        if others:
            others.pop()
            other = DeltaTable(str(tmp_path / "t"))
            kept = other.to_pyarrow_table()
            write_deltalake(other, kept.slice(0, 2), mode="overwrite", predicate="n >= 0")
            write_deltalake(other, kept.slice(2), mode="append")
        return optimize(table, *given)

    monkeypatch.setattr(compacting, "optimize", late)
    compact(settings, 256 * MIB)
    assert not others
    assert DELTA.numbers(tmp_path) == [0, 1, 2, 3]
    others += [1] * 1_000
    put(sink, 4, 5)
    with pytest.raises(RetriableError, match="others change it all the time"):
        compact(settings, 256 * MIB)


def test_what_has_no_table_or_another_format(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="there is no table t"):
        compact(DELTA.settings(tmp_path), MIB)
    with pytest.raises(InvalidConfig, match=r"rewrite_data_files\(table => 'default.t'\)"):
        compact(ICEBERG.settings(tmp_path), MIB)
