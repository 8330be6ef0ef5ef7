"""Files in a real bucket: read, replaced, and written by the sink."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from libs.connect.tests.connectors.sql_sink.records import P0, rows
from pyarrow.fs import FileSelector, FileSystem
from tests.integration.streams.s3_server import BUCKET, started_s3

from headrace_connect.connectors.files import FilesSink, FilesSource
from headrace_connect.connectors.files.settings import SourceSettings
from headrace_connect.connectors.files.sink_settings import SinkSettings
from headrace_connect.plugin import Position

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started_s3(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        endpoint = environment["AWS_ENDPOINT_URL"].removeprefix("http://")
        yield f"s3://{BUCKET}/in?scheme=http&endpoint_override={endpoint}"


def read(source: FilesSource, after: Position | None) -> tuple[list[Any], Position]:
    found: list[Any] = []
    (split,) = source.splits()
    for chunk in source.read(split, after):
        assert isinstance(chunk.rows, pa.Table | list)
        found += chunk.rows.to_pylist() if isinstance(chunk.rows, pa.Table) else chunk.rows
        if chunk.drained:
            return found, json.loads(json.dumps(dict(chunk.position)))
    raise AssertionError("it follows its file for good")


def test_objects_are_read_once_and_anew_when_they_are_replaced(url: str) -> None:
    files, root = FileSystem.from_uri(url)

    def put(data: bytes) -> None:
        with files.open_output_stream(f"{root}/a/x.csv") as target:
            target.write(data)

    put(b"a,b\n1,2\n3,4")
    source = FilesSource(SourceSettings(url, "csv", "**/*.csv", batch_bytes=8))
    source.start()
    found, position = read(source, None)
    assert found == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}], "an object is complete"
    assert read(source, position) == ([], position)
    put(b"a,b\n1,2\n5,6\n")
    assert read(source, position)[0] == [{"a": "1", "b": "2"}, {"a": "5", "b": "6"}]


def test_the_sink_writes_objects_that_grow(url: str) -> None:
    target = url.replace("/in?", "/out?")
    for start in (0, 4):
        sink = FilesSink(SinkSettings(target, "parquet", file_offsets=10))
        assert sink.check() == []
        sink.start()
        sink.open([P0], 1)
        sink.write(rows([{"n": n} for n in range(start, start + 4)], start=start))
        sink.commit({P0: start + 4}, None)
    files, root = FileSystem.from_uri(target)
    (info,) = [one for one in files.get_file_info(FileSelector(root, recursive=True)) if one.is_file]
    assert Path(info.path).name == "00000000000000000000-00000000000000000008.parquet"
