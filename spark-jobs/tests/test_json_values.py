"""What counts as one JSON object, and what is said of the rest: no record is half read."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.json_values import (
    NO_VALUE,
    NOT_AN_OBJECT,
    NOT_FITTING,
    NOT_JSON,
    NOT_UTF8,
    check_fields,
    with_fields,
)

from .records import values

pytestmark = pytest.mark.spark
SCHEMA = "a int, b string, t timestamp, n struct<z:int>, l array<int>, x double"
GOOD = {
    b'{"a":1,"b":"x","t":"2026-01-02T03:04:05Z","n":{"z":1},"l":[1,2],"x":0.5}': (1, "x"),
    b"{}": (None, None),
    b' \n{"a":1}\n ': (1, None),
    b'{"a":null,"other":true}': (None, None),
    b'{"b":5}': (None, "5"),
    b'{"b":"}"}': (None, "}"),
    '{"b":"ä\\u00e4"}'.encode(): (None, "ää"),
    b'{"b":"\\u0000"}': (None, "\0"),
}
BAD = {
    None: NO_VALUE,
    b"": NOT_JSON,
    b"   ": NOT_JSON,
    b"null": NOT_AN_OBJECT,
    b"5": NOT_AN_OBJECT,
    b'"s"': NOT_AN_OBJECT,
    b"[]": NOT_AN_OBJECT,
    b'[{"a":1}]': NOT_AN_OBJECT,
    b'[{"a":1},{"a":2}]': NOT_AN_OBJECT,
    b'{"a":1': NOT_JSON,
    b'{"a":1}}': NOT_JSON,
    b'{"a":1} trailing': NOT_JSON,
    b'{"a":1}{"a":2}': NOT_JSON,
    b'{"a":1},{"a":2}': NOT_JSON,
    b'{"a":1}]': NOT_JSON,
    b'{"a":1},"junk":5': NOT_JSON,
    b'{"a":1},"value":{"a":2}': NOT_JSON,
    '{"a":1},"\u200bend":true,"more":{"a":2}'.encode(): NOT_JSON,
    b'{"a":1},"value":{"a":2}}{"a":3': NOT_JSON,
    b'{"x":1e400}': NOT_FITTING,
    b'{"x":-1e400}': NOT_FITTING,
    b"{'a':1}": NOT_JSON,
    b'{"x":NaN}': NOT_JSON,
    b'{"a":"no"}': NOT_FITTING,
    b'{"a":"1"}': NOT_FITTING,
    b'{"a":1.5}': NOT_FITTING,
    b'{"a":99999999999}': NOT_FITTING,
    b'{"t":"garbage"}': NOT_FITTING,
    b'{"n":5}': NOT_FITTING,
    b'{"n":{"z":"q"}}': NOT_FITTING,
    b'{"l":[1,"x",3]}': NOT_FITTING,
    b'\xff\xfe{"a":1}': NOT_UTF8,
    b'{"b":"\xff"}': NOT_UTF8,
}


def test_each_value_is_read_whole_or_told_why_not(spark: SparkSession) -> None:
    given = [*GOOD, *BAD]
    schema = StructType.fromDDL(SCHEMA)
    found = {row.offset: row for row in with_fields(values(spark, given), schema).collect()}
    read = {given[n]: row._reason for n, row in found.items()}
    assert read == {**dict.fromkeys(GOOD), **BAD}
    for number, value in enumerate(given):
        fields = found[number]._fields
        assert (fields is None) == (value in BAD)
        if value in GOOD:
            assert (fields.a, fields.b) == GOOD[value]


def test_a_field_that_must_be_there_is_named(spark: SparkSession) -> None:
    schema = StructType.fromDDL("id bigint NOT NULL, name string")
    rows = (
        with_fields(values(spark, [b'{"id":1}', b'{"name":"x"}', b'{"id":null}']), schema).orderBy("offset").collect()
    )
    assert [row._reason for row in rows] == [None, "field id is missing or null", "field id is missing or null"]


def test_timestamps_of_another_form_are_read_by_their_pattern(spark: SparkSession) -> None:
    schema = StructType.fromDDL("t timestamp")
    value = json.dumps({"t": "02.01.2026 03:04"}).encode()
    read = with_fields(values(spark, [value]), schema, timestamp_format="dd.MM.yyyy HH:mm").selectExpr(
        "date_format(_fields.t, 'yyyy-MM-dd HH:mm') AS t"
    )
    assert [row.t for row in read.collect()] == ["2026-01-02 03:04"]


def test_fields_of_one_name_in_two_cases_are_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidConfig, match="two fields"):
        check_fields(StructType.fromDDL("id int, ID int"))
    with pytest.raises(InvalidConfig, match="no fields"):
        check_fields(StructType([]))


def damaged(seed: int) -> bytes:
    """An object of JSON with a few characters put in, left out or doubled."""
    chance = random.Random(seed)
    some = "".join(chance.choices('xü"}{\\ \n', k=chance.randrange(6)))
    text = json.dumps({"a": chance.choice([1, None]), "b": some, "n": {"z": 7}})
    for _ in range(chance.choice([0, 1, 1, 2])):
        at = chance.randrange(len(text) + 1)
        put = chance.choice(["", *'{}[],:"\\ \n', "null", text])
        text = text[:at] + put + text[at + chance.randrange(3) :]
    return text.encode()


def one_object(value: bytes) -> bool:
    """Another parser's word."""

    def never(name: str) -> None:
        raise ValueError(name)

    try:
        return isinstance(json.loads(value, parse_constant=never), dict)
    except ValueError:
        return False


def test_another_parser_agrees_on_what_is_one_object(spark: SparkSession) -> None:
    given = [damaged(seed) for seed in range(4_000)]
    schema = StructType.fromDDL("a int, b string, n struct<z:int>")
    found = with_fields(values(spark, given), schema).select("offset", "_reason").collect()
    wanted = {value: one_object(value) for value in given}
    for row in found:
        value = given[row.offset]
        if row._reason != NOT_FITTING:
            assert (row._reason is None) == wanted[value], (value, row._reason)
    assert sum(row._reason is None for row in found) > 800
    assert 0.2 < sum(wanted.values()) / len(wanted) < 0.8
