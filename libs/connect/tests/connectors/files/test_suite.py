"""What every source must pass, with files of each kind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from libs.connect.tests.connectors.moving import Movable
from pyarrow import parquet

from headrace_connect.connectors.files import FilesSource
from headrace_connect.connectors.files.settings import SourceSettings
from headrace_connect.plugin import Source
from headrace_connect.testing import SourceCase, check_source


class FilesCase(SourceCase):
    """Two files, of several chunks each."""

    rows = 20

    def __init__(self, directory: Path, format_: Literal["csv", "parquet"]) -> None:
        self.directory = directory / "in"
        self.place = Movable(self.directory)
        self.settings = SourceSettings(str(self.directory), format_, batch_bytes=64, batch_rows=4)
        for name, numbers in (("a", range(12)), ("b", range(12, 20))):
            path = self.directory / name
            if format_ == "parquet":
                parquet.write_table(pa.table({"n": numbers}), path, row_group_size=6)
            elif format_ == "csv":
                path.write_text("n,text\n" + "".join(f'{n},"a\nb"\n' for n in numbers))
            else:
                path.with_suffix(".gz").write_bytes(gzip.compress(b"".join(b'{"n": %d}\n' % n for n in numbers)))

    def make(self) -> Source[Any]:
        return FilesSource(self.settings)

    def go_away(self) -> bool:
        return self.place.go_away()

    def come_back(self) -> None:
        self.place.come_back()

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        assert value is not None
        return int(json.loads(value)["n"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_the_suite(tmp_path_factory: pytest.TempPathFactory, format_: Literal["csv", "parquet"]) -> None:
    check_source(lambda: FilesCase(tmp_path_factory.mktemp("files"), format_))
