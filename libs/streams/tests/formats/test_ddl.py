"""What declares columns, and what errors say."""

from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.ddl import SCALARS, TIMESTAMP, parse_schema, type_text


def test_text_declares_columns() -> None:
    schema = parse_schema(
        " user STRING, amount: double, at timestamp,tags array<string>, price decimal(10, 2), n map<string,bigint>,"
        "address struct<city: string, `zip``code`: int, at struct<x double>>, `from me` binary"
    )
    assert schema == pa.schema(
        [
            ("user", pa.string()),
            ("amount", pa.float64()),
            ("at", pa.timestamp("ms", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("price", pa.decimal128(10, 2)),
            ("n", pa.map_(pa.string(), pa.int64())),
            (
                "address",
                pa.struct([("city", pa.string()), ("zip`code", pa.int32()), ("at", pa.struct([("x", pa.float64())]))]),
            ),
            ("from me", pa.binary()),
        ]
    )


@pytest.mark.parametrize("name", SCALARS)
def test_each_type_has_its_name(name: str) -> None:
    kind = parse_schema(f"a {name}").field("a").type
    assert kind == SCALARS[name]
    assert type_text(kind) == name


_TYPES = st.recursive(
    st.sampled_from([*SCALARS.values(), pa.decimal128(38, 0), pa.decimal128(5, 5)]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda items: pa.map_(pa.string(), items)),
        st.lists(inner, min_size=1, max_size=3).map(lambda all: pa.struct([(f"f`{i}", x) for i, x in enumerate(all)])),
    ),
    max_leaves=5,
)


@given(_TYPES)
def test_what_type_text_writes_is_read_again(kind: pa.DataType) -> None:
    assert parse_schema(f"a {type_text(kind)}").field("a").type == kind


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", None, "no column"),
        ("a", "character 2, at the end", "a type is expected: boolean, tinyint"),
        ("a strin", "character 3, at 'strin'", "a type is expected"),
        ("a string b int", "character 10, at 'b'", "a comma or the end is expected"),
        ("a string,", "character 10, at the end", "a name is expected"),
        ("a-b string", "character 2, at '-'", "a type is expected"),
        ("<a> string", "character 1, at '<'", "`backticks`"),
        ("a array string", "character 9, at 'string'", "'<' is expected, as in array<string>"),
        ("a array<string", "character 15, at the end", "'>' is expected"),
        ("a map<int,string>", "character 7, at 'int'", "the keys of a map are string"),
        ("a decimal", "character 10, at the end", "'(' is expected, as in decimal(10,2)"),
        ("a decimal(x,2)", "character 11, at 'x'", "a whole number is expected"),
        ("a decimal(39,2)", "character 11, at '39'", "1 to 38 digits"),
        ("a decimal(2,3)", "character 11, at '2'", "no more than these after the point"),
        ("a struct<b int, b int>", "character 10, at 'b'", "declared twice"),
        ("a int, a string", None, "'a' is declared twice"),
        ("_key string", None, "leading underscore is for system columns"),
        ("a int ! b", "character 7, at '!'", "a comma or the end"),
    ],
)
def test_errors_name_the_place(text: str, place: str | None, message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_schema(text)
    assert message in str(refused.value)
    assert (place or "") in str(refused.value)


def test_an_arrow_schema_is_taken_as_it_is() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"x": "y"})])
    assert parse_schema(schema) is schema
    with pytest.raises(InvalidConfig, match="leading underscore"):
        parse_schema(pa.schema([("_time", pa.int64())]))


@dataclass
class Address:
    city: str
    zip: int | None = None


@dataclass
class Order:
    user: str
    amount: float
    at: datetime
    price: Annotated[Decimal, "decimal(10,2)"]
    small: Annotated[int | None, "tinyint"]
    day: date | None
    address: Address
    tags: list[str] = field(default_factory=list)
    counts: dict[str, int] | None = None
    paid: bool = False


def test_a_dataclass_declares_columns() -> None:
    address = pa.struct([pa.field("city", pa.string(), nullable=False), ("zip", pa.int64())])
    assert parse_schema(Order) == pa.schema(
        [
            pa.field("user", pa.string(), nullable=False),
            pa.field("amount", pa.float64(), nullable=False),
            pa.field("at", TIMESTAMP, nullable=False),
            pa.field("price", pa.decimal128(10, 2), nullable=False),
            pa.field("small", pa.int8()),
            pa.field("day", pa.date32()),
            pa.field("address", address, nullable=False),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("counts", pa.map_(pa.string(), pa.int64())),
            pa.field("paid", pa.bool_()),
        ]
    )


def test_a_pydantic_model_declares_columns() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Order", user=(str, ...), amount=(float | None, ...), n=(int, 1))
    assert parse_schema(model) == pa.schema(
        [pa.field("user", pa.string(), nullable=False), pa.field("amount", pa.float64()), pa.field("n", pa.int64())]
    )


@dataclass
class Unclear:
    what: complex


@dataclass
class Tree:
    children: "list[Tree]"


@pytest.mark.parametrize("endless", [Tree, f"a {'array<' * 10_000}"])
def test_columns_without_end_are_refused(endless: type | str) -> None:
    with pytest.raises(InvalidConfig, match="nested too deeply"):
        parse_schema(endless)


def test_what_declares_nothing_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"Unclear\.what: complex has no column type"):
        parse_schema(Unclear)
    for other in (int, 3, ["a"]):
        with pytest.raises(InvalidConfig, match="is not a schema; take text like"):
            parse_schema(other)  # type: ignore[arg-type]
