"""Copies of records: which, with what value, and what they keep."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headrace_jobs.topic_copy.transform import SOURCE_POSITION, SOURCE_TIMESTAMP, Copy, copy_records
from headrace_spark.core.columns import FieldGiven
from headrace_spark.core.sink_columns import check_sink_schema

from .records import record, records

pytestmark = pytest.mark.spark
SCHEMA = StructType([StructField("carrier", StringType()), StructField("delay", IntegerType())])
HEADER = [{"key": "h", "value": b"x"}]
GIVEN = [
    record(b'{"carrier":"UA","delay":90}', 0, key=b"UA", headers=HEADER),
    record(b'{"carrier":"AA","delay":5}', 1, key=b"AA"),
    record(b"\xff\x00", 2, key=b"\xff", partition=3),
    record(None, 3, key=b"UA"),
]


def found(spark: SparkSession, copy: Copy) -> list[dict[str, Any]]:
    frame = copy_records(records(spark, GIVEN), copy)
    given = [FieldGiven(each.name, each.dataType.simpleString(), each.nullable) for each in frame.schema.fields]
    check_sink_schema(given, "t" if copy.one_topic else None)
    return [row.asDict(recursive=True) for row in frame.collect()]


def test_without_options_all_is_copied_byte_for_byte(spark: SparkSession) -> None:
    rows = found(spark, Copy())
    assert [(row["key"], row["value"]) for row in rows] == [(each[0], each[1]) for each in GIVEN]
    assert [row["headers"] for row in rows] == [HEADER, [], [], []]
    assert set(rows[0]) == {"key", "value", "headers"}


@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        ("key = 'UA'", [0, 3]),
        ("json.delay > 60", [0]),
        ("readable AND json.carrier LIKE 'A%'", [1]),
        ("NOT readable", [2, 3]),
        ("value IS NULL", [3]),
        ("partition = 3 OR offset = 1", [1, 2]),
        ("size(headers) > 0", [0]),
    ],
)
def test_conditions(spark: SparkSession, condition: str, offsets: list[int]) -> None:
    copy = Copy(filter=condition, schema=SCHEMA, keep=("position",))
    rows = found(spark, copy)
    assert [int(row["headers"][0]["value"].split(b"/")[-1]) for row in rows] == offsets


def test_a_new_value_of_fields_and_expressions(spark: SparkSession) -> None:
    copy = Copy(filter="readable", select="json.carrier, json.delay * 2 AS twice, upper(topic) AS t", schema=SCHEMA)
    assert [json.loads(row["value"]) for row in found(spark, copy)] == [
        {"carrier": "UA", "twice": 180, "t": "T"},
        {"carrier": "AA", "twice": 10, "t": "T"},
    ]


def test_what_is_kept(spark: SparkSession) -> None:
    kept = found(spark, Copy(keep=("key", "headers", "partition", "timestamp", "position"), one_topic=False))
    assert [row["partition"] for row in kept] == [0, 0, 3, 0]
    assert {row["topic"] for row in kept} == {"t"}
    assert kept[0]["headers"] == [
        *HEADER,
        {"key": SOURCE_TIMESTAMP, "value": b"1772366400000"},
        {"key": SOURCE_POSITION, "value": b"t/0/0"},
    ]
    assert set(found(spark, Copy(keep=()))[0]) == {"value"}


def test_an_expression_that_does_not_fit_is_spark_s_to_tell(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="nothing"):
        copy_records(records(spark, GIVEN), Copy(filter="nothing > 1"))
