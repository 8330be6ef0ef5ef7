"""Schemas from files: Spark's JSON, JSON Schema, and what is neither."""

from __future__ import annotations

import json

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.schemas import schema_of_json

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": ["string", "null"], "format": "date"},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def test_a_json_schema_becomes_columns() -> None:
    schema = schema_of_json(json.dumps(ORDER))
    assert schema is not None
    assert schema.simpleString() == (
        "struct<id:bigint,at:timestamp,day:date,price:double,paid:boolean,"
        "items:array<struct<sku:string>>,tags:map<string,string>>"
    )
    assert [each.nullable for each in schema.fields] == [False] + [True] * 6


def test_sparks_own_form_is_read() -> None:
    first = schema_of_json(json.dumps(ORDER))
    assert first is not None
    assert schema_of_json(first.json()) == first


def test_ddl_is_left_to_who_can_read_it() -> None:
    assert schema_of_json("id bigint, name string") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no schema"),
        ('{"type":"string"}', "no object with properties"),
        ('{"type":"object"}', "without properties"),
        ('{"properties":{"a":{"type":["string","integer"]}}}', "one 'type' beside null"),
        ('{"properties":{"a":{"type":"decimal"}}}', "'decimal'"),
        ('{"properties":{"a":5}}', "no JSON Schema"),
        ('{"properties":{"a":{"type":"array"}}}', "items of property 'a'"),
        ('{"fields":[{"name":"a"}]}', "StructType.json"),
    ],
)
def test_what_is_wrong_with_a_schema_is_told(text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        schema_of_json(text)
