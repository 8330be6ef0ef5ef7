"""Chunks of tables whose columns change."""

from __future__ import annotations

from typing import Any

import pytest
from libs.connect.tests.connectors.postgres_cdc.test_settings import read

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import SystemClock
from headrace_connect.connectors.postgres_cdc.collecting import Group
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.recording import Recorder
from headrace_connect.core.changes import Change, Op, Transaction
from headrace_connect.core.events import Event
from headrace_connect.core.pgoutput.messages import Column, Relation
from headrace_connect.plugin import Chunk

PLACE = Place("7", 100)


def group(oid: int, *names: str, type_: int = 25) -> Group:
    columns = tuple(Column(name, type_, -1, name == "id") for name in names)
    relation = Relation(oid, "public", f"t{oid}", "d", columns)
    change = Change(Op.INSERT, 50, 0, relation, None, False, [b"1"] * len(names))
    return Group(relation, [change], [Transaction(1, 100, 0)])


class Recording:
    """A recorder, and what it tells."""

    def __init__(self, drift: str, place: Place = PLACE) -> None:
        self.told: list[Event] = []
        self.place = place
        settings = read(drift=drift)
        self._recorder = Recorder(settings, {}, {}, SystemClock(), self.told.append, place.columns)

    def record(self, oid: int, *names: str, type_: int = 25) -> Place:
        chunk: Chunk = self._recorder.record_changes(group(oid, *names, type_=type_), self.place)
        assert len(chunk.rows) == 1
        position: Any = chunk.position
        return Place.from_json(position)


def test_columns_that_change_are_told() -> None:
    recording = Recording("add")
    assert recording.record(1, "id", "a") == PLACE, "the position says nothing of them"
    recording.record(2, "id")
    recording.record(1, "id", "b")
    recording.record(1, "id", "b", type_=1043)
    assert [event.text for event in recording.told] == [
        "the table public.t1 has more: b",
        "the table public.t1 has no more: a",
        "the table public.t1 has changed: b, id",
    ]


def test_it_may_fail_also_where_it_was_restarted_meanwhile() -> None:
    recording = Recording("fail")
    recording.record(1, "id", "a")
    place = recording.record(2, "id")
    assert set(place.columns) == {1, 2}
    for _ in range(2):
        with pytest.raises(InvalidConfig, match=r"drift: the table public.t1 has more: b"):
            recording.record(1, "id", "a", "b")
    assert recording.record(2, "id").columns == place.columns, "other tables go on"
    again = Recording("fail", place)
    assert again.record(2, "id").columns == place.columns, "what it has not seen yet stays in the position"
    with pytest.raises(InvalidConfig, match=r"public.t1 has other columns .*now a, b, id"):
        again.record(1, "id", "a", "b")
    taken = Recording("add", place).record(1, "id", "a", "b")
    assert not taken.columns
    assert Recording("fail", taken).record(1, "id", "a", "b").columns
