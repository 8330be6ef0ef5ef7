"""``transforms=…``: names, aliases, settings, and everything that is wrong with them."""

from __future__ import annotations

import pytest

from headrace_connect.core.options import InvalidOptions
from headrace_connect.transforms import JAVA, PREDICATES, TRANSFORMS, make_transforms, options_of

NEEDED = {
    "Cast": {"spec": "a:int8"},
    "DropHeaders": {"headers": "h"},
    "ExtractField": {"field": "a"},
    "HeaderFrom": {"fields": "a", "headers": "h", "operation": "copy"},
    "HoistField": {"field": "a"},
    "InsertField": {"topic.field": "t"},
    "InsertHeader": {"header": "h", "value.literal": "x"},
    "MaskField": {"fields": "a"},
    "RegexRouter": {"regex": "a", "replacement": "b"},
    "SetSchemaMetadata": {"schema.name": "N"},
    "TimestampConverter": {"target.type": "unix"},
    "ValueToKey": {"fields": "a"},
    "expr": {"filter": 'col("a") > 1'},
}
"""The settings that must be given."""


def problems_of(config: dict[str, str]) -> list[str]:
    with pytest.raises(InvalidOptions) as caught:
        make_transforms(config)
    for problem in caught.value.problems:
        assert problem.message.startswith(problem.key)
    assert str(caught.value) == "\n".join(problem.message for problem in caught.value.problems)
    return [problem.message for problem in caught.value.problems]


def test_nothing_is_no_transforms() -> None:
    for config in ({}, {"transforms": ""}, {"name": "x", "transformsx.y": "z"}):
        assert make_transforms(config).steps == []


@pytest.mark.parametrize("before", ["", JAVA])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_transform_is_made_by_its_name_and_by_javas(before: str, name: str) -> None:
    settings = NEEDED.get(name.partition("$")[0], {})
    config = {"transforms": "a", "transforms.a.type": before + name}
    config |= {f"transforms.a.{option}": text for option, text in settings.items()}
    [step] = make_transforms(config).steps
    assert step.name == "a"
    assert {option.name for option in options_of(name)} >= settings.keys()


def test_kafkas_transforms_are_all_there() -> None:
    sided = "Cast ExtractField Flatten HeaderFrom HoistField InsertField MaskField ReplaceField SetSchemaMetadata"
    sided += " TimestampConverter"
    plain = "DropHeaders Filter InsertHeader RegexRouter TimestampRouter ValueToKey"
    kafkas = {f"{name}${side}" for name in sided.split() for side in ("Key", "Value")} | set(plain.split())
    assert kafkas | {"expr$Key", "expr$Value"} == set(TRANSFORMS)
    assert set(PREDICATES) == {"TopicNameMatches", "HasHeaderKey", "RecordIsTombstone"}


def test_steps_are_in_the_order_of_the_list_and_share_predicates() -> None:
    config = {
        "transforms": "b, a",
        "transforms.a.type": "Filter",
        "transforms.a.predicate": "p",
        "transforms.a.negate": "true",
        "transforms.b.type": "Filter",
        "transforms.b.predicate": "p",
        "predicates": "p",
        "predicates.p.type": "RecordIsTombstone",
    }
    first, second = make_transforms(config).steps
    assert (first.name, first.negate, second.name, second.negate) == ("b", False, "a", True)
    assert first.predicate is second.predicate is not None


def test_everything_that_is_wrong_is_told_at_once() -> None:
    config = {
        "transforms": "mask,cast,route,mask,gone,side",
        "transforms.mask.type": "MaskFeild$Value",
        "transforms.cast.type": "Cast$Value",
        "transforms.cast.spec": "a:int9",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regx": "x",
        "transforms.route.predicate": "tomb",
        "transforms.side.type": "MaskField",
        "transforms.maks.fields": "card",
        "predicates": "tombs",
        "predicates.tombs.type": "RecordIsTombston",
        "predicates.tombs.name": "x",
    }
    assert problems_of(config) == [
        "predicates.tombs.type: there is no predicate 'RecordIsTombston'; is RecordIsTombstone meant?",
        "transforms has mask twice",
        "transforms.maks.fields: maks is not one of transforms; is mask meant?",
        "transforms.mask.type: there is no transform 'MaskFeild$Value'; is MaskField$Value meant?",
        "transforms.cast.spec: there is no type 'int9'; is int8 meant?",
        "transforms.route.predicate: 'tomb' is not one of predicates; is tombs meant?",
        "transforms.route.regx is not a setting of RegexRouter; is regex meant?",
        "transforms.route.regex is missing; RegexRouter needs it: The pattern.",
        "transforms.route.replacement is missing; RegexRouter needs it: What is there instead; $1 is what the first "
        "group has matched.",
        f"transforms.gone.type is missing; there are: {', '.join(TRANSFORMS)}",
        "transforms.side.type: 'MaskField' is for keys or for values: write MaskField$Key or MaskField$Value",
    ]


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("Cast$Value", {"spec": ""}, "spec: '' is not a list with something in it; write names with commas between"),
        (
            "Cast$Value",
            {"spec": "a:int8,,b:int8"},
            "spec: 'a:int8,,b:int8' is not a list: there is nothing between two commas",
        ),
        ("Cast$Value", {"spec": "a:b:int8"}, "spec: 'a:b:int8' is no pair like field:type"),
        ("Cast$Value", {"spec": "int8,a:int8"}, "spec: a type for the whole key or value stands alone"),
        (
            "Cast$Value",
            {"spec": "bytes"},
            "spec: there is no type 'bytes'; there are: boolean, float32, float64, int16, int32, int64, int8, string",
        ),
        ("ReplaceField$Value", {"renames": "a"}, "renames: 'a' is no pair like old:new"),
        ("ReplaceField$Value", {"renames": "a:b:c"}, "renames: 'a:b:c' is no pair like old:new"),
        (
            "ReplaceField$Value",
            {"blacklist": "a"},
            "blacklist is not a setting of ReplaceField; there are: exclude, include, negate,",
        ),
        (
            "ExtractField$Value",
            {"field": "a", "field.syntax.version": "V3"},
            "field.syntax.version is not a known value: 'V3'; there are: V1, V2",
        ),
        (
            "ExtractField$Value",
            {"field": "`a", "field.syntax.version": "V2"},
            "field: '`a': the backtick at character 1 is not closed",
        ),
        (
            "MaskField$Value",
            {"fields": "a", "replacement": ""},
            "replacement: is empty; leave it out, and texts are masked as empty ones",
        ),
        (
            "HeaderFrom$Value",
            {"fields": "a,b", "headers": "h", "operation": "move"},
            "headers: has 1 names, and fields has 2; one for each field",
        ),
        (
            "HeaderFrom$Value",
            {"fields": "a", "headers": "h", "operation": "moves"},
            "operation is not a known value: 'moves'; is move meant?",
        ),
        ("InsertHeader", {"header": "", "value.literal": "x"}, "header: is empty"),
        (
            "InsertField$Value",
            {},
            "topic.field: nothing is to be inserted; give one of topic.field, partition.field, ",
        ),
        ("InsertField$Value", {"static.field": "a"}, "static.value: is missing; static.field needs it"),
        ("SetSchemaMetadata$Value", {}, "schema.name: is missing; give it, or schema.version"),
        ("SetSchemaMetadata$Value", {"schema.version": "x"}, "schema.version: 'x' is not a whole number"),
        ("ValueToKey", {"fields": "a,a"}, "fields: has a name twice"),
        (
            "TimestampConverter$Value",
            {"target.type": "string"},
            "format: is missing; target.type=string needs it, for example yyyy-MM-dd",
        ),
        (
            "TimestampConverter$Value",
            {"target.type": "date"},
            "target.type is not a known value: 'date'; is Date meant?",
        ),
        (
            "TimestampRouter",
            {"timestamp.format": "YYYY"},
            "timestamp.format: 'YYYY': Y is not known; there are: y, M, L, d, H, k, K, h, m, s, S, D, u, E, a, z, Z, X",
        ),
        ("RegexRouter", {"regex": "(", "replacement": "x"}, "regex: '(' is no pattern"),
        ("RegexRouter", {"regex": "(?!a)b", "replacement": "x"}, "regex: '(?!a)b' is no pattern"),
        (
            "RegexRouter",
            {"regex": "(a)", "replacement": "$2"},
            "replacement: '$2' is no group of the pattern; for a dollar write \\$",
        ),
        (
            "RegexRouter",
            {"regex": "(a)", "replacement": "$"},
            "replacement: '$' is no group of the pattern; for a dollar write \\$",
        ),
        ("RegexRouter", {"regex": "(?<n>a)", "replacement": "${m}"}, "replacement: the pattern has no group 'm'"),
        (
            "RegexRouter",
            {"regex": "a", "replacement": "\\"},
            "replacement: ends with a backslash; write two of them for one",
        ),
        ("Filter", {"negate": "true"}, "negate: there is no transforms.t.predicate to negate"),
        ("Filter", {"fields": "a"}, "fields is not a setting of Filter; there are: negate, predicate, type"),
        ("Filter$Value", {}, "type: there is no transform 'Filter$Value'; is Filter meant?"),
        ("expr", {}, "filter: is missing; give it, or with_columns"),
        ("expr", {"filter": 'col("a"'}, "filter: 'col(\"a\"' is no expression"),
    ],
)
def test_a_value_that_does_not_do_says_what_would(kind: str, settings: dict[str, str], message: str) -> None:
    config = {"transforms": "t", "transforms.t.type": kind} | {
        f"transforms.t.{key}": text for key, text in settings.items()
    }
    [found] = problems_of(config)
    assert found.startswith(f"transforms.t.{message}")


def test_bounds() -> None:
    assert "100 are the most" in problems_of({"transforms": ",".join(map(str, range(101)))})[0]
    config = {"transforms": "t", "transforms.t.type": "MaskField$Value", "transforms.t.fields": "a" * 100_001}
    assert problems_of(config) == ["transforms.t.fields is 100001 characters long; 100000 is the most"]
