"""For readers of a lake of Parquet files: which files count, and what they have together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import dataset
from pyarrow.fs import FileSystem

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink.commits import ENDING, Slot
from headrace_connect.connectors.lake_sink.records import Records
from headrace_connect.connectors.places import Place, find_place

COMMITS_MAX: Final = 10_000_000


def committed_files(path: str, table: str | None = None) -> list[str]:
    """
    The files below ``path`` that count, of one table or of all, sorted.

    Reads each commit that is not merged: a request each in a bucket. What is committed meanwhile may be missing,
    nothing else.

    Raises:
        RetriableError: the place cannot be read now.
        InvalidConfig: a commit is damaged, or of a newer version.
    """
    return sorted(_committed(find_place(path), table))


def open_dataset(path: str, table: str) -> dataset.Dataset:
    """
    One table as a data set of pyarrow, with all its columns as they are now.

    Raises:
        InvalidConfig: there is no such table.
    """
    return open_files(path, table, sorted(_committed(find_place(path), table)))


def open_files(path: str, table: str, names: Sequence[str]) -> dataset.Dataset:
    """
    Some files of a table, whether they count or not, as a data set with all its columns as they are now.

    Raises:
        InvalidConfig: there is no such table.
    """
    _, schema = Records(find_place(path)).schema(table)
    if schema is None:
        raise InvalidConfig(f"there is no table {table!r} in {path}")
    files, root = FileSystem.from_uri(path if "://" in path else os.path.abspath(path))
    typed = pa.schema([field for field in schema if not pa.types.is_null(field.type)])
    keys = {unquote(part.partition("=")[0]) for name in names for part in name.split("/")[2:-1] if "=" in part}
    of_names = dataset.partitioning(pa.schema([field for field in typed if field.name in keys]), flavor="hive")
    paths = [f"{root.rstrip('/')}/{name}" for name in names]
    return dataset.dataset(paths, schema=typed, filesystem=files, format="parquet", partitioning=of_names)


def _committed(place: Place, table: str | None) -> Iterator[str]:
    records = Records(place)
    names = (name.rpartition("/") for name in place.find(f"**/*{ENDING}", COMMITS_MAX))
    for directory, own in groupby(names, key=lambda name: name[0]):
        listed = [name for _, _, name in own]
        _, merged = records.merged(directory, listed)
        slots = [slot for name in listed if (slot := Slot.parse(name)) is not None and slot.first >= merged.end]
        for file in chain(merged.files, records.counted(directory, slots)):
            if table in (None, file.table):
                yield file.path
