"""Formats in which a lake is one table, ``t``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable
from libs.connect.tests.connectors.sql_sink.records import P0
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from headrace_connect.connectors.lake_sink import LakeSink
from headrace_connect.connectors.lake_sink.settings import SinkSettings


@dataclass(frozen=True)
class TableKind:
    """One of them."""

    name: Literal["delta", "iceberg"]
    read: Callable[[Path], pa.Table | None]

    def settings(self, directory: Path, **values: Any) -> SinkSettings:
        given = {"table": "t", "added_columns": ("partition", "offset"), "catalog": catalog(directory)} | values
        if self.name != "iceberg":
            del given["catalog"]
        return SinkSettings("lake", str(directory), self.name, **given)

    def started(self, directory: Path, **values: Any) -> LakeSink:
        sink = LakeSink(self.settings(directory, **values))
        sink.start()
        return sink

    def opened(self, directory: Path, **values: Any) -> LakeSink:
        sink = self.started(directory, **values)
        sink.open([P0], 1)
        return sink

    def stored(self, directory: Path) -> list[dict[str, Any]]:
        table = self.read(directory)
        rows = [] if table is None else table.to_pylist()
        return sorted(rows, key=lambda row: (row["__connect_partition"], row["__connect_offset"]))

    def numbers(self, directory: Path) -> list[int]:
        return [row["n"] for row in self.stored(directory)]


def catalog(directory: Path) -> Mapping[str, str]:
    """A catalog in SQLite."""
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}


def load(directory: Path) -> Catalog:
    return load_catalog("headrace", **catalog(directory), warehouse=f"file://{directory}")


def _read_delta(directory: Path) -> pa.Table | None:
    path = directory / "t"
    return DeltaTable(str(path)).to_pyarrow_table() if path.exists() else None


def _read_iceberg(directory: Path) -> pa.Table | None:
    if not (directory / "catalog.db").exists():
        return None
    try:
        return load(directory).load_table("default.t").scan().to_arrow()
    except NoSuchTableError:
        return None


DELTA = TableKind("delta", _read_delta)
ICEBERG = TableKind("iceberg", _read_iceberg)
