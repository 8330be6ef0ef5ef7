"""A journal as a dialogue: what has happened, and what is then written, refused or dropped."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from libs.common.tests.kit import audit as kit

from headrace_common.core.audit.chain import GENESIS, Start, digest_of
from headrace_common.core.audit.events import Actor, Event, Method
from headrace_common.core.audit.journal import (
    SEAL_EVENTS,
    SEAL_MS,
    Bounds,
    Drop,
    Effect,
    Happened,
    Refuse,
    Stopped,
    Ticked,
    Write,
    Wrote,
)
from headrace_common.core.audit.kinds import HOUR_MS, MINUTE_MS, TREATMENTS, Kind
from headrace_common.core.audit.seals import read_seal
from headrace_common.core.audit.verification import verify
from headrace_common.core.errors import InvalidConfig, Rejected

START = Start(kit.BROKER, "one")


class Talk:
    """A journal that has begun; what it wrote is on disk at once unless ``stuck``."""

    def __init__(self, *, stuck: bool = False, **bounds: Any) -> None:
        self.journal = kit.journal_of(START, Bounds(**bounds))
        self.stuck = stuck
        self.lines: list[bytes] = []
        self.now_ms = 0
        self.say(self.journal.begin(kit.public_key_of(START), kit.NOW_MS, 0))

    def say(self, effects: list[Effect]) -> list[Effect]:
        lines = kit.lines_of(effects)
        self.lines += lines
        if lines and not self.stuck:
            assert self.journal.handle(Wrote(len(lines))) == []
        return effects

    def happens(self, event: Event) -> list[Effect]:
        return self.say(self.journal.handle(Happened(event, self.now_ms)))

    def tick(self, by_ms: int = 0) -> list[Effect]:
        self.now_ms += by_ms
        return self.say(self.journal.handle(Ticked(kit.NOW_MS + self.now_ms, self.now_ms)))

    def stop(self) -> list[Effect]:
        return self.say(self.journal.handle(Stopped(kit.NOW_MS + self.now_ms)))

    @property
    def seals(self) -> list[tuple[int, int, bool]]:
        seals = [read_seal(fields)[0] for fields in map(json.loads, self.lines) if "signature" in fields]
        return [(seal.first, seal.last, seal.ends) for seal in seals]


def kinds_of(effects: list[Effect]) -> list[tuple[str, int]]:
    fields = [json.loads(line) for line in kit.lines_of(effects)]
    return [(one["kind"], one["count"]) if "kind" in one else ("seal", 0) for one in fields]


def test_it_begins_with_the_key_of_its_seals() -> None:
    talk = Talk()
    first = json.loads(talk.lines[0])
    assert (first["kind"], first["seq"], first["prev"], first["v"]) == ("journal_begun", 0, GENESIS, 1)
    assert (first["node"], first["start"], first["actor"]["principal"]) == ("broker-1", "one", "Node:broker-1")
    key = hashlib.sha256(kit.public_key_of(START)).hexdigest()
    assert first["change"]["after"]["values"] == {"key": key}


def test_each_event_has_the_digest_of_the_one_before() -> None:
    talk = Talk()
    for name in "ab":
        talk.happens(kit.event(name=name))
    places = [(json.loads(line)["seq"], json.loads(line)["prev"]) for line in talk.lines]
    assert places == [(0, GENESIS), (1, digest_of(talk.lines[0])), (2, digest_of(talk.lines[1]))]


@pytest.mark.parametrize("kind", Kind)
def test_the_answer_waits_for_what_the_table_says(kind: Kind) -> None:
    (write,) = Talk().happens(kit.event(kind))
    assert isinstance(write, Write)
    assert write.before_answer is TREATMENTS[kind].before_answer


def test_a_seal_comes_after_so_many_events() -> None:
    talk = Talk()
    for n in range(2 * SEAL_EVENTS):
        talk.happens(kit.event(name=f"t{n}"))
    assert talk.seals == [(0, SEAL_EVENTS - 1, False), (SEAL_EVENTS, 2 * SEAL_EVENTS - 1, False)]


def test_a_seal_comes_a_minute_after_the_first_event_without_one_and_only_then() -> None:
    talk = Talk()
    talk.tick(SEAL_MS - 1)
    assert talk.seals == []
    talk.tick(1)
    assert talk.seals == [(0, 0, False)]
    talk.tick(10 * SEAL_MS)
    assert talk.seals == [(0, 0, False)], "nothing has happened"
    talk.happens(kit.event())
    talk.tick(SEAL_MS - 1)
    talk.happens(kit.event())
    talk.tick(1)
    assert talk.seals == [(0, 0, False), (1, 2, False)]


@pytest.mark.parametrize(("kind", "period_ms"), [(Kind.OPERATION_REFUSED, MINUTE_MS), (Kind.SESSION_BEGUN, HOUR_MS)])
def test_the_same_again_is_written_once_in_its_period(kind: Kind, period_ms: int) -> None:
    talk = Talk()
    assert kinds_of(talk.happens(kit.event(kind))) == [(kind.value, 1)]
    for _ in range(3):
        assert talk.happens(kit.event(kind)) == []
    assert (kind.value, 3) not in kinds_of(talk.tick(period_ms - 1))
    assert kinds_of(talk.tick(1))[0] == (kind.value, 3)


def test_events_of_two_kinds_are_counted_apart() -> None:
    talk = Talk()
    assert talk.happens(kit.event(Kind.RECORDS_READ))
    assert talk.happens(kit.event(Kind.RECORDS_WRITTEN))


def test_each_change_is_written() -> None:
    talk = Talk()
    assert [len(talk.happens(kit.event())) for _ in range(3)] == [1, 1, 1]


# --- no room ---------------------------------------------------------------------------------------------------


def refusals(talk: Talk, count: int) -> list[Effect]:
    return [effect for n in range(count) for effect in talk.happens(kit.event(Kind.OPERATION_REFUSED, f"t{n}"))]


def test_refusals_leave_room_for_changes() -> None:
    talk = Talk(stuck=True, queue_max=100, repeated_max=50)
    effects = refusals(talk, 60)
    assert effects[49:] == [Drop(Kind.OPERATION_REFUSED, 1)] * 11, "the first line is that of the beginning"
    assert all(isinstance(effect, Write) for effect in effects[:49])
    for kind in (Kind.ADMINISTERED, Kind.ACCESS_CHANGED):
        assert isinstance(talk.happens(kit.event(kind))[0], Write)


@pytest.mark.parametrize(
    ("kind", "drops", "effect"),
    [
        (Kind.ACCESS_CHANGED, False, Refuse),
        (Kind.ACCESS_CHANGED, True, Refuse),
        (Kind.ADMINISTERED, False, Refuse),
        (Kind.ADMINISTERED, True, Drop),
        (Kind.NODE_REGISTERED, False, Drop),
        (Kind.AUTHENTICATION_FAILED, False, Drop),
    ],
)
def test_without_room_it_is_refused_or_dropped_by_the_table(kind: Kind, drops: bool, effect: type) -> None:
    talk = Talk(stuck=True, queue_max=100, repeated_max=50, drops_administration=drops)
    written = [talk.happens(kit.event(Kind.ACCESS_CHANGED))[0] for _ in range(100)]
    assert [type(one) for one in written] == [Write] * 99 + [Refuse]
    event = kit.event(kind)
    assert talk.happens(event) == [Refuse(event) if effect is Refuse else Drop(kind, 1)]
    talk.journal.handle(Wrote(100))
    assert isinstance(talk.happens(kit.event(kind, "another"))[0], Write)


def test_what_was_dropped_is_in_the_journal_when_there_is_room() -> None:
    talk = Talk(stuck=True, queue_max=100, repeated_max=50, drops_administration=True)
    for _ in range(101):
        talk.happens(kit.event())
    refusals(talk, 3)
    assert kinds_of(talk.tick()) == []
    talk.journal.handle(Wrote(len(talk.lines)))
    assert kinds_of(talk.tick()) == [("events_dropped", 5)]
    values = json.loads(talk.lines[-1])["change"]["after"]["values"]
    assert values == {"administered": "2", "operation_refused": "3"}
    assert talk.tick() == [], "once"
    assert [json.loads(line)["seq"] for line in talk.lines] == list(range(101)), "what is dropped leaves no gap"


def test_counts_that_have_no_room_are_dropped_as_counts() -> None:
    talk = Talk(stuck=True, queue_max=100, repeated_max=50)
    refusals(talk, 1)
    for _ in range(7):
        refusals(talk, 1)
    for n in range(60):
        talk.happens(kit.event(name=f"t{n}"))
    assert talk.tick(MINUTE_MS)[0] == Drop(Kind.OPERATION_REFUSED, 7)
    talk.journal.handle(Wrote(len(talk.lines)))
    assert ("events_dropped", 7) in [*kinds_of(talk.tick()), *kinds_of([Write(line) for line in talk.lines])]


def test_bounds_leave_room_for_changes() -> None:
    with pytest.raises(InvalidConfig, match="repeated_max is less"):
        Bounds(queue_max=100, repeated_max=100)


# --- the end ---------------------------------------------------------------------------------------------------


def test_it_ends_with_all_counts_and_a_seal() -> None:
    talk = Talk()
    for _ in range(3):
        talk.happens(kit.event(Kind.OPERATION_REFUSED))
    assert kinds_of(talk.stop()) == [("operation_refused", 2), ("seal", 0)]
    assert talk.seals == [(0, 2, True)]
    assert (talk.stop(), talk.tick(HOUR_MS)) == ([], [])


def test_a_journal_without_news_ends_with_a_seal_all_the_same() -> None:
    talk = Talk()
    talk.tick(SEAL_MS)
    talk.stop()
    assert talk.seals == [(0, 0, False), (1, 0, True)]
    assert verify(talk.lines, kit.announce(START), kit.check).proven


def test_a_line_that_cannot_be_leaves_the_chain_as_it_was() -> None:
    talk = Talk()
    strange = Event(Kind.ADMINISTERED, kit.NOW_MS, Actor("User:a", Method.NOTHING), count=1)
    object.__setattr__(strange, "source", "hrn_" + "a" * 43)
    with pytest.raises(Rejected, match="never written"):
        talk.journal.handle(Happened(strange, 0))
    talk.happens(kit.event())
    talk.stop()
    assert verify(talk.lines, kit.announce(START), kit.check).proven


@pytest.mark.parametrize("id", ["", "x" * 65, "a\n", "é"])
def test_the_id_of_a_start_is_short_and_plain(id: str) -> None:
    with pytest.raises(Rejected, match="no id of a start"):
        Start(kit.BROKER, id)
