"""Whole records through converters: what was read of a partition as batches, and batches as what topics hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace_connect.converters.port import Converter, Part, Read
from headrace_connect.core.batch import HEADERS, KEY, PARTITION, PLACE, TIMESTAMP, TOPIC, VALUE, Batch, Failure

arrow: Any = pa  # its stubs are narrower than it is


@dataclass(frozen=True, slots=True, eq=False)
class ReadRecords:
    """What records of a partition became."""

    batches: list[Batch]
    """In order; ``place`` is the row of the table. Several only where one type cannot hold all keys or values."""
    failures: list[Failure]
    """By place; each begins with ``key:`` or ``value:``."""


def read_records(topic: str, partition: int, table: pa.Table, keys: Converter, values: Converter) -> ReadRecords:
    """
    Args:
        table: ``offset``, ``timestamp_ms``, ``key``, ``value``, ``headers``, as consumers give it.

    Raises:
        RegistryUnavailable, RegistryRefused: of converters with a registry; nothing is wrong with the records.
    """
    if not table.num_rows:
        return ReadRecords([], [])
    column = {name: arrow.concat_arrays(table[name].chunks) for name in table.column_names}
    key, value = keys.read(topic, column["key"]), values.read(topic, column["value"])
    failed = {row: f"value: {why}" for row, why in value.failed.items()}
    failed |= {row: f"key: {why}" for row, why in key.failed.items()}
    owner, at, counts = _places(key, table.num_rows)
    failed |= {
        row: f"key: it is {counts[row]} rows, and a record has one key"
        for row in np.flatnonzero(counts != 1).tolist()
        if row not in failed
    }
    bad = np.zeros(table.num_rows, bool)
    bad[list(failed)] = True
    batches: list[Batch] = []
    for part in value.parts:
        good = np.flatnonzero(~bad[part.rows])
        for picked in _runs(good, owner[part.rows[good]]):
            rows = part.rows[picked]
            of = key.parts[int(owner[rows[0]])]
            batches.append(_batch(topic, partition, column, part, of, picked, at[rows]))
    failures = [Failure(row, why) for row, why in sorted(failed.items())]
    return ReadRecords(batches, failures)


def _places(read: Read, count: int) -> tuple[Any, Any, Any]:
    """Of each row: which part it is in, where in that, and how many values it gave."""
    owner, at, counts = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    for number, part in enumerate(read.parts):
        owner[part.rows] = number
        at[part.rows] = np.arange(len(part.rows))
        counts += np.bincount(part.rows, minlength=count)
    return owner, at, counts


def _runs(rows: Any, owners: Any) -> list[Any]:
    """Rows that come together and have one owner."""
    return [run for run in np.split(rows, np.flatnonzero(np.diff(owners)) + 1) if len(run)]


def _batch(topic: str, partition: int, column: Mapping[str, Any], part: Part, key: Part, picked: Any, at: Any) -> Batch:
    rows = part.rows[picked]
    indices = pa.array(rows)
    batch = Batch.of(
        topic,
        part.values.take(pa.array(picked)),
        key=key.values.take(pa.array(at)),
        headers=column["headers"].take(indices),
        timestamp_ms=column["timestamp_ms"].take(indices),
        partition=partition,
        offset=column["offset"].take(indices),
        metadata={KEY: key.metadata, VALUE: part.metadata},
    )
    return batch.replace(PLACE, pa.array(rows.astype(np.int32)))


@dataclass(frozen=True, slots=True, eq=False)
class WrittenRecords:
    """What a batch became."""

    tables: dict[str, pa.Table]
    """By topic: ``place``, ``key``, ``value``, ``timestamp_ms``, ``partition``, ``headers``; in the order of rows."""
    failures: list[Failure]
    """By place; each begins with ``key:`` or ``value:``."""


def write_records(batch: Batch, keys: Converter, values: Converter) -> WrittenRecords:
    """
    Raises:
        RegistryUnavailable, RegistryRefused: as for ``read_records``.
    """
    tables: dict[str, pa.Table] = {}
    failures: list[Failure] = []
    encoded = batch.column(TOPIC).dictionary_encode()
    indices = encoded.indices.to_numpy()
    for number, topic in enumerate(encoded.dictionary.to_pylist()):
        own = batch if len(encoded.dictionary) == 1 else batch.filter(indices == number)
        key = keys.write(topic, own.column(KEY), own.metadata(KEY))
        value = values.write(topic, own.column(VALUE), own.metadata(VALUE))
        failed = {row: f"value: {why}" for row, why in value.failed.items()}
        failed |= {row: f"key: {why}" for row, why in key.failed.items()}
        failures += [Failure(int(own.places[row]), why) for row, why in failed.items()]
        stays = np.ones(len(own), bool)
        stays[list(failed)] = False
        good = own.filter(stays)
        tables[topic] = pa.table(
            {
                PLACE: good.column(PLACE),
                KEY: _without(key.values, key.failed, stays),
                VALUE: _without(value.values, value.failed, stays),
                **{name: good.column(name) for name in (TIMESTAMP, PARTITION, HEADERS)},
            }
        )
    return WrittenRecords(tables, sorted(failures, key=lambda failure: failure.place))


def _without(written: Any, failed: Mapping[int, str], stays: Any) -> Any:
    """What was written of the rows that stay; it has none of those that failed in it."""
    there = np.ones(len(stays), bool)
    there[list(failed)] = False
    return written.filter(pa.array(stays[there]))
