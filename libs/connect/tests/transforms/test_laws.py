"""Transforms do to columns what they do to rows one by one, wherever batches are cut; a row that fails fails alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from libs.connect.tests.transforms.rows import Row, batch_of, chain, row, told

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VALUE = pa.struct(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("c", pa.struct([("x", pa.float64()), ("y", pa.string())])),
        ("e", pa.list_(pa.int64())),
    ]
)
TOPICS = ["shop.a", "shop.b", "x"]
TWO = st.sampled_from(["1", "2", "x", "-7"])


class Fails(Exception):
    """Of a row."""


Twin = Callable[[Row], "Row | None"]


def mapped(change: Callable[[dict[str, Any]], Any]) -> Twin:
    """A twin that changes values with fields, and lets null be."""

    def twin(record: Row) -> Row:
        value = record["value"]
        if value is None:
            return record
        if not isinstance(value, dict):
            raise Fails
        return {**record, "value": change(value)}

    return twin


def strict(change: Callable[[Row, dict[str, Any]], Row]) -> Twin:
    """A twin that needs a value with fields."""

    def twin(record: Row) -> Row:
        if not isinstance(record["value"], dict):
            raise Fails
        return change(record, record["value"])

    return twin


def field(value: dict[str, Any], name: str) -> Any:
    if name not in value:
        raise Fails
    return value[name]


def as_int8(value: Any) -> int | None:
    if value is None or value == "x" or not -128 <= int(value) < 128:
        if value is None:
            return None
        raise Fails
    return int(value)


def text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def cast(value: dict[str, Any]) -> dict[str, Any]:
    made = {name: as_int8(one) if name == "a" else one for name, one in value.items()}
    return {name: as_int8(one) if name == "b" else one for name, one in made.items()}


def flat(value: dict[str, Any], before: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, one in value.items():
        if name == "c" and one is None:  # by its type it has these fields, which are null then
            one = {"x": None, "y": None}
        inner = flat(one, f"{before}{name}.") if isinstance(one, dict) else {before + name: one}
        if made.keys() & inner.keys():
            raise Fails
        made |= inner
    return made


def renamed(value: dict[str, Any]) -> dict[str, Any]:
    return {{"b": "d"}.get(name, name): one for name, one in value.items() if name != "e"}


def at(value: Any) -> datetime | None:
    return None if value is None else EPOCH + timedelta(milliseconds=value)


def inserted(record: Row) -> Row:
    if record["value"] is None:
        return record
    if not isinstance(record["value"], dict) or "t" in record["value"]:
        raise Fails
    return {**record, "value": {**record["value"], "t": record["topic"], "when": at(record["timestamp_ms"])}}


def masked(value: dict[str, Any]) -> dict[str, Any]:
    for name in ("a", "b"):
        if name in value and value[name] is not None:
            value = {**value, name: 7 if isinstance(value[name], int) else "7"}
    return value


def dated(record: Row) -> Row:
    if record["timestamp_ms"] is None:
        raise Fails
    day = EPOCH + timedelta(milliseconds=record["timestamp_ms"])
    return {**record, "topic": f"{record['topic']}-{day:%Y%m%d}"}


def chosen(record: Row) -> Row | None:
    value = record["value"]
    if value is None:
        return record
    if not isinstance(value, dict):
        raise Fails
    count = field(value, "a")
    return {**record, "value": {**value, "n": count * 2}} if count is not None and count > 0 else None


TWINS: dict[str, tuple[str, dict[str, str], Twin]] = {
    "cast": ("Cast$Value", {"spec": "a:int8,b:int8"}, mapped(cast)),
    "drop headers": (
        "DropHeaders",
        {"headers": "h"},
        lambda r: {**r, "headers": [pair for pair in r["headers"] if pair[0] != "h"]},
    ),
    "extract": (
        "ExtractField$Value",
        {"field": "c.x", "field.syntax.version": "V2"},
        mapped(lambda value: None if field(value, "c") is None else field(value, "c")["x"]),
    ),
    "filter": ("Filter", {}, lambda r: None),
    "flatten": ("Flatten$Value", {}, mapped(flat)),
    "headers from": (
        "HeaderFrom$Value",
        {"fields": "a,b", "headers": "h,i", "operation": "copy"},
        strict(
            lambda r, v: {
                **r,
                "headers": [
                    *r["headers"],
                    *(
                        (name, None if field(v, one) is None else text(v[one]).encode())
                        for one, name in (("a", "h"), ("b", "i"))
                    ),
                ],
            }
        ),
    ),
    "hoist": ("HoistField$Value", {"field": "w"}, lambda r: {**r, "value": {"w": r["value"]}}),
    "insert": ("InsertField$Value", {"topic.field": "t", "timestamp.field": "when"}, inserted),
    "insert header": (
        "InsertHeader",
        {"header": "h", "value.literal": "z"},
        lambda r: {**r, "headers": [*r["headers"], ("h", b"z")]},
    ),
    "mask": ("MaskField$Value", {"fields": "a,b", "replacement": "7"}, mapped(masked)),
    "regex": (
        "RegexRouter",
        {"regex": "shop\\.(.*)", "replacement": "$1"},
        lambda r: {**r, "topic": r["topic"].removeprefix("shop.")},
    ),
    "rename": ("ReplaceField$Value", {"renames": "b:d", "exclude": "e"}, mapped(renamed)),
    "time": (
        "TimestampConverter$Value",
        {"field": "a", "target.type": "Timestamp"},
        mapped(lambda v: {**v, "a": at(v["a"])} if isinstance(v.get("a"), int) else v),
    ),
    "day": ("TimestampRouter", {}, dated),
    "key": ("ValueToKey", {"fields": "b,a"}, strict(lambda r, v: {**r, "key": {n: field(v, n) for n in ("b", "a")}})),
    "expr": ("expr", {"filter": 'col("a") > 0', "with_columns": 'n=col("a") * 2'}, chosen),
}
PREDICATES: dict[str, tuple[dict[str, str], Callable[[Row], bool]]] = {
    "topic": ({"type": "TopicNameMatches", "pattern": "shop.*"}, lambda r: r["topic"].startswith("shop")),
    "header": ({"type": "HasHeaderKey", "name": "h"}, lambda r: any(name == "h" for name, _ in r["headers"])),
    "tombstone": ({"type": "RecordIsTombstone"}, lambda r: r["value"] is None),
}

VALUES = st.none() | st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-200, 200),
        "b": st.none() | TWO,
        "c": st.none() | st.fixed_dictionaries({"x": st.none() | st.sampled_from([0.5, -1.0]), "y": st.none() | TWO}),
        "e": st.none() | st.lists(st.integers(0, 3), max_size=2),
    }
)
ROWS = st.lists(
    st.builds(
        row,
        VALUES,
        topic=st.sampled_from(TOPICS),
        key=st.none() | TWO,
        timestamp_ms=st.none() | st.integers(-(10**12), 10**13),
        offset=st.none() | st.integers(0, 9),
        headers=st.lists(st.tuples(st.sampled_from("hg"), st.none() | st.just(b"v")), max_size=2),
    ),
    max_size=10,
)


def by_rows(record: Row, steps: list[tuple[str, str | None, bool]]) -> Row | None:
    for name, predicate, negate in steps:
        if predicate is not None and PREDICATES[predicate][1](record) == negate:
            continue
        made = TWINS[name][2](record)
        if made is None:
            return None
        record = made
    return record


def pruned(value: Any) -> Any:
    """Fields that only other rows have are null: without them, and without what is left empty."""
    if isinstance(value, dict):
        inner = {name: pruned(one) for name, one in value.items()}
        return {name: one for name, one in inner.items() if one is not None}
    return value


def check(rows: list[Row], steps: list[tuple[str, str | None, bool]], cuts: list[int]) -> None:
    """That columns give what rows give, of the whole batch and of its pieces."""
    expected: dict[int, Row] = {}
    failing: set[int] = set()
    for place, record in enumerate(rows):
        try:
            made = by_rows(record, steps)
        except Fails:
            failing.add(place)
        else:
            if made is not None:
                expected[place] = made
    made_of = [(TWINS[name][0], {**TWINS[name][1], **_choice(predicate, negate)}) for name, predicate, negate in steps]
    transforms = chain(*made_of, **{name: settings for name, (settings, _) in PREDICATES.items()})
    whole = batch_of(rows, VALUE, pa.string())
    ends = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for pieces in ([whole], [whole.slice(begin, end - begin) for begin, end in pairwise(ends)]):
        found: dict[int, Row] = {}
        failed: set[int] = set()
        for piece in pieces:
            done = transforms.apply(piece)
            places = [place for batch in done.batches for place in batch.places.tolist()]
            assert places == sorted(places), "the order of the rows stays"
            records, messages = told(done)
            found |= records
            failed |= messages.keys()
        assert failed == failing
        assert found.keys() == expected.keys()
        for place, record in expected.items():
            assert pruned(found[place]) == pruned(record)


def _choice(predicate: str | None, negate: bool) -> dict[str, str]:
    if predicate is None:
        return {}
    return {"predicate": predicate, "negate": str(negate).lower()}


@given(ROWS, st.sampled_from(sorted(TWINS)), st.lists(st.integers(0, 10), max_size=2))
def test_each_transform_does_to_columns_what_it_does_to_rows(rows: list[Row], name: str, cuts: list[int]) -> None:
    check(rows, [(name, None, False)], cuts)


CHAINED = sorted(TWINS.keys() - {"time"})
"""What comes behind ``time`` would have to know what it has made of numbers."""
STEPS = st.lists(
    st.tuples(st.sampled_from(CHAINED), st.none() | st.sampled_from(sorted(PREDICATES)), st.booleans()),
    min_size=1,
    max_size=4,
)


@given(ROWS, STEPS, st.lists(st.integers(0, 10), max_size=2))
@example([row({"a": None, "b": None, "c": None, "e": None})], [("flatten", None, False), ("extract", None, False)], [])
def test_chains_with_predicates_do_too(
    rows: list[Row], steps: list[tuple[str, str | None, bool]], cuts: list[int]
) -> None:
    check(rows, steps, cuts)
