"""Schemas of Avro and rows of them, for tests."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from headrace_streams.core.formats.avro_read import AvroReader
from headrace_streams.core.formats.avro_schema import parse
from headrace_streams.core.formats.port import Decoded

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def record(name: str = "R", **fields: Any) -> dict[str, Any]:
    """A schema; a pair is a type and a default."""
    listed = [
        {"name": one, "type": kind[0], "default": kind[1]} if isinstance(kind, tuple) else {"name": one, "type": kind}
        for one, kind in fields.items()
    ]
    return {"type": "record", "name": name, "fields": listed}


def written(schema: Any, *rows: Any) -> pa.Array[Any]:
    """Values as fastavro writes rows, also such as no columns hold."""
    known = fastavro.parse_schema(json.loads(json.dumps(schema)))
    values = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, known, row)
        values.append(out.getvalue())
    return pa.array(values, pa.binary())


def read(schema: Any, values: Any, wanted: Any = None) -> Decoded:
    """What is read of values."""
    kind = parse(json.dumps(schema))
    given = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    return AvroReader(kind, kind if wanted is None else parse(json.dumps(wanted))).decode(given)


FIRST, LAST = (datetime.fromisoformat(text) for text in ("0001-01-02", "9999-12-30"))
_TIMES = st.datetimes(FIRST, LAST)
_SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=40)),
    ("string", st.text(max_size=20)),
    ({"type": "int", "logicalType": "date"}, st.dates(date(1, 1, 1), date(9999, 12, 31))),
    ({"type": "long", "logicalType": "timestamp-micros"}, _TIMES.map(lambda at: at.replace(tzinfo=UTC))),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        _TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=UTC)),
    ),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, _TIMES),
    ({"type": "long", "logicalType": "time-micros"}, st.times()),
    (
        {"type": "int", "logicalType": "time-millis"},
        st.times().map(lambda at: time(at.hour, at.minute, at.second, at.microsecond // 1000 * 1000)),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -10))),
    ),
]


def _named(kinds: list[tuple[Any, st.SearchStrategy[Any]]], name: str) -> tuple[Any, st.SearchStrategy[Any]]:
    """A record of these."""
    names = [f"f{at}" for at in range(len(kinds))]
    schema = record(name, **dict(zip(names, (kind for kind, _ in kinds), strict=True)))
    return schema, st.fixed_dictionaries(dict(zip(names, (rows for _, rows in kinds), strict=True)))


@st.composite
def kinds(draw: Any, name: str, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and its values; ``name`` is there for it alone."""
    shape = draw(st.sampled_from(["scalar", "null", "list", "map", "record", "enum", "fixed"] if depth else ["scalar"]))
    if shape == "scalar":
        kind, values = draw(st.sampled_from(_SCALARS))
        return kind, values
    if shape == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if shape == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    if shape == "record":
        return _named([draw(kinds(f"{name}_{at}", depth - 1)) for at in range(draw(st.integers(1, 3)))], name)
    kind, values = draw(kinds(f"{name}_x", depth - 1))
    if shape == "list":
        return {"type": "array", "items": kind}, st.lists(values, max_size=4)
    if shape == "map":
        return {"type": "map", "values": kind}, st.dictionaries(st.text(max_size=5), values, max_size=3)
    if isinstance(kind, list):
        return kind, values
    return draw(st.sampled_from([["null", kind], [kind, "null"]])), st.none() | values


@st.composite
def tables(draw: Any) -> tuple[Any, list[Any]]:
    """A record's schema, and some rows of it."""
    schema, rows = _named([draw(kinds(f"T{at}")) for at in range(draw(st.integers(1, 4)))], "R")
    return schema, draw(st.lists(rows, max_size=6))
