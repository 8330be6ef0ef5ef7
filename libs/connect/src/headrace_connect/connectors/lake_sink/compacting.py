"""
Puts small files of a Delta table together, beside its sink and readers. Rows stay as they are, and so do positions:
they are ``txn`` actions, which a compaction does not have.

A sink only adds files, and a compaction replaces those that it has seen, so neither makes the other fail. Who replaces
the same files, as a repair does, or another compaction, makes this one fail: it is planned again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink.one_table import Conflict
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.connectors.lake_sink.sink import lake_of
from headrace_connect.plugin import RetriableError
from headrace_connect.settings import near

if TYPE_CHECKING:
    from deltalake import DeltaTable

TRIES_MAX: Final = 5
"""Of a compaction, each of which reads all that is small."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done."""

    partitions: int = 0
    files_before: int = 0
    files_after: int = 0
    deleted: int = 0
    """Files that were replaced before."""


def compact(
    settings: SinkSettings, target_bytes: int, *, z_order: Sequence[str] = (), keep_hours: int | None = None
) -> Compacted:
    """
    Args:
        target_bytes: files that are smaller are put together until they have it.
        z_order: columns whose neighbouring values come together; all rows are written anew then. None: the order stays.
        keep_hours: files that were replaced so long ago are deleted; None: after the table's own time, a week.

    Raises:
        InvalidConfig: it is no Delta table, or none that is there.
        RetriableError: the place is away, or others change the same all the time. Nothing is lost.
    """
    check_compacts(settings)
    from headrace_connect.connectors.lake_sink.delta import DeltaLake

    lake = lake_of(settings, [])
    assert isinstance(lake, DeltaLake), "its format is Delta's"
    lake.start()
    for _ in range(TRIES_MAX):
        try:
            return lake.change_files(lambda table: _compact(table, settings, target_bytes, z_order, keep_hours))
        except Conflict:
            continue
    raise RetriableError(f"{settings.only_table}: others change it all the time")


def check_compacts(settings: SinkSettings) -> None:
    """
    Raises:
        InvalidConfig: its files are put together elsewhere; says where.
    """
    if settings.format == "iceberg":
        name = settings.only_table if "." in settings.only_table else f"default.{settings.only_table}"
        raise InvalidConfig(
            "format is iceberg: pyiceberg puts no files together. Use Iceberg's own procedure in Spark, "
            f"CALL catalog.system.rewrite_data_files(table => '{name}'), or what the catalog offers; the sink may run "
            "meanwhile"
        )
    assert settings.format == "delta", "Parquet's are put together by merges"


def _compact(
    table: DeltaTable, settings: SinkSettings, target_bytes: int, z_order: Sequence[str], keep_hours: int | None
) -> Compacted:
    names = [field.name for field in table.schema().fields]
    for column in z_order:
        if column not in names:
            hint = near(column, names)
            raise InvalidConfig(f"the table {settings.only_table} has no column {column!r}{hint}")
    deleted = table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=keep_hours is None)
    made = optimize(table, target_bytes, z_order)
    partitions, before, after = (made[key] for key in ("partitionsOptimized", "numFilesRemoved", "numFilesAdded"))
    return Compacted(int(partitions), int(before), int(after), len(deleted))


def optimize(table: DeltaTable, target_bytes: int, z_order: Sequence[str]) -> Mapping[str, Any]:
    """What Delta calls OPTIMIZE."""
    if z_order:
        return table.optimize.z_order(z_order, target_size=target_bytes)
    return table.optimize.compact(target_size=target_bytes)
