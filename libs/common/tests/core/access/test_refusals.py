"""What a process remembers of what it refused, by the id in the text: bounded, and as it was decided then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from libs.common.tests.kit.access import ALICE, BOB, STAFF, allow, deny

from headrace_common.core.access import refusals as module
from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.explain import Explanation, Reason
from headrace_common.core.access.grants import scope_of
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.refusals import (
    ID_CHARS,
    PER_PRINCIPAL_MAX,
    REFUSALS_MAX,
    SOURCES_MAX,
    Question,
    Refusals,
    check_id,
    refusal_id,
)
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Access, Caller, Source
from headrace_common.core.errors import Rejected

TOPIC, READ, WRITE = ResourceType.TOPIC, Operation.READ, Operation.WRITE
ASKED = Question(Caller(ALICE), READ, TOPIC, "orders")
WHY = Explanation(False, Reason.NOTHING_ALLOWS, ())


def of(caller: Caller, name: str) -> Question:
    return Question(caller, READ, TOPIC, name)


def test_the_id_is_of_what_was_refused_to_whom_and_always_the_same() -> None:
    assert refusal_id(ASKED) == refusal_id(Question(Caller(ALICE), READ, TOPIC, "orders")) == "4dc6qbshd0"
    others = [
        ASKED._replace(operation=WRITE),
        ASKED._replace(type=ResourceType.GROUP),
        ASKED._replace(name="orders\ud800"),
        ASKED._replace(caller=Caller(BOB)),
        ASKED._replace(caller=Caller(ALICE, host="10.0.0.1")),
        ASKED._replace(caller=Caller(ALICE, frozenset({STAFF}))),
        ASKED._replace(caller=Caller(ALICE, vouched=True)),
        ASKED._replace(caller=Caller(ALICE, scope=scope_of([]))),
        ASKED._replace(caller=Caller(ALICE, scope=scope_of([allow(TOPIC, EVERY_NAME, READ)]))),
    ]
    ids = {refusal_id(one) for one in (ASKED, *others)}
    assert len(ids) == len(others) + 1
    assert {check_id(f" {id.upper()} ") for id in ids} == ids


@pytest.mark.parametrize("text", ["", "a" * (ID_CHARS - 1), "a" * (ID_CHARS + 1), "l" * ID_CHARS, "\ud800" * ID_CHARS])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="is no id of a refusal"):
        check_id(text)


def test_the_same_again_is_counted_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSALS_MAX", 3)
    kept, callers = Refusals(), [Caller(Principal(PrincipalType.USER, f"u{number}")) for number in range(4)]
    ids = [kept.note(of(caller, "t"), WHY, at) for at, caller in enumerate(callers[:3])]
    assert kept.note(of(callers[0], "t"), WHY, 7) == ids[0]
    kept.note(of(callers[3], "t"), WHY, 8)
    assert [kept.get(id) is not None for id in ids] == [True, False, True]
    first = kept.get(ids[0])
    assert first is not None
    assert (first.times.first_ms, first.times.last_ms, first.times.count) == (0, 7, 2)
    assert len(kept) == 3


def test_who_is_refused_much_makes_nobody_elses_refusals_forgotten() -> None:
    kept = Refusals()
    bob = kept.note(of(Caller(BOB), "t"), WHY, 0)
    ids = [kept.note(of(Caller(ALICE), f"t{number}"), WHY, 1) for number in range(REFUSALS_MAX + 5)]
    assert len(kept) == PER_PRINCIPAL_MAX + 1
    assert kept.get(bob) is not None
    assert [kept.get(id) is not None for id in ids[-PER_PRINCIPAL_MAX - 1 :]] == [False] + [True] * PER_PRINCIPAL_MAX


def test_few_sources_are_kept() -> None:
    kept = Refusals()
    many = tuple(Source(ALICE, None, deny(TOPIC, literal(f"t{number}"), READ)) for number in range(SOURCES_MAX + 1))
    one = kept.get(kept.note(ASKED, Explanation(False, Reason.DENIED, many), 0))
    assert one is not None
    assert one.why.sources == many[:SOURCES_MAX]


# --- as a process refuses -----------------------------------------------------------------------------------------


def closed(*grants: object) -> View:
    return View(Mode.CLOSED, Access(1, {ALICE: frozenset(grants)} if grants else {}))  # type: ignore[arg-type]


def control_of(view: View) -> Control:
    control = Control(lambda: 5.0)
    control.renew(view)
    return control


def test_why_says_what_decided_then_and_what_would_allow_it_now() -> None:
    denies = deny(TOPIC, literal("orders"), READ)
    control = control_of(closed(denies))
    caller = Caller(ALICE, frozenset({STAFF}), "10.0.0.1")
    id = refusal_id(of(caller, "orders"))
    assert control.remembered(id) is None
    text = str(Rights(control, caller).refusal(READ, TOPIC, "orders"))
    assert text == f"User:alice may not READ TOPIC orders (refusal {id}): a rule denies it"
    told = control.remembered(id)
    assert told is not None
    assert (told.principal, told.groups, told.host, told.name) == ("User:alice", ("Group:staff",), "10.0.0.1", "orders")
    assert (told.operation, told.type, told.narrowed, told.times.last_ms) == (READ, TOPIC, False, 5)
    assert told.sources == ("deny READ TOPIC orders, by a rule of User:alice",)
    assert told.remedy.startswith("headrace access remove deny User:alice read topic orders && headrace access allow")
    control.renew(closed())
    later = control.remembered(id)
    assert later is not None
    assert (later.reason, later.sources) == (told.reason, told.sources), "as it was then"
    assert later.remedy == "headrace access allow User:alice read topic orders"
    control.renew(closed(allow(TOPIC, literal("orders"), READ)))
    allowed = control.remembered(id)
    assert allowed is not None
    assert (allowed.allowed, allowed.remedy) == (True, "")


def test_where_any_name_would_do_that_is_remembered() -> None:
    control = control_of(closed())
    text = str(control.refusal_anywhere(Caller(ALICE), WRITE, TOPIC))
    id = refusal_id(Question(Caller(ALICE), WRITE, TOPIC, "*"))
    assert f"may WRITE no TOPIC (refusal {id}); who may change rules" in text
    told = control.remembered(id)
    assert told is not None
    assert (told.name, told.allowed, told.remedy) == ("*", False, "headrace access allow User:alice write topic NAME")
    control.renew(closed(allow(TOPIC, literal("x"), WRITE)))
    assert control.remembered(id) == replace(told, allowed=True, remedy="")


def test_nodes_and_what_is_not_explained_have_no_id_and_who_has_shown_nothing_has() -> None:
    control = control_of(closed())
    texts = [
        str(control.refusal(Caller(Principal(PrincipalType.NODE, "broker-1")), READ, TOPIC, "t")),
        str(control.refusal(Caller(ALICE), READ, TOPIC, "t", explained=False)),
    ]
    assert not any("refusal" in text for text in texts)
    assert len(control.refusals) == 0
    said = str(control.refusal(Caller(ANONYMOUS), READ, TOPIC, "t"))
    assert f"may not READ TOPIC t (refusal {refusal_id(of(Caller(ANONYMOUS), 't'))}); show one" in said
    told = control.remembered(refusal_id(of(Caller(ANONYMOUS), "t")))
    assert told is not None
    assert (told.reason, told.remedy) == ("nothing allows it", ""), "no rule lets in who shows nothing"
    narrow = Caller(ALICE, scope=scope_of([]))
    control.refusal(narrow, READ, TOPIC, "t")
    scoped = control.remembered(refusal_id(of(narrow, "t")))
    assert scoped is not None
    assert (scoped.narrowed, scoped.reason) == (True, "its key is not for that")
