"""Functions of the user's as transforms, over tables and over records; and how headers become bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from libs.connect.tests.transforms.rows import Row, batch_of, chain, one, row, told

from headrace_connect.core.batch import VALUE
from headrace_connect.core.options import InvalidOptions
from headrace_connect.runtime.converting import Converting

WHERE = "shop_functions"


@pytest.fixture(autouse=True)
def module() -> Iterator[ModuleType]:
    made: Any = ModuleType(WHERE)
    sys.modules[WHERE] = made
    yield made
    del sys.modules[WHERE]


def python(name: str, **settings: str) -> tuple[str, dict[str, str]]:
    return f"python:{WHERE}:{name}", settings


def done(name: str, rows: list[Row], value: Any = None, **settings: str) -> tuple[dict[int, Row], dict[int, str]]:
    return told(chain(python(name, **settings)).apply(batch_of(rows, value)))


class TestTables:
    def test_columns_in_and_columns_out(self, module: Any) -> None:
        def total(table: pa.Table, settings: dict[str, str]) -> pa.Table:
            return table.append_column(settings["as"], pc.multiply(table["a"], table["b"]))

        module.f = total
        rows, failed = done("f", [row({"a": 2, "b": 3}), row(None), row({"a": 4, "b": 5})], **{"as": "c"})
        assert [one["value"] for one in rows.values()] == [{"a": 2, "b": 3, "c": 6}, None, {"a": 4, "b": 5, "c": 20}]
        assert not failed

    def test_rows_that_fail_alone(self, module: Any) -> None:
        module.f = lambda table: table.set_column(0, "a", pc.divide(12, table["a"]))
        rows, failed = done("f", [row({"a": n}) for n in (1, 0, 3)])
        assert {at: one["value"] for at, one in rows.items()} == {0: {"a": 12}, 2: {"a": 4}}
        assert failed == {1: "s0: divide by zero"}

    def test_anything_it_raises(self, module: Any) -> None:
        def f(table: pa.Table) -> pa.Table:
            raise KeyError("gone")

        module.f = f
        assert done("f", [row({"a": 1})]) == ({}, {0: "s0: KeyError: 'gone'"})

    def test_values_without_fields(self, module: Any) -> None:
        module.f = lambda table: pa.table({"value": pc.utf8_upper(table["value"])})
        assert one(*python("f"), row("x"))["value"] == "X"
        module.f = lambda table: pa.table({"length": pc.utf8_length(table["value"])})
        assert one(*python("f"), row("xy"))["value"] == {"length": 2}

    @pytest.mark.parametrize(
        ("made", "says"),
        [
            (None, "gave NoneType"),
            (pa.table({"a": []}), "gave 0 rows for 1"),
            (pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), "two columns of one name"),
        ],
    )
    def test_what_is_no_table_of_these_rows(self, module: Any, made: Any, says: str) -> None:
        calls: list[int] = []

        def f(table: pa.Table) -> Any:
            calls.append(len(table))
            return made

        module.f = f
        assert says in one(*python("f"), row({"a": 1}))
        assert calls == [1]

    def test_a_record_batch_does_too(self, module: Any) -> None:
        module.f = lambda table: table.to_batches()[0]
        assert one(*python("f"), row({"a": 1}))["value"] == {"a": 1}


class TestRecords:
    def test_everything_but_the_offset_may_be_changed(self, module: Any) -> None:
        seen: list[Any] = []

        def f(record: Any) -> Any:
            seen.append(record)
            return {
                "topic": "u", "partition": 3, "timestamp_ms": 7, "key": "k", "headers": [("h", b"x"), ("n", None)],
                "value": {"n": record["value"]["n"] + 1}, "offset": 99,
            }  # fmt: skip

        module.f = f
        before = row({"n": 1}, key=5, offset=9, headers=[("a", b"1")])
        made = one(*python("f"), before)
        assert seen == [before]
        assert made == row(
            {"n": 2}, topic="u", partition=3, timestamp_ms=7, key="k", offset=9, headers=[("h", b"x"), ("n", None)]
        )

    def test_some_are_left_out_and_some_fail(self, module: Any) -> None:
        def f(record: Any) -> Any:
            if record["value"]["n"] == 2:
                raise LookupError("two")
            return record if record["value"]["n"] % 2 else None

        module.f = f
        rows, failed = done("f", [row({"n": n}) for n in range(6)])
        assert [one["value"]["n"] for one in rows.values()] == [1, 3, 5]
        assert list(rows) == [1, 3, 5]
        assert failed == {2: "s0: LookupError: two"}

    def test_types_stay_where_the_values_have_them(self, module: Any) -> None:
        module.f = lambda record: {**record, "value": {**record["value"], "more": 1.5}}
        kind = pa.struct([("n", pa.int16()), ("at", pa.date32())])
        given = batch_of([row({"n": 1, "at": date(2026, 1, 2)})], kind)
        [batch] = chain(python("f")).apply(given).batches
        assert batch.column(VALUE).type == pa.struct([("n", pa.int16()), ("at", pa.date32()), ("more", pa.float64())])

    def test_numbers_beyond_their_type_are_not_cut(self, module: Any) -> None:
        made = [1, 70_000, 2, None]
        module.f = lambda record: {**record, "value": {"n": made[record["value"]["n"]], "x": 0.1}}
        kind = pa.struct([("n", pa.int16()), ("x", pa.float32())])
        done = chain(python("f")).apply(batch_of([row({"n": n, "x": 1.0}) for n in range(4)], kind))
        values = [batch.column(VALUE) for batch in done.batches]
        assert [value for some in values for value in some.to_pylist()] == [{"n": n, "x": 0.1} for n in made]
        assert [(some.type.field("n").type, len(some)) for some in values] == [
            (pa.int16(), 1), (pa.int64(), 1), (pa.int16(), 2),
        ]  # fmt: skip
        assert not done.failures

    def test_values_of_several_types_are_handed_on_apart(self, module: Any) -> None:
        made = [1, "x", None, 2.5, {"a": 1}, {"b": [1]}]
        module.f = lambda record: {**record, "value": made[record["value"]]}
        rows, failed = done("f", [row(n) for n in range(6)])
        assert not failed
        assert [rows[n]["value"] for n in range(4)] == made[:4]
        assert {name: value for name, value in rows[5]["value"].items() if value} == {"b": [1]}

    def test_a_row_becomes_the_same_in_any_batch(self, module: Any) -> None:
        def f(record: Any) -> Any:
            n = record["value"]
            return {**record, "value": {"n": n / 2 if n % 2 else n}}

        module.f = f
        rows = [row(n) for n in range(9)]
        whole, _ = done("f", rows)
        for n, one_row in enumerate(rows):
            assert one(*python("f"), one_row)["value"] == whole[n]["value"]
            assert type(one(*python("f"), one_row)["value"]["n"]) is type(whole[n]["value"]["n"])

    @pytest.mark.parametrize("made", [5, {"topic": ""}, {"topic": "t", "vlaue": 1}, {}])
    def test_what_is_no_record(self, module: Any, made: Any) -> None:
        module.f = lambda record: made
        assert "the function gave" in one(*python("f"), row({"n": 1}))

    def test_with_a_predicate(self, module: Any) -> None:
        module.f = lambda record: None
        transforms = chain(
            (python("f")[0], {"predicate": "p", "negate": "true"}), p={"type": "TopicNameMatches", "pattern": "b"}
        )
        rows, _ = told(transforms.apply(batch_of([row(1, topic="a"), row(2, topic="b")])))
        assert list(rows) == [1]


class TestConfiguration:
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ("python:", "is written python:"),
            ("python:f", "is written python:"),
            ("python:no_such_module_at_all:f", "cannot be imported: ModuleNotFoundError"),
            ("python:no/such/file.py:f", "there is no file"),
            (f"python:{WHERE}:nothing", "no plain function 'nothing'"),
            (f"python:{WHERE}:Class", "no plain function 'Class'"),
            (f"python:{WHERE}:waits", "no plain function 'waits'"),
            (f"python:{WHERE}:both", "takes table, record; it takes table or record"),
            (f"python:{WHERE}:other", "takes rows; it takes"),
            (f"python:{WHERE}:none", "takes nothing; it takes"),
        ],
    )
    def test_what_is_no_function(self, module: Any, given: str, says: str) -> None:
        async def waits(record: Any) -> None:
            pass

        module.Class, module.waits = dict, waits
        module.both = lambda table, record: None
        module.other = lambda rows: None
        module.none = lambda: None
        with pytest.raises(InvalidOptions, match=r"transforms.s0.type: ") as wrong:
            chain((given, {}))
        assert says in str(wrong.value)

    def test_settings_that_nobody_takes(self, module: Any) -> None:
        module.f = lambda record: record
        with pytest.raises(InvalidOptions, match=r"transforms.s0.more: is no setting: f takes no settings"):
            chain(python("f", more="1"))

    def test_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "money_of_shop.py"
        file.write_text("def f(record):\n    return {**record, 'value': 7}\n")
        assert one(f"python:{file}:f", {}, row({"a": 1}))["value"] == 7
        file.write_text("raise SystemExit(3)")
        with pytest.raises(InvalidOptions, match="cannot be imported: SystemExit"):
            chain((f"python:{file}:f", {}))


def headers(converter: dict[str, str], value: Any, literal: str = "5") -> Any:
    """Of a field, and of a literal; or why they cannot be."""
    config = {
        "transforms": "f,i", "transforms.f.type": "HeaderFrom$Value", "transforms.f.fields": "a",
        "transforms.f.headers": "h", "transforms.f.operation": "copy", "transforms.i.type": "InsertHeader",
        "transforms.i.header": "i", "transforms.i.value.literal": literal, **converter,
    }  # fmt: skip
    rows, failed = told(Converting.of(config).transforms.apply(batch_of([row({"a": value})])))
    return failed[0] if failed else [value for _, value in rows[0]["headers"]]


@pytest.mark.parametrize(
    ("name", "value", "literal", "made"),
    [
        (None, 1.5, "5", [b"1.5", b"5"]),
        ("simple", b"\xff", "x", [b"\xff", b"x"]),
        ("org.apache.kafka.connect.storage.SimpleHeaderConverter", {"b": 1}, "x", [b'{"b":1}', b"x"]),
        ("string", b"\xff", "5", [b"/w==", b"5"]),
        ("json", "x", "5", [b'"x"', b"5"]),
        ("json", 1, "true", [b"1", b"true"]),
        ("json", [1], "05", [b"[1]", b'"05"']),
        ("json", None, "1.5", [None, b"1.5"]),
        ("org.apache.kafka.connect.json.JsonConverter", "x", "y", [b'"x"', b'"y"']),
        ("bytes", 5, "x", "f: header: the value is int64, not bytes; take another converter: json, string, avro"),
    ],
)
def test_header_converters(name: str | None, value: Any, literal: str, made: Any) -> None:
    converter = {} if name is None else {"header.converter": name}
    if name is not None and name.endswith("JsonConverter"):
        converter["header.converter.schemas.enable"] = "false"
    assert headers(converter, value, literal) == made


@pytest.mark.parametrize(
    ("converter", "says"),
    [
        ({"header.converter": "avro"}, "no converter of headers 'avro'"),
        ({"header.converter": "jsn"}, "is json meant"),
        ({"header.converter.x": "1"}, "header.converter.x is not a setting of converter simple"),
        ({"header.converter": "json", "header.converter.schema.enable": "1"}, "header.converter.schema.enable is not"),
    ],
)
def test_header_converters_that_there_are_not(converter: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOptions, match=r"header.converter") as wrong:
        headers(converter, 1)
    assert says in str(wrong.value)


def test_rows_whose_headers_fail_are_alone() -> None:
    config = {
        "transforms": "f", "transforms.f.type": "HeaderFrom$Value", "transforms.f.fields": "a",
        "transforms.f.headers": "h", "transforms.f.operation": "copy", "header.converter": "json",
    }  # fmt: skip
    given = batch_of([row({"a": n}) for n in (1.0, float("nan"), 3.0)])
    rows, failed = told(Converting.of(config).transforms.apply(given))
    assert np.isin([0, 2], list(rows)).all()
    assert list(failed) in ([], [1])
