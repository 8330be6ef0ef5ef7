"""Columns of a source's tables that change: what is told, and when the task fails."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.drift import Columns, SourceDrift
from headrace_connect.core.events import Event

OLD = {"id": "int64", "name": "string", "at": "date32"}
NEW = {"id": "int64", "name": "int64", "more": "string", "again": "string"}
TOLD = [
    ("the table t has more: again, more", "again, more"),
    ("the table t has no more: at", "at"),
    ("the table t has changed: name (int64 now, and was string)", "name"),
]


def columns(drift: SourceDrift, told: list[Event], known: str = "", *, shows_types: bool = True) -> Columns:
    return Columns("t", drift, told.append, known, shows_types=shows_types)


def test_what_is_new_gone_or_other_is_told_once() -> None:
    told: list[Event] = []
    seen = columns(SourceDrift.ADD, told)
    for given in (OLD, dict(reversed(OLD.items())), NEW, NEW):
        seen.see(given)
    assert [(event.text, event.detail["columns"]) for event in told] == TOLD
    assert {(event.kind, event.detail["table"]) for event in told} == {("drift", "t")}
    assert seen.digest == "", "nobody asks for it"


def test_types_that_say_nothing_to_people_are_left_out() -> None:
    told: list[Event] = []
    seen = columns(SourceDrift.ADD, told, shows_types=False)
    seen.see({"a": "25/-1"})
    seen.see({"a": "23/-1"})
    assert [event.text for event in told] == ["the table t has changed: a"]


def test_fail_fails_again_and_again_and_says_what_to_do() -> None:
    told: list[Event] = []
    seen = columns(SourceDrift.FAIL, told)
    seen.see(OLD)
    before = seen.digest
    for _ in range(2):
        with pytest.raises(InvalidConfig, match=r"drift: the table t has more: again, more; has no more: at; .*=add"):
            seen.see(NEW)
    assert seen.digest == before, "a position has those that were read"
    seen.see(OLD)
    assert [(event.text, event.detail["columns"]) for event in told][:3] == TOLD


def test_fail_knows_what_was_read_before_this_start() -> None:
    told: list[Event] = []
    first = columns(SourceDrift.FAIL, told)
    first.see(OLD)
    again = columns(SourceDrift.FAIL, told, first.digest)
    again.see(dict(reversed(OLD.items())))
    assert not told
    for other in (NEW, {**OLD, "id": "int32"}, {**OLD, "x": "string"}):
        later = columns(SourceDrift.FAIL, told, first.digest)
        assert later.digest == first.digest, "also before it has seen any"
        with pytest.raises(InvalidConfig, match="has other columns than those that were read before: now "):
            later.see(other)
    assert len(told) == 3
    columns(SourceDrift.ADD, told, first.digest).see(NEW)
    assert len(told) == 4, "and where it goes on, it is told all the same"
