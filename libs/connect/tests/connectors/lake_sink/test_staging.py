"""Files that no commit names yet: rows of others' columns meanwhile, rows that are refused, and what is handed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from libs.connect.tests.connectors.lake_sink.lakes import Killed, Mortal, on, opened, put, stored
from libs.connect.tests.connectors.sql_sink.records import P0, P1, rows

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import committed_files
from headrace_connect.connectors.lake_sink.parquet import ParquetLake
from headrace_connect.connectors.lake_sink.records import Records, token_name
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.connectors.lake_sink.staging import Staging
from headrace_connect.connectors.places import find_place
from headrace_connect.plugin import RowsRefused


def staging(directory: Path) -> Staging:
    return Staging(SinkSettings("lake", str(directory), added_columns=()))


def test_files_count_when_they_are_named(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    put(sink, 0, 2)
    sink.commit({P0: 2}, None)
    one, other = staging(tmp_path), staging(tmp_path)
    one.write(rows([{"n": 2}, {"n": 3}], start=2))
    other.write(rows([{"n": 4}], start=4))
    other.write(rows([{"n": 100}], start=7, partition=P1))
    files = [*one.flush()[P0], *(found := other.flush())[P0]]
    assert len(committed_files(str(tmp_path))) == 1
    assert one.flush() == {}
    lake = ParquetLake(str(tmp_path), [])
    lake.start()
    assert lake.open([P0, P1]) == {P0: 2}
    lake.name(P0, 6, files)
    lake.name(P1, 8, found[P1])
    assert sorted(row["n"] for row in stored(tmp_path)) == [0, 1, 2, 3, 4, 100]
    assert sink.open([P0, P1], 1) == {P0: 6, P1: 8}


def test_a_task_decides_nothing(tmp_path: Path) -> None:
    """A sink that is about to use its token goes on: only who commits takes the partition from it."""
    sink = on(opened(tmp_path), Mortal(tmp_path, lambda moment: moment == "before token"))
    put(sink, 0, 2)
    with pytest.raises(Killed):
        sink.commit({P0: 2}, b"token")
    one = staging(tmp_path)
    one.write(rows([{"n": 0}]))
    assert one.flush()[P0]
    assert Records(find_place(str(tmp_path))).verdict(token_name(b"token")) is None


def test_others_add_columns_meanwhile(tmp_path: Path) -> None:
    stages = [staging(tmp_path) for _ in range(3)]
    for number, one in enumerate(stages):
        one.write(rows([{"n": number, f"own{number}": 1.5}], start=number))
    files = [file for one in stages for file in one.flush()[P0]]
    lake = ParquetLake(str(tmp_path), [])
    lake.start()
    lake.open([P0])
    lake.name(P0, 3, files)
    found = {row["n"]: {name for name, value in row.items() if value == 1.5} for row in stored(tmp_path)}
    assert found == {0: {"own0"}, 1: {"own1"}, 2: {"own2"}}


def test_refused_rows_take_nothing_with_them(tmp_path: Path) -> None:
    one = staging(tmp_path)
    with pytest.raises(RowsRefused) as refused:
        one.write(rows([{"n": 1, "x": {}}, {"n": 2, "x": {}}]))
    assert set(refused.value.reasons) == {0, 1}
    one.write(rows([{"n": 1}]))
    assert [file.rows for file in one.flush()[P0]] == [1]
    with pytest.raises(InvalidConfig, match="format is delta"):
        Staging(SinkSettings("lake", str(tmp_path), "delta", topics=("t",)))
