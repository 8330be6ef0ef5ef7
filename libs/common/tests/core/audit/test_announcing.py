"""What controllers write of the starts of nodes is what the proof is made with."""

from __future__ import annotations

from dataclasses import replace

from libs.common.tests.kit import audit as kit

from headrace_common.core.audit.announcing import announced_in, counted, registration
from headrace_common.core.audit.chain import Start
from headrace_common.core.audit.events import Change
from headrace_common.core.audit.journal import Happened, Stopped
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.audit.verification import Announced, Found, verify
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role

CONTROLLER = Start(NodeKey(Role.CONTROLLER, NodeId(1)), "c")
BROKER = Start(kit.BROKER, "b")


def lines_of(start: Start, *told: tuple[Kind, Change]) -> list[bytes]:
    journal = kit.journal_of(start)
    effects = journal.begin(kit.public_key_of(start), kit.NOW_MS, 0)
    for kind, change in told:
        effects += journal.handle(Happened(replace(kit.event(kind), change=change), 0))
    return kit.lines_of([*effects, *journal.handle(Stopped(kit.NOW_MS + 1))])


REGISTERED = [(Kind.NODE_REGISTERED, registration(one, kit.public_key_of(one))) for one in (CONTROLLER, BROKER)]


def test_starts_are_announced_with_their_keys_and_the_most_events_that_were_counted() -> None:
    counts = [(Kind.NODES_COUNTED, counted({BROKER: count})) for count in (1, 3, 2)]
    lines = lines_of(CONTROLLER, *REGISTERED, *counts)
    assert announced_in(lines) == {
        CONTROLLER: Announced(kit.public_key_of(CONTROLLER), kit.NOW_MS, 0),
        BROKER: Announced(kit.public_key_of(BROKER), kit.NOW_MS, 3),
    }


def test_the_end_of_a_node_cannot_be_removed_once_it_was_counted() -> None:
    of_broker = lines_of(BROKER, *[(Kind.ADMINISTERED, Change({}, {}))] * 2)
    of_controller = lines_of(CONTROLLER, *REGISTERED, (Kind.NODES_COUNTED, counted({BROKER: 3})))
    whole = [*of_controller, *of_broker]
    assert verify(whole, announced_in(whole), kit.check).proven
    cut = [*of_controller, *of_broker[:1]]
    assert Found.MISSING in {one.found for one in verify(cut, announced_in(cut), kit.check).findings}


def test_what_is_no_such_event_is_passed_over() -> None:
    odd = [b'{"kind":"node_registered"}', b'"kind":"node', b'{"change":null,"kind":"nodes_counted"}', b""]
    wrong = [(Kind.NODE_REGISTERED, Change({}, values)) for values in ({}, {"node": "x", "start": "a", "public": ""})]
    assert announced_in([*odd, *lines_of(CONTROLLER, *wrong, (Kind.NODES_COUNTED, Change({}, {"a b": "c"})))]) == {}
