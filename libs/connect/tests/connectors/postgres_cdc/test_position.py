"""Positions: what is safe, as JSON, and where reading begins."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.connectors.postgres_cdc.position import BYTES_MAX, Place, Rows, size, size_when_read
from headrace_connect.connectors.postgres_cdc.slots import Holder, Slot
from headrace_connect.connectors.postgres_cdc.starting import Begin, Lost, Make, Server, decide, decide_anew
from headrace_connect.core.changes import Position

PLACE = Place("77", 1_000)
SERVER = Server("77", 5_000)
SLOT = Slot("pgoutput", "shop", None, 900, False, "")
oids = st.integers(1, 2**32 - 1)
places = st.builds(
    Place,
    st.sampled_from(["7", "7300000000000000001"]),
    st.integers(0, 2**64 - 1),
    st.integers(-1, 2**40),
    st.dictionaries(oids, st.builds(Position, st.integers(0, 2**64 - 1), st.integers(0, 9)), max_size=3),
    st.frozensets(oids, max_size=20),
    st.none() | st.builds(Rows, oids, st.just(("id", "n")), st.none() | st.just(("ä\n".encode(), b""))),
    st.frozensets(oids, max_size=20),
    st.integers(0, 3),
)


@given(places)
def test_a_position_survives_json(place: Place) -> None:
    assert Place.from_json(json.loads(json.dumps(place.to_json()))) == place
    assert size(place) == len(json.dumps(place.to_json()))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"lsn": "0/1"},
        {"system": "7", "lsn": "x"},
        {"system": "7", "lsn": 5},
        {"system": "7", "lsn": "0/1", "ahead": {"a": ["0/1", 1]}},
        {"system": "7", "lsn": "0/1", "ahead": [1]},
        {"system": "7", "lsn": "0/1", "rows": {"table": 1, "key": ["a"], "after": ["1", "2"]}},
        {"system": "7", "lsn": "0/1", "rows": 5},
        {"system": "7", "lsn": "0/1", "read": ["x"]},
    ],
)
def test_what_is_no_position(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no position of postgres-cdc"):
        Place.from_json(wrong)


def test_what_is_safe() -> None:
    assert PLACE.has(5, Position(999, 10**9))
    assert not PLACE.has(5, Position(1_000, 0)), "a transaction may commit exactly there"
    within = PLACE.moved(2_000, 3)
    assert [within.has(5, Position(2_000, index)) for index in (2, 3, 4)] == [True, True, False]
    ahead = replace(within, ahead={5: Position(2_500, 1)})
    assert ahead.has(5, Position(2_500, 1))
    assert not ahead.has(5, Position(2_500, 2))
    assert not ahead.has(6, Position(2_400, 0))
    assert ahead.moved(2_400).ahead == {5: Position(2_500, 1)}
    assert ahead.moved(2_501).ahead == {}


def test_many_tables_fit() -> None:
    oids = [16_384 + 7 * number for number in range(900)]
    assert size_when_read(oids) < BYTES_MAX - 1_000
    assert Place.from_json(Place("7", 1, read=frozenset(oids)).to_json()).read == frozenset(oids)


def test_where_reading_begins() -> None:
    assert decide(None, None, SERVER, "s") == Make()
    assert decide(None, SLOT, SERVER, "s") == Begin(Place("77", 900))
    assert decide(PLACE, SLOT, SERVER, "s") == Begin(PLACE)
    assert decide(replace(PLACE, asked=2), SLOT, SERVER, "s") == Begin(PLACE)
    assert decide(PLACE, replace(SLOT, confirmed=1_000), SERVER, "s") == Begin(PLACE)
    assert decide_anew(None, SERVER) == Make()
    assert decide_anew(replace(SLOT, confirmed=3_000), SERVER) == Begin(Place("77", 3_000))


@pytest.mark.parametrize(
    ("place", "slot", "server", "reason"),
    [
        (PLACE, None, SERVER, "there is no slot s any more"),
        (PLACE, replace(SLOT, is_lost=True), SERVER, "invalidated"),
        (None, replace(SLOT, is_lost=True), SERVER, "invalidated"),
        (PLACE, replace(SLOT, confirmed=1_001), SERVER, "somebody else has read"),
        (PLACE, SLOT, Server("78", 5_000), "the position is of the server 77"),
        (PLACE, SLOT, Server("77", 999), "it was restored"),
    ],
)
def test_changes_that_are_lost(place: Place | None, slot: Slot | None, server: Server, reason: str) -> None:
    found = decide(place, slot, server, "s")
    assert isinstance(found, Lost)
    assert reason in found.reason


def test_who_may_have_the_slot() -> None:
    mine = Holder.of("shop", 50)
    assert Holder.parse(str(mine)) == mine
    assert len(str(Holder.of("x" * 80, 2**60))) <= 63, "the server cuts longer names"
    assert mine.follows(Holder.of("shop", 49))
    assert mine.follows(mine)
    assert not mine.follows(Holder.of("shop", 51))
    assert not mine.follows(Holder.of("other", 49))
    for other in ("psql", "", "headrace-connect", "headrace-connect a b", "headrace-connect a 1 2"):
        assert Holder.parse(other) is None
        assert not mine.follows(Holder.parse(other))
