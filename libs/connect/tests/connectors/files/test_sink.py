"""Files of a topic: each record in one of them, whatever is repeated, killed, or written by two."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from libs.connect.tests.connectors.moving import Movable
from libs.connect.tests.connectors.sql_sink.records import P0, TOPIC, rows
from pyarrow import ipc, parquet

from headrace_connect.connectors.files.sink import FilesSink
from headrace_connect.connectors.files.sink_settings import SinkSettings
from headrace_connect.connectors.files.written import FORMS
from headrace_connect.connectors.places import local
from headrace_connect.plugin import RowsRefused, Sink
from headrace_connect.testing import SinkCase, check_sink


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.os, "fsync", lambda _: None)


def started(directory: Path, **values: Any) -> FilesSink:
    sink = FilesSink(SinkSettings(str(directory), **{"file_offsets": 10} | values))
    sink.start()
    sink.open([P0], 1)
    return sink


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / TOPIC / "0").iterdir())


def numbers(directory: Path) -> list[int]:
    lines = [line for path in sorted(directory.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line)["n"] for line in lines]


def put(sink: FilesSink, start: int, end: int) -> None:
    sink.write(rows([{"n": n} for n in range(start, end)], start=start))


def test_files_are_cut_at_fixed_offsets_and_grow(tmp_path: Path) -> None:
    sink = started(tmp_path)
    put(sink, 3, 25)
    sink.commit({P0: 25}, None)
    names = ["00000000000000000000-00000000000000000010.jsonl", "00000000000000000010-00000000000000000020.jsonl"]
    assert files(tmp_path) == [*names, "00000000000000000020-00000000000000000025.jsonl"]
    again = started(tmp_path)
    put(again, 15, 28)
    again.commit({P0: 29}, None)
    assert files(tmp_path) == [*names, "00000000000000000020-00000000000000000029.jsonl"]
    assert numbers(tmp_path) == list(range(3, 28))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans()), max_size=10))
def test_any_holders_and_repeats_write_each_record_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, bool]]
) -> None:
    directory = tmp_path_factory.mktemp("out")
    committed = 0
    holders: dict[int, tuple[FilesSink, int]] = {}
    for who, count, commits in steps:
        if who not in holders:
            holders[who] = (started(directory), committed)
        sink, at = holders[who]
        put(sink, at, at + count)
        if commits:
            sink.commit({P0: at + count}, None)
            committed = at + count
        holders[who] = (sink, at + count)
    last = started(directory)
    put(last, min(committed, 40), 130)
    last.commit({P0: 130}, None)
    assert numbers(directory) == list(range(130))


@pytest.mark.parametrize("format_", ["csv", "parquet", "arrow"])
def test_columns_that_come_and_types_that_change(tmp_path: Path, format_: str) -> None:
    values: Sequence[Any] = [{"n": 1, "t": 'a,"\n'}, {"n": 2, "t": ""}, {"n": 2**40, "t": None}]
    for start, part in ((0, values), (3, [{"n": 1.5, "new": b"x"}])):
        sink = started(tmp_path, format=format_)  # each reads back what the one before wrote
        sink.write(rows(part, start=start))
        sink.commit({P0: start + len(part)}, None)
    (name,) = files(tmp_path)
    path = tmp_path / TOPIC / "0" / name
    if format_ == "csv":
        assert path.read_text() == '"n","t","new"\n"1","a,""\n",\n"2","",\n"1099511627776",,\n"1.5",,"eA=="\n'
        return
    table = parquet.read_table(path) if format_ == "parquet" else ipc.open_file(str(path)).read_all()
    assert table.to_pylist() == [
        {"n": 1.0, "t": 'a,"\n', "new": None},
        {"n": 2.0, "t": "", "new": None},
        {"n": float(2**40), "t": None, "new": None},
        {"n": 1.5, "t": None, "new": b"x"},
    ]


def test_rows_that_cannot_be_written(tmp_path: Path) -> None:
    sink = started(tmp_path)
    with pytest.raises(RowsRefused) as refused:
        sink.write(rows([{"n": 1}, None]))
    assert list(refused.value.reasons) == [1]
    with pytest.raises(RowsRefused):
        sink.write(rows([{"n": float("nan")}]))
    parquets = started(tmp_path / "p", format="parquet")
    parquets.write(rows([{"n": 1}]))
    with pytest.raises(RowsRefused, match="rows before it"):
        parquets.write(rows([{"n": "text"}], start=1))


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_files_grow_too(tmp_path: Path, codec: str) -> None:
    for start in (0, 4):
        sink = started(tmp_path, compression=codec)
        put(sink, start, start + 4)
        sink.commit({P0: start + 4}, None)
    (path,) = (tmp_path / TOPIC / "0").iterdir()
    data = path.read_bytes()
    text = gzip.decompress(data) if codec == "gzip" else pa.CompressedInputStream(pa.BufferReader(data), codec).read()
    assert [json.loads(line)["n"] for line in text.splitlines()] == list(range(8))


def test_the_same_rows_are_the_same_bytes() -> None:
    table = pa.table({"n": [1, None], "t": ["x", None]})
    for form in FORMS.values():
        made = form.prepare(table)
        assert form.write(form.read(form.write(made))) == form.write(made)


def test_check_needs_rights(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert FilesSink(SinkSettings(str(tmp_path))).check() == []
    assert "may be written" in FilesSink(SinkSettings(str(tmp_path / "file"))).check()[0]


class FilesSinkCase(SinkCase):
    """JSON lines, in files of ten offsets."""

    rows = 24

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "out"
        self.place = Movable(self.directory)

    def make(self) -> Sink[Any]:
        return FilesSink(SinkSettings(str(self.directory), file_offsets=10))

    def stored(self) -> Sequence[int]:
        return numbers(self.directory)

    def go_away(self) -> bool:
        return self.place.go_away()

    def come_back(self) -> None:
        self.place.come_back()


@pytest.mark.timeout(600)
def test_the_suite(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_sink(lambda: FilesSinkCase(tmp_path_factory.mktemp("out")))
