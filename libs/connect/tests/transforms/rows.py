"""Batches as rows, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace_common.core.batch.arrow_schema import headers_type
from headrace_connect.core.batch import OPEN, Batch
from headrace_connect.transforms import Chain, Transformed, make_transforms

Row = dict[str, Any]
COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")


def row(value: Any = None, **others: Any) -> Row:
    """A record with what is not said left out."""
    return {
        "topic": "shop.orders", "partition": None, "offset": None, "timestamp_ms": None, "key": None, "headers": [],
        "value": value, **others,
    }  # fmt: skip


def batch_of(rows: Sequence[Row], value: Any = None, key: Any = None, *, is_open: bool = False) -> Batch:
    """``value``, ``key``: their types; None: as Arrow finds them."""
    column = {name: [one[name] for one in rows] for name in COLUMNS}
    headers = [[{"key": name, "value": text} for name, text in pairs] for pairs in column["headers"]]
    metadata = {name: {OPEN: b"1"} if is_open else {} for name in ("key", "value")}
    return Batch.of(
        pa.array(column["topic"], pa.string()),
        pa.array(column["value"], value),
        key=pa.array(column["key"], key),
        headers=pa.array(headers, headers_type()),
        timestamp_ms=pa.array(column["timestamp_ms"], pa.int64()),
        partition=pa.array(column["partition"], pa.int32()),
        offset=pa.array(column["offset"], pa.int64()),
        metadata=metadata,
    )


def chain(*steps: tuple[str, Mapping[str, str]], **predicates: Mapping[str, str]) -> Chain:
    """Transforms as they are configured: their types and settings."""
    config = {"name": "x", "transforms": ",".join(f"s{number}" for number in range(len(steps)))}
    for number, (kind, settings) in enumerate(steps):
        config |= {f"transforms.s{number}.type": kind}
        config |= {f"transforms.s{number}.{name.replace('__', '.')}": text for name, text in settings.items()}
    config["predicates"] = ",".join(predicates)
    for name, settings in predicates.items():
        config |= {f"predicates.{name}.{option}": text for option, text in settings.items()}
    return make_transforms(config)


def rows_of(batch: Batch) -> dict[int, Row]:
    """Records by their place."""
    found = {}
    for one in batch.records.to_pylist():
        place = one.pop("place")
        found[place] = {**one, "headers": [(pair["key"], pair["value"]) for pair in one["headers"]]}
    return found


def told(done: Transformed) -> tuple[dict[int, Row], dict[int, str]]:
    """The records that came out, by place and in order, and what failed."""
    rows: dict[int, Row] = {}
    for batch in done.batches:
        rows |= rows_of(batch)
    return rows, {failure.place: failure.message for failure in done.failures}


def one(
    kind: str, settings: Mapping[str, str], record: Row, value: Any = None, key: Any = None, *, is_open: bool = False
) -> Any:
    """What one transform makes of one record: the record, None where it is dropped, or why it failed."""
    rows, failed = told(chain((kind, settings)).apply(batch_of([record], value, key, is_open=is_open)))
    return failed[0].removeprefix("s0: ") if failed else rows.get(0)
