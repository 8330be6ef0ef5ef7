"""Catalogs and positions: what is chosen is marked, and what is wrong is named."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.connect.tests.connectors.singer import tap_shop
from libs.connect.tests.connectors.singer.taps import SaidTap, ShopTap, settings, source_of, take, values_of

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.singer.catalog import Catalog, Choice, find_topic_problems, topic_name
from headrace_connect.connectors.singer.position import BYTES_MAX, Place, StateTooLarge
from headrace_connect.connectors.singer.repeats import Edge

SHOP = Catalog(tap_shop.discover()["streams"])
PLAIN = Catalog([{"stream": "orders", "schema": {"properties": {"id": {"inclusion": "unsupported"}, "n": {}}}}])


def marks(catalog: dict[str, Any], name: str) -> dict[tuple[str, ...], Any]:
    [one] = [one for one in catalog["streams"] if one["stream"] == name]
    return {tuple(place["breadcrumb"]): place["metadata"] for place in one["metadata"]}


def test_what_is_chosen_is_marked() -> None:
    metadata = {"replication-method": "INCREMENTAL", "shop-orders.replication-key": "at", "shop-customers.x": 1}
    choice = Choice(("shop-o.*",), (), ("shop-orders.pr.*",), metadata)
    made = SHOP.select(choice)
    orders = marks(made, "orders")
    assert orders[()]["selected"] is True
    assert (orders[()]["replication-method"], orders[()]["replication-key"]) == ("INCREMENTAL", "at")
    assert "x" not in orders[()]
    assert orders[("properties", "id")] == {"inclusion": "available", "selected": True}
    assert orders[("properties", "price")]["selected"] is False
    customers = marks(made, "customers")
    assert customers[()]["selected"] is False
    assert "replication-method" not in customers[()]
    assert SHOP.streams == tap_shop.discover()["streams"]
    assert SHOP.bookmarks(choice) == {"orders": "at", "customers": "changed"}


def test_older_taps_look_at_the_schema() -> None:
    [one] = PLAIN.select(Choice())["streams"]
    assert one["selected"] is one["schema"]["selected"] is True
    assert one["schema"]["properties"] == {"id": {"inclusion": "unsupported"}, "n": {"selected": True}}


async def test_the_tap_gets_the_catalog_and_its_records_are_those_chosen() -> None:
    source = source_of(ShopTap(), settings(stream_include_list=("shop-customers",), run_interval_ms=1))
    assert {topic for chunk in await take(source) for topic, _ in values_of(chunk)} == {"customers"}
    catalog = {"streams": [{"tap_stream_id": "a", "schema": {}}]}
    tap = SaidTap([[]], catalog)
    await take(source_of(tap, settings(tap_catalog_option="properties", run_interval_ms=1)))
    assert tap.catalogs[0]["streams"][0]["selected"] is True
    tap = SaidTap([[]])
    await take(source_of(tap))
    assert tap.catalogs == [None]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ""),
        ({"stream_include_list": ("shop-order",)}, "has no stream shop-order; is shop-orders meant?; it has "),
        ({"stream_include_list": ("x", "y")}, "no stream x"),
        ({"stream_exclude_list": (".*",)}, "no stream is chosen"),
        ({"metadata": {"shop-order.replication-key": "id"}}, "metadata.shop-order.replication-key"),
    ],
)  # fmt: skip
async def test_validate_names_what_is_not_there(values: dict[str, Any], wanted: str) -> None:
    of = settings(**values)
    problems = await source_of(ShopTap(), of).check()
    assert (wanted in problems[0]) if wanted else problems == []
    if wanted:
        with pytest.raises(InvalidConfig, match=problems[0].split(":")[0]):
            await take(source_of(ShopTap(), of))


@pytest.mark.parametrize("said", [b"", b"Usage: tap", b"[]", b'{"streams": [{"stream": "a"}]}', b'{"streams": [1]}'])
async def test_what_is_no_catalog(said: bytes) -> None:
    [problem] = await source_of(SaidTap([[]], said), settings()).check()
    assert "is tap.discover=false meant?" in problem
    with pytest.raises(InvalidConfig, match="no catalog"):
        await take(source_of(SaidTap([[]], said), settings()))


def test_topics() -> None:
    assert topic_name("a.{stream}", "x/y ü-z.1") == "a.x_y__-z.1"
    assert len(topic_name("{stream}", "x" * 300)) == 249
    [problem] = find_topic_problems("t-{stream}", ["a b", "c", "a_b"])
    assert problem == "topic.pattern: a b and a_b would both be the topic t-a_b; choose one of them"


async def test_streams_of_one_name_are_named() -> None:
    catalog = {
        "streams": [{"tap_stream_id": one, "stream": "orders", "schema": {}} for one in ("a-orders", "b-orders")]
    }
    [problem] = await source_of(SaidTap([[]], catalog), settings()).check()
    assert "would both be the topic orders" in problem
    of = settings(stream_include_list=("a-.*",))
    assert await source_of(SaidTap([[]], catalog), of).check() == []


# --- positions ------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, st.dictionaries(st.text(), st.tuples(st.integers() | st.text(), st.sets(st.integers(0, 99), max_size=3))))
def test_a_position_comes_back(value: Any, edges: dict[str, tuple[Any, set[int]]]) -> None:
    made = {name: Edge(at, frozenset(f"{mark:012d}" for mark in marks)) for name, (at, marks) in edges.items()}
    try:
        position = Place(value, made).to_json()
    except StateTooLarge:
        return
    assert len(json.dumps(position)) <= BYTES_MAX + 20
    found = Place.of_json(json.loads(json.dumps(position)))
    assert found.state == value
    assert found.edges == made or len(found.edges) < len(made)


def test_large_states_are_packed_and_edges_give_way() -> None:
    value = {"bookmarks": {f"stream_{n}": {"updated_at": "2024-05-01T00:00:00Z"} for n in range(200)}}
    position = Place(value).to_json()
    assert list(position) == ["packed"]
    assert Place.of_json(position) == Place(value)
    random = [sha256(b"%d" % n).hexdigest()[:12] for n in range(900)]
    edges = {f"s{n}": Edge(1, frozenset(random[n * 60 : n * 60 + 60 - n])) for n in range(15)}
    found = Place.of_json(Place(1, edges).to_json()).edges
    assert 0 < len(found) < 15
    assert max(len(one.marks) for one in found.values()) < 60


@pytest.mark.parametrize(
    "position",
    [{}, {"at": 1}, {"state": 1, "x": 2}, {"packed": "!"}, {"packed": 7}, {"packed": "c$@"}, {"state": 1, "last": 5},
     {"state": 1, "last": {"a": [1]}}, {"state": 1, "last": {"a": [1, 2]}}],
)  # fmt: skip
async def test_what_is_no_position_is_refused(position: Any) -> None:
    with pytest.raises(InvalidConfig, match="no position of a tap"):
        await take(source_of(ShopTap()), position)


async def test_a_state_can_be_given_by_hand() -> None:
    chunks = await take(source_of(ShopTap()), {"state": {"bookmarks": {"orders": 18, "customers": "2025"}}})
    assert [row["id"] for chunk in chunks for _, rows in values_of(chunk) for row in rows] == [18, 19]
