"""Tables of Parquet files: what they have in them, which files count, and what is refused."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from libs.connect.tests.connectors.lake_sink.lakes import numbers, opened, put, started, stored
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows
from pyarrow import parquet

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import LakeSink, committed_files
from headrace_connect.connectors.lake_sink.parquet import DIRECTORIES_MAX
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.core.events import Event
from headrace_connect.plugin import PartitionTaken, RetriableError, Rows, RowsRefused

PAGE = Path(__file__).parents[5] / "docs" / "connectors" / "lake-sink.md"


def test_rows_and_their_position_come_together(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(rows([{"n": 1, "t": "a"}, {"n": 2, "t": None}], start=10))
    sink.write(rows([{"n": 3, "t": "c"}], start=12))
    assert committed_files(str(tmp_path)) == []
    sink.commit({P0: 13}, None)
    (name,) = committed_files(str(tmp_path), TOPIC)
    assert name.startswith(f"{TOPIC}/0/{10:020}-{13:020}-")
    assert committed_files(str(tmp_path), "another") == []
    assert stored(tmp_path) == [{"n": 1, "t": "a"}, {"n": 2, "t": None}, {"n": 3, "t": "c"}]
    assert started(tmp_path).open([P0, P1], 2) == {P0: 13}
    meta = parquet.ParquetFile(tmp_path / name).metadata
    assert meta.row_group(0).column(0).compression == "ZSTD"


def test_what_is_not_committed_is_not_there(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    put(sink, 0, 3)
    sink.open([P0], 1)
    put(sink, 0, 2)
    sink.commit({P0: 2}, None)
    assert numbers(tmp_path) == [0, 1]
    put(sink, 2, 4)
    sink.close([P0])
    with pytest.raises(PartitionTaken):
        sink.commit({P0: 4}, None)
    assert numbers(tmp_path) == [0, 1]


def test_a_position_moves_without_rows(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.commit({P0: 5}, None)
    sink.commit({P0: 5}, None)
    assert started(tmp_path).open([P0], 1) == {P0: 5}
    put(sink, 5, 7)
    sink.commit({P0: 9}, None)
    assert started(tmp_path).open([P0], 1) == {P0: 9}
    assert numbers(tmp_path) == [5, 6]


def test_columns_of_the_record_and_the_order_of_rows(tmp_path: Path) -> None:
    sink = opened(tmp_path, added_columns=("topic", "partition", "offset", "timestamp", "key"))
    sink.write(rows([{"n": 1}, {"n": 2}], ["a", "b"], start=7))
    sink.commit({P0: 9}, None)
    first, second = stored(tmp_path)
    assert first == {
        "n": 1,
        "__connect_topic": TOPIC,
        "__connect_partition": 0,
        "__connect_offset": 7,
        "__connect_timestamp": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
        "__connect_key": "a",
    }
    assert second["__connect_offset"] == 8
    (name,) = committed_files(str(tmp_path))
    assert len(parquet.ParquetFile(tmp_path / name).metadata.row_group(0).sorting_columns) == 1


def test_values_without_fields(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(rows(["a", "b"]))
    sink.commit({P0: 2}, None)
    assert stored(tmp_path) == [{"value": "a"}, {"value": "b"}]


# --- drift ----------------------------------------------------------------------------------------------------------


def test_columns_are_added_and_widened(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    batches: list[list[Any]] = [[{"n": 1}], [{"n": 1.5, "x": {"a": 1}}], [{"x": {"b": "t"}, "y": [1]}]]
    for start, values in enumerate(batches):
        sink.write(rows(values, start=start))
        if start == 1:
            sink.commit({P0: 2}, None)
    sink.commit({P0: 3}, None)
    assert sorted(stored(tmp_path), key=str) == [
        {"n": 1.0, "x": None, "y": None},
        {"n": 1.5, "x": {"a": 1, "b": None}, "y": None},
        {"n": None, "x": {"a": None, "b": "t"}, "y": [1]},
    ]


def test_whole_numbers_that_are_no_doubles_keep_their_column(tmp_path: Path) -> None:
    big = 2**53 + 1
    sink = opened(tmp_path)
    sink.write(rows([{"n": big}]))
    with pytest.raises(RowsRefused, match="truncated") as refused:
        sink.write(rows([{"n": 1.5}, {"n": 2.0}], start=1))
    assert list(refused.value.reasons) == [0]
    sink.open([P0], 1)
    sink.write(rows([{"n": big}]))
    sink.commit({P0: 1}, None)
    with pytest.raises(RowsRefused):  # also when another instance reads the table's columns
        opened(tmp_path).write(rows([{"n": 1.5}], start=1))
    assert numbers(tmp_path) == [big]


def test_what_drift_says(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write(rows([{"n": 1, "x": {"a": 1}}]))
    first.commit({P0: 1}, None)

    def write(drift: str, *values: Any) -> LakeSink:
        sink = opened(tmp_path, drift=drift)
        sink.write(rows(list(values), start=1))
        return sink

    with pytest.raises(RowsRefused, match="no such column") as refused:
        write("strict", {"n": 2, "new": None}, {"n": 3, "new": "x"})
    assert list(refused.value.reasons) == [1]
    with pytest.raises(RowsRefused, match="drift is strict"):
        write("strict", {"x": {"a": 1, "b": 2}})
    with pytest.raises(RowsRefused, match="the column is int64"):
        write("strict", {"n": "text"})
    with pytest.raises(InvalidConfig, match="no such column"):
        write("fail", {"new": 1})
    with pytest.raises(InvalidConfig, match="the column is int64"):
        write("fail", {"n": "text"})
    with pytest.raises(RowsRefused, match="the column is int64"):
        write("add", {"n": "text"})
    with pytest.raises(RowsRefused):
        write("strict", {"n": 2.5})
    sink = write("ignore", {"n": 2.0, "new": 1, "x": {"a": 5, "b": 6}})
    sink.commit({P0: 2}, None)
    assert stored(tmp_path) == [{"n": 1, "x": {"a": 1}}, {"n": 2, "x": {"a": 5}}]


def test_columns_that_another_task_adds_meanwhile(tmp_path: Path) -> None:
    one, other = started(tmp_path), started(tmp_path)
    one.open([P0], 1)
    other.open([P1], 1)
    one.write(rows([{"n": 1, "a": 1}]))
    other.write(rows([{"n": 1, "b": 1}], partition=P1))
    one.commit({P0: 1}, None)
    with pytest.raises(RetriableError, match="columns"):
        other.commit({P1: 1}, None)
    other.open([P1], 1)
    other.write(rows([{"n": 1, "b": 1}], partition=P1))
    other.commit({P1: 1}, None)
    assert stored(tmp_path) == [{"n": 1, "a": 1, "b": None}, {"n": 1, "a": None, "b": 1}]


# --- partitions -----------------------------------------------------------------------------------------------------


def test_a_table_is_partitioned_by_expressions(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by='even=col("n") % 2 == 0, t=col("t")')
    values = [{"n": 0, "t": "a/b"}, {"n": 1, "t": None}, {"n": 2, "t": "a/b"}, {"n": 3, "t": "ü"}]
    sink.write(rows(values))
    sink.commit({P0: 4}, None)
    names = committed_files(str(tmp_path))
    assert {name.split("/")[2:-1] == ["even=true", "t=a%2Fb"] for name in names} == {True, False}
    assert len(names) == 3
    found = sorted(stored(tmp_path), key=lambda row: int(row["n"]))
    assert [(row["n"], row["even"], row["t"]) for row in found] == [
        (0, True, "a/b"),
        (1, False, None),
        (2, True, "a/b"),
        (3, False, "ü"),
    ]


def test_rows_whose_partition_cannot_be_computed(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by='day=col("at").str.to_datetime("%Y-%m-%d").dt.date()')
    with pytest.raises(RowsRefused, match="partitioned by") as refused:
        sink.write(rows([{"at": "2026-01-01"}, {"at": "soon"}]))
    assert list(refused.value.reasons) == [1]
    many = opened(tmp_path, partition_by='n=col("n")')
    put(many, 0, DIRECTORIES_MAX + 1)
    with pytest.raises(InvalidConfig, match="different values"):
        many.commit({P0: DIRECTORIES_MAX + 1}, None)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_values_at_the_edges_stay_as_they_are(tmp_path: Path) -> None:
    digits = "1" * 1_000
    year_10000 = pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    values = pa.StructArray.from_arrays(
        [
            pa.array([float("nan")]),
            pa.array([digits]),
            year_10000,
            pa.array(["a\0b"]),
            pa.array([10**75], pa.decimal256(76, 0)),
            pa.array([2**64 - 1], pa.uint64()),
            pa.array(["x"]).dictionary_encode(),
        ],
        names=["nan", "digits", "year", "nul", "large", "unsigned", "dictionary"],
    )
    sink = opened(tmp_path)
    sink.write(rows(values))
    sink.commit({P0: 1}, None)
    (name,) = committed_files(str(tmp_path))
    table = parquet.read_table(tmp_path / name)
    assert table.column("year").cast(pa.int64())[0].as_py() == 253_402_300_800_000_000
    (found,) = table.drop_columns(["year"]).to_pylist()
    assert found.pop("nan") != 0
    assert found == {"digits": digits, "nul": "a\0b", "large": 10**75, "unsigned": 2**64 - 1, "dictionary": "x"}


def test_1600_columns(tmp_path: Path) -> None:
    value = {f"c{n}": n for n in range(1_600)}
    sink = opened(tmp_path)
    sink.write(rows([value]))
    sink.commit({P0: 1}, None)
    assert stored(tmp_path) == [value]


def test_records_that_are_no_rows(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    with pytest.raises(RowsRefused, match="no value") as refused:
        sink.write(rows([{"n": 1}, None]))
    assert list(refused.value.reasons) == [1]
    with pytest.raises(RowsRefused, match="Parquet has no form") as refused:
        sink.write(rows([{"n": 1, "x": None}, {"n": 2, "x": {}}]))
    assert list(refused.value.reasons) == [1]
    with pytest.raises(RowsRefused, match="Parquet has no form"):
        sink.write(rows(pa.StructArray.from_arrays([pa.array([(1, 2, 3)], pa.month_day_nano_interval())], names=["x"])))
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(RowsRefused, match="two fields"):
        sink.write(rows(twice))


def test_names_of_topics_lead_nowhere_else(tmp_path: Path) -> None:
    for name in ("../up", "_own", ".hidden", "a/b", "ü"):
        sink = opened(tmp_path / "lake", table=name)
        put(sink, 0, 1)
        sink.commit({P0: 1}, None)
        assert numbers(tmp_path / "lake", name) == [0]
        sink.close([P0])
        for path in (tmp_path / "lake" / TOPIC).rglob("*.commit"):
            path.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_commits_that_are_damaged_or_newer(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.commit({P0: 5}, None)
    commit = tmp_path / TOPIC / "0" / f"{0:020}.commit"
    good = json.loads(commit.read_bytes())
    for data, error in ((b"{", "damaged"), (b"{}", "damaged"), (b'{"version":1}', "no commit")):
        commit.write_bytes(data)
        with pytest.raises(InvalidConfig, match=error):
            opened(tmp_path)
    commit.write_text(json.dumps(good | {"version": 2}))
    with pytest.raises(InvalidConfig, match="version 2"):
        committed_files(str(tmp_path))


def test_a_topic_that_a_transform_renames(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    given = rows([{"n": 1}])
    parts = (given.values, given.keys, given.offsets, given.timestamps_ms, given.headers)
    sink.write(Rows("other", 0, *parts, original_topic=TOPIC))
    sink.commit({P0: 1}, None)
    assert numbers(tmp_path, "other") == [1]
    assert started(tmp_path).open([P0], 1) == {P0: 1}


def test_check_needs_rights(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert LakeSink(SinkSettings("lake", str(tmp_path / "lake"))).check() == []
    assert list((tmp_path / "lake").rglob("*.*")) == []
    assert "may be read and written" in LakeSink(SinkSettings("lake", str(tmp_path / "file"))).check()[0]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"path": ""}, "empty"),
        ({"path": "ftp://x/y"}, "cannot be used"),
        ({"table": " "}, "table is empty"),
        ({"added_columns": ("ofset",)}, "offset meant"),
        ({"partition_by": "day"}, "partition.by"),
        ({"partition_by": 'n=col("n").sum()'}, "partition.by"),
    ],
)
def test_settings_that_cannot_work(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SinkSettings(**{"name": "lake", "path": "/lake"} | values)


def test_settings_say_when_to_commit(tmp_path: Path) -> None:
    sink = LakeSink(SinkSettings("lake", str(tmp_path), flush_interval_ms=5, flush_rows=6, flush_bytes=7 << 20))
    assert (sink.commit_interval_ms, sink.commit_rows, sink.commit_bytes) == (5, 6, 7 << 20)
    assert not sink.commit_drained


def test_a_reader_without_the_helper(tmp_path: Path) -> None:
    """What the page says to readers in other languages."""
    sink = opened(tmp_path)
    put(sink, 0, 2)
    sink.commit({P0: 2}, b"token")
    put(sink, 2, 3)
    sink.commit({P0: 3}, None)
    sink.open([P0], 1)
    assert not sink.settle(b"given up")
    put(sink, 3, 4)
    with pytest.raises(PartitionTaken):
        sink.commit({P0: 4}, b"given up")
    _, reads, rule = re.findall(r"```python\n(.*?)```", f"```python\n```{PAGE.read_text()}", re.DOTALL)
    names: dict[str, Any] = {}
    exec(rule, names)
    assert sorted(names["list_files"](tmp_path)) == committed_files(str(tmp_path))
    exec(reads.replace("/var/lib/lake", str(tmp_path)).replace('"orders"', repr(TOPIC)), names)
    assert names["table"].num_rows == 3
    assert names["files"] == committed_files(str(tmp_path))


def test_a_table_that_changes_is_told_when_it_is_committed(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    told: list[Event] = []
    sink.notify = told.append
    put(sink, 0, 2)
    sink.commit({P0: 2}, None)
    assert told == [], "it is new"
    for start in (2, 2, 3):
        sink.open([P0], 1)
        sink.write(rows([{"n": 2**40, "more": 1.5}], start=start))
        if start == 2:
            assert told == []
    sink.commit({P0: 4}, None)
    assert [(event.kind, event.detail) for event in told] == [
        ("drift", {"table": TOPIC, "column": "more", "type": "double"})
    ]
