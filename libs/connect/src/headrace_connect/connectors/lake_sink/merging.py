"""
Puts small files of a lake of Parquet files together, beside sinks and readers. For the Spark job ``lake_compact``.

It may die at any step: files that no merge names do not count, and a merge is made in one step. Files that are not
named any more are deleted later, so that who has listed them can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.entropy import new_uuid
from headrace_common.runtime.failpoints import failpoint
from headrace_connect.connectors.lake_sink.commits import ENDING, DataFile, Slot
from headrace_connect.connectors.lake_sink.fitting import refit
from headrace_connect.connectors.lake_sink.merges import Bin, Merged, plan_bins
from headrace_connect.connectors.lake_sink.parquet import join_parquet
from headrace_connect.connectors.lake_sink.reading import COMMITS_MAX
from headrace_connect.connectors.lake_sink.records import Records
from headrace_connect.connectors.places import Place
from headrace_connect.plugin import RetriableError

GROUP_ROWS: Final = 1 << 20
"""Of a group of rows, but for the last part in it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done in one partition."""

    directory: str
    """Of its commits."""
    number: int
    """Of the merge that would be made."""
    end: int
    """Rows below it are merged."""
    files: tuple[DataFile, ...]
    """That count below ``end`` now."""
    bins: tuple[Bin, ...]
    cleaned: int
    """As ``Merged`` has it."""


def list_partitions(place: Place) -> list[str]:
    """The directories that have commits."""
    return sorted({name.rpartition("/")[0] for name in place.find(f"*/*/*{ENDING}", COMMITS_MAX)})


def plan_merge(place: Place, directory: str, target_bytes: int, cleaned: int = 0) -> Plan | None:
    """
    Which files of a partition are put together; None: none. The newest commit is left alone.

    Args:
        cleaned: as ``clean`` said it.

    Raises:
        RetriableError: the place is away.
        InvalidConfig: a commit is damaged.
    """
    records = Records(place)
    names = [name.rpartition("/")[2] for name in place.list_directory(directory)]
    slots = sorted(slot for name in names if (slot := Slot.parse(name)) is not None)
    number, merged = records.merged(directory, names)
    end = slots[-1].first
    below = [slot for slot in slots if merged.end <= slot.first < end]
    files = (*merged.files, *records.counted(directory, below))
    bins = plan_bins(files, target_bytes)
    return Plan(directory, number + 1, end, files, tuple(bins), cleaned) if bins else None


def merge_files(place: Place, files: Bin) -> DataFile:
    """
    One file with the rows of these, in the columns that their table has now; durable, and no merge names it yet.

    Raises:
        RetriableError: the place is away, or a file is not there any more: others have merged it.
        InvalidConfig: a file is not as its commit says.
    """
    _, known = Records(place).schema(files.table)
    assert known is not None, "a table with files has columns"
    of_names = {unquote(part.partition("=")[0]) for part in files.directory.split("/") if "=" in part}
    fields = [field for field in known if field.name not in of_names and not pa.types.is_null(field.type)]
    schema = pa.schema(fields).with_metadata(known.metadata)
    data = join_parquet(schema, _groups(place, files.files, schema))
    first, end = files.offsets
    path = f"{files.directory}/{first:020}-{end:020}-{new_uuid()}.parquet"
    place.write(path, data, whole=False)
    return DataFile(path, files.table, sum(file.rows for file in files.files), len(data))


def _groups(place: Place, files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
    kept: list[pa.Table] = []
    for file in files:
        opened = place.open(file.path)
        if opened is None:
            raise RetriableError(f"{file.path} is not there any more: others have put it together with others")
        with opened:
            rows = parquet.ParquetFile(opened.file).read()
        if len(rows) != file.rows:
            raise InvalidConfig(f"{file.path} has {len(rows)} rows, and its commit says {file.rows}; restore the file")
        kept.append(refit(rows, schema))
        if sum(map(len, kept)) >= GROUP_ROWS:
            yield pa.concat_tables(kept)
            kept = []
    if kept:
        yield pa.concat_tables(kept)


def take_merge(place: Place, plan: Plan, made: Mapping[Bin, DataFile], now_ms: int) -> bool:
    """
    Have files count in the place of those they are made of; False: others have merged meanwhile, and these are deleted.

    Args:
        made: a file for each bin.
        now_ms: since 1970.
    """
    replaced = {file.path for each in plan.bins for file in each.files}
    files = [file for file in plan.files if file.path not in replaced]
    files += [made[each] for each in plan.bins]
    merged = Merged(new_uuid(), plan.end, tuple(files), tuple(sorted(replaced)), now_ms, plan.cleaned)
    failpoint("connect.lake.merging")
    if Records(place).take_merge(plan.directory, plan.number, merged):
        return True
    for file in made.values():
        place.delete(file.path)
    return False


def clean(place: Place, directory: str, made_before_ms: int) -> tuple[int, int]:
    """
    Delete what merges have replaced that are older.

    Returns:
        How many files were deleted, and up to which number merges are cleaned now; for the next one.
    """
    records = Records(place)
    names = [name.rpartition("/")[2] for name in place.list_directory(directory)]
    last, merged = records.merged(directory, names)
    counts = {file.path for file in merged.files}
    deleted, number = 0, merged.cleaned
    while number < last:
        old = records.read_merge(directory, number + 1)
        if old.at_ms >= made_before_ms:
            break
        for path in old.replaced:
            if path not in counts:
                place.delete(path)
                failpoint("connect.lake.cleaning")
                deleted += 1
        number += 1
    return deleted, number
