"""Records of changes: Debezium's envelope and the flat form."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.changes import Change, Op, Transaction, messages_of
from headrace_connect.core.envelope import Envelope, Form, Records
from headrace_connect.core.pgoutput.messages import UNCHANGED, Column, Message, Relation, Row
from headrace_connect.core.values import ValueModes

ORDERS = Relation(
    1,
    "public",
    "orders",
    "d",
    (
        Column("id", 20, -1, True),
        Column("price", 1700, (5 << 16 | 2) + 4, False),
        Column("note", 25, -1, False),
        Column("at", 1184, -1, False),
    ),
)
T = Transaction(7, 5_000, 1_700_000_000_123_456)
ONE: Row = [b"1", b"1.50", b"x", b"2024-01-01 00:00:00.5+00"]
TWO: Row = [b"2", b"2.50", UNCHANGED, None]
KEY: Row = [b"1", None, None, None]


def envelope(relation: Relation = ORDERS, key: list[str] | None = None, **form: Any) -> Envelope:
    return Envelope(relation, Form("shop", "shopdb", **form), ValueModes(), {}, key)


def change(op: Op, before: Row | None, after: Row | None, index: int = 0, relation: Relation = ORDERS) -> Change:
    return Change(op, 4_000 + index, index, relation, before, before is KEY, after)


def wrap(of: Envelope, *changes: Change) -> Records:
    records = of.wrap(changes, T, 1_700_000_009_000)
    check_lengths(records)
    return records


def check_lengths(records: Records) -> None:
    parts = (records.values, records.timestamps_ms, records.places, records.keys, records.headers)
    assert len({len(part) for part in parts if part is not None}) == 1


def test_an_insert_in_debeziums_form() -> None:
    records = wrap(envelope(version="1.2"), change(Op.INSERT, None, ONE, 3))
    assert records.keys is not None
    assert records.keys.to_pylist() == [{"id": 1}]
    assert records.values.to_pylist() == [
        {
            "before": None,
            "after": {"id": 1, "price": Decimal("1.50"), "note": "x", "at": "2024-01-01T00:00:00.500000Z"},
            "source": {
                "version": "1.2",
                "connector": "postgresql",
                "name": "shop",
                "ts_ms": 1_700_000_000_123,
                "ts_us": 1_700_000_000_123_456,
                "ts_ns": 1_700_000_000_123_456_000,
                "db": "shopdb",
                "schema": "public",
                "table": "orders",
                "txId": 7,
                "snapshot": "false",
                "sequence": '["5000","4003"]',
                "lsn": 4_003,
            },
            "transaction": None,
            "op": "c",
            "ts_ms": 1_700_000_009_000,
            "ts_us": 1_700_000_009_000_000,
            "ts_ns": 1_700_000_009_000_000_000,
        }
    ]
    assert records.timestamps_ms.to_pylist() == [1_700_000_000_123]
    assert not records.refused


def test_schemas_have_debeziums_names() -> None:
    of = envelope()
    assert (of.key_schema, of.value_schema) == ("shop.public.orders.Key", "shop.public.orders.Envelope")
    assert envelope(form="flat").value_schema == "shop.public.orders.Value"
    assert names_of(wrap(of, change(Op.INSERT, None, ONE)).values.type) == {
        "before": "shop.public.orders.Value",
        "after": "shop.public.orders.Value",
        "source": "io.debezium.connector.postgresql.Source",
        "transaction": "event.block",
    }
    messages = envelope(messages_of("orders.made"))
    java = "io.debezium.connector.postgresql.Message"
    assert (messages.key_schema, messages.value_schema) == (f"{java}Key", f"{java}Value")
    assert names_of(wrap(messages).values.type)["message"] == java


def names_of(type_: Any) -> dict[str, str]:
    return {one.name: one.metadata[b"connect.name"].decode() for one in type_ if one.metadata}


@pytest.mark.parametrize(("identity", "may_be_null"), [("d", False), ("i", False), ("f", True)])
def test_columns_of_a_key_are_required_where_the_wal_says_that_they_are(identity: str, may_be_null: bool) -> None:
    of = envelope(replace(ORDERS, identity=identity), ["id"])
    text = pa.array([b"1"], pa.binary())
    for records in (
        wrap(of, change(Op.INSERT, None, ONE), change(Op.TRUNCATE, None, None)),
        of.wrap_rows([text, *[pa.nulls(1, pa.binary())] * 3], T, 0),
    ):
        keys: Any = records.keys
        assert (keys.type.field("id").nullable, keys.to_pylist()) == (may_be_null, [{"id": 1}])
        after: Any = records.values.type.field("after").type
        assert after.field("id").nullable, "a row before a change may have its key alone, and has the same type"


def brief(records: Records) -> list[tuple[Any, Any]]:
    """The key's id of each record, and its op (None: a tombstone) with the ids before and after."""

    def ids(value: Any) -> Any:
        return value and (value["op"], *(value[row] and value[row]["id"] for row in ("before", "after")))

    keys = records.keys.to_pylist() if records.keys is not None else [{"id": None}] * len(records.values)
    return [(key and key["id"], ids(value)) for key, value in zip(keys, records.values.to_pylist(), strict=True)]


def test_each_operation_and_what_follows_it() -> None:
    records = wrap(
        envelope(),
        change(Op.READ, None, ONE),
        change(Op.UPDATE, None, ONE, 1),
        change(Op.UPDATE, KEY, TWO, 2),
        change(Op.DELETE, KEY, None, 3),
        change(Op.TRUNCATE, None, None, 4),
    )
    assert brief(records) == [
        (1, ("r", None, 1)),
        (1, ("u", None, 1)),
        (1, ("d", 1, None)),
        (1, None),
        (2, ("c", None, 2)),
        (1, ("d", 1, None)),
        (1, None),
    ]
    assert records.places.tolist() == [0, 1, 2, 2, 2, 3, 3]
    headers = {at: of for at, of in enumerate(records.headers or []) if of}
    assert headers == {2: [("__debezium.newkey", b'{"id": "2"}')], 4: [("__debezium.oldkey", b'{"id": "1"}')]}
    values = records.values.to_pylist()
    assert [value and value["source"]["snapshot"] for value in values[:2]] == ["incremental", "false"]
    assert values[4]["after"]["note"] == "__debezium_unavailable_value"
    assert values[5]["before"] == {"id": 1, "price": None, "note": None, "at": None}


def test_tombstones_and_truncations_are_a_choice() -> None:
    records = wrap(
        envelope(tombstones=False, truncates=True), change(Op.DELETE, KEY, None), change(Op.TRUNCATE, None, None)
    )
    assert brief(records) == [(1, ("d", 1, None)), (None, ("t", None, None))]


def test_the_transaction_and_the_place_in_it_are_a_choice() -> None:
    records = wrap(envelope(transactions=True), change(Op.INSERT, None, ONE, 3))
    assert records.values.to_pylist()[0]["transaction"] == {"id": "7:5000", "total_order": 4}


def test_the_flat_form_is_the_row_and_a_tombstone_for_a_delete() -> None:
    of = envelope(form="flat", flat_fields=("op", "commit_lsn", "index", "txId", "table"))
    records = wrap(
        of,
        change(Op.INSERT, None, ONE),
        change(Op.UPDATE, KEY, TWO, 1),
        change(Op.DELETE, KEY, None, 2),
        change(Op.TRUNCATE, None, None, 3),
    )
    assert records.keys is not None
    assert records.keys.to_pylist() == [{"id": 1}, {"id": 1}, {"id": 2}, {"id": 1}]
    values = records.values.to_pylist()
    own = {"__commit_lsn": 5_000, "__txId": 7, "__table": "orders"}
    at = datetime(2024, 1, 1, 0, 0, 0, 500_000, UTC)
    first = {"id": 1, "price": Decimal("1.50"), "note": "x", "at": at, "__op": "c", "__index": 0, **own}
    assert values[0] == first
    assert values[1] is values[3] is None
    assert (values[2]["id"], values[2]["__op"], values[2]["__index"]) == (2, "c", 1)


def test_a_change_that_cannot_be_represented_is_refused_whole_and_the_others_go_on() -> None:
    bad: Row = [b"1", b"NaN", b"x", None]
    update = change(Op.UPDATE, KEY, [b"3", *bad[1:]], 1)
    records = wrap(envelope(), change(Op.INSERT, None, ONE), update, change(Op.INSERT, None, ONE, 2))
    assert brief(records) == [(1, ("c", None, 1)), (1, ("c", None, 1))]
    assert records.places.tolist() == [0, 2]
    (refused,) = records.refused
    assert refused.place == 1
    assert refused.reason.startswith("public.orders.price: 'NaN' cannot be represented")
    assert json.loads(refused.raw) == {
        "table": "public.orders",
        "op": "u",
        "lsn": 4_001,
        "before": {"id": "1", "price": None, "note": None, "at": None},
        "after": {"id": "3", "price": "NaN", "note": "x", "at": None},
    }


def test_a_key_that_the_server_did_not_send_is_refused() -> None:
    unchanged = change(Op.UPDATE, None, [UNCHANGED], 0, OPS)
    records = wrap(envelope(OPS), unchanged)
    assert "did not send the key of the row; set REPLICA IDENTITY FULL" in records.refused[0].reason
    assert b"(unchanged)" in records.refused[0].raw


OPS = Relation(1, "public", "ops", "d", (Column("__op", 25, -1, True),))
FULL = Relation(1, "public", "full", "f", (Column("id", 20, -1, True), Column("n", 23, -1, True)))


def test_a_whole_row_as_identity_is_no_key_unless_the_key_is_named() -> None:
    update = change(Op.UPDATE, [b"1", b"1"], [b"2", b"1"], 0, FULL)
    delete = change(Op.DELETE, [b"1", b"1"], None, 1, FULL)
    without = wrap(envelope(FULL), update, delete)
    assert without.keys is None
    assert brief(without) == [(None, ("u", 1, 2)), (None, ("d", 1, None))]
    named = wrap(envelope(FULL, ["id"]), update, delete)
    assert [key for key, _ in brief(named)] == [1, 1, 2, 1, 1]
    assert [value["op"] for value in wrap(envelope(FULL, ["n"]), update).values.to_pylist()] == ["u"]


def test_the_flat_form_of_a_table_without_a_key_has_only_inserts() -> None:
    records = wrap(
        envelope(FULL, form="flat"),
        change(Op.INSERT, None, [b"1", b"1"], 0, FULL),
        change(Op.DELETE, [b"1", b"1"], None, 1, FULL),
        change(Op.UPDATE, [b"1", b"1"], [b"2", b"1"], 2, FULL),
    )
    assert records.places.tolist() == [0]
    assert [refused.place for refused in records.refused] == [1, 2]
    assert "has no flat form of updates and deletes" in records.refused[0].reason


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: envelope(key=["id", "nope"]), "has no column nope for its key"),
        (lambda: envelope(form="flat", tombstones=False), "tombstones.on.delete must be true"),
        (lambda: envelope(form="flat", flat_fields=("xmin",)), "there is no xmin; there are op, schema"),
        (lambda: envelope(ORDERS, ["id", "note"]), "the key has note, which is no part of the replica identity"),
        (
            lambda: envelope(OPS, form="flat", flat_fields=("op",)),
            "has a column with the name of one of value.form.fields",
        ),
    ],
)
def test_settings_that_cannot_be(make: Any, cause: str) -> None:
    with pytest.raises(InvalidConfig, match=cause):
        make()


@pytest.mark.parametrize("form", ["debezium", "flat"])
def test_the_type_of_records_does_not_depend_on_what_is_in_them(form: Any) -> None:
    of = envelope(form=form)
    types = {
        wrap(of, *changes).values.type
        for changes in ([], [change(Op.INSERT, None, ONE)], [change(Op.DELETE, KEY, None)])
    }
    assert len(types) == 1
    assert wrap(of).values.type.field(0).type == (pa.int64() if form == "flat" else next(iter(types)).field(0).type)


def test_a_table_has_records_of_many_changes_in_their_order() -> None:
    changes = [change(Op.INSERT, None, [b"%d" % n, None, None, None], n) for n in range(1_000)]
    assert [key for key, _ in brief(wrap(envelope(), *changes))] == list(range(1_000))


def test_messages_have_their_prefix_as_key_and_their_content_as_it_is() -> None:
    of = messages_of("orders.made")
    message = Message(True, 4_001, of.name, b"\0\xff", None)
    made = Change(Op.MESSAGE, 4_001, 1, of, None, False, None, message)
    records = wrap(envelope(of), made)
    assert records.keys is not None
    assert records.keys.to_pylist() == [{"prefix": "orders.made"}]
    (value,) = records.values.to_pylist()
    assert list(value) == ["message", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert (value["op"], value["message"]) == ("m", {"prefix": "orders.made", "content": b"\0\xff"})
    assert (value["source"]["table"], value["source"]["lsn"], value["source"]["txId"]) == ("", 4_001, 7)
    flat = wrap(envelope(of, form="flat", flat_fields=("op",)), made)
    assert flat.values.to_pylist() == [{"prefix": "orders.made", "content": b"\0\xff", "__op": "m"}]


BAD: Row = [b"4", b"no number", b"x", None]


@pytest.mark.parametrize("form", ["debezium", "flat"])
@pytest.mark.parametrize("key", [None, [], ["id", "note"]])
@pytest.mark.parametrize("rows", [[], [ONE], [ONE, [b"2", None, None, None]], [ONE, BAD, [b"5", None, b"", None], BAD]])
def test_rows_in_columns_have_the_records_that_they_have_one_by_one(
    form: str, key: list[str] | None, rows: list[Row]
) -> None:
    of = envelope(replace(ORDERS, identity="f"), key, form=form, transactions=True, flat_fields=("op", "lsn", "txId"))
    read = Transaction(0, 5_000, 1_700_000_000_123_456)
    changes = [Change(Op.READ, 5_000, place, of.relation, None, False, row) for place, row in enumerate(rows)]
    wanted = of.wrap(changes, read, 1_700_000_009_000)
    columns = [pa.array([row[at] for row in rows], pa.binary()) for at in range(len(ORDERS.columns))]
    found = of.wrap_rows(columns, read, 1_700_000_009_000)

    check_lengths(found)
    if form == "debezium":
        assert all(one["source"]["txId"] is one["transaction"] is None for one in found.values.to_pylist())
    assert found.values == wanted.values
    assert found.values.type == wanted.values.type
    assert found.keys == wanted.keys
    assert found.timestamps_ms == wanted.timestamps_ms
    assert found.places.tolist() == wanted.places.tolist()
    assert found.headers == wanted.headers
    assert found.refused == wanted.refused
