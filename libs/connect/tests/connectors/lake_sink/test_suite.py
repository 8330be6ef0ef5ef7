"""What every sink must pass, with each kind of lake in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from libs.connect.tests.connectors.lake_sink.kinds import DELTA, ICEBERG
from libs.connect.tests.connectors.moving import Movable

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import LakeSink, open_dataset
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.plugin import Sink
from headrace_connect.testing import SinkCase, check_sink
from headrace_connect.testing.memory import TOPIC


class ParquetCase(SinkCase):
    """Numbers; no column can be of an object without fields, which one record has."""

    rows = 24
    bad = frozenset({11})

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place = Movable(directory / "lake")

    def make(self) -> Sink[Any]:
        return LakeSink(SinkSettings("lake", str(self.directory / "lake"), added_columns=("offset",)))

    def value(self, number: int) -> Any:
        return {"n": number, "x": {}} if number in self.bad else {"n": number}

    def stored(self) -> Sequence[int]:
        try:
            table = open_dataset(str(self.directory / "lake"), TOPIC).to_table(columns=["n"])
        except InvalidConfig:
            return []
        found: list[Any] = table.column("n").to_pylist()
        return found

    def go_away(self) -> bool:
        return self.place.go_away()

    def come_back(self) -> None:
        self.place.come_back()


class DeltaCase(ParquetCase):
    """The same in a Delta table."""

    rows = 16
    kind = DELTA

    def make(self) -> Sink[Any]:
        return LakeSink(self.kind.settings(self.directory / "lake"))

    def stored(self) -> Sequence[int]:
        return self.kind.numbers(self.directory / "lake")


class IcebergCase(DeltaCase):
    """In an Iceberg table; its catalog is in its directory, and goes away with it."""

    rows = 10
    bad = frozenset({5})
    kind = ICEBERG


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [ParquetCase, DeltaCase, IcebergCase])
def test_the_suite(tmp_path_factory: pytest.TempPathFactory, case: type[ParquetCase]) -> None:
    check_sink(lambda: case(tmp_path_factory.mktemp("lake")))
