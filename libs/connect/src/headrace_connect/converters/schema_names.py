"""What Kafka Connect's JSON converter calls types in its schemas (``{"type": "struct", "fields": [...]}``)."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

Node = dict[str, Any]
"""A schema as JSON has it."""
_CONNECT: Final = "org.apache.kafka.connect.data."
DECIMAL: Final = f"{_CONNECT}Decimal"
DATE: Final = f"{_CONNECT}Date"
TIME: Final = f"{_CONNECT}Time"
TIMESTAMP: Final = f"{_CONNECT}Timestamp"
MICRO_TIME: Final = "io.debezium.time.MicroTime"
NANO_TIME: Final = "io.debezium.time.NanoTime"
MICRO_TIMESTAMP: Final = "io.debezium.time.MicroTimestamp"
NANO_TIMESTAMP: Final = "io.debezium.time.NanoTimestamp"
DEBEZIUM: Final = {
    DATE: "io.debezium.time.Date",
    TIME: "io.debezium.time.Time",
    TIMESTAMP: "io.debezium.time.Timestamp",
}
"""Debezium's names of what has the same values: it writes them unless ``time.precision.mode`` is ``connect``."""
PRECISION: Final = "connect.decimal.precision"
PRECISION_MAX: Final = 38
PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int32", DATE): pa.date32(),
    ("int32", TIME): pa.time32("ms"),
    ("int64", TIMESTAMP): pa.timestamp("ms", "UTC"),
    ("int32", DEBEZIUM[DATE]): pa.date32(),
    ("int32", DEBEZIUM[TIME]): pa.time32("ms"),
    ("int64", DEBEZIUM[TIMESTAMP]): pa.timestamp("ms", "UTC"),
    ("int64", MICRO_TIME): pa.time64("us"),
    ("int64", NANO_TIME): pa.time64("ns"),
    ("int64", MICRO_TIMESTAMP): pa.timestamp("us", "UTC"),
    ("int64", NANO_TIMESTAMP): pa.timestamp("ns", "UTC"),
}
UNIT_NAMES: Final = {"s": TIMESTAMP, "ms": TIMESTAMP, "us": MICRO_TIMESTAMP, "ns": NANO_TIMESTAMP}
TIME_NAMES: Final = {"s": TIME, "ms": TIME, "us": MICRO_TIME, "ns": NANO_TIME}
