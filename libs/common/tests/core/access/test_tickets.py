"""What a broker knows of the tickets that it has made, and how many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from libs.common.tests.kit.closed import key_of, key_text, user

from headrace_common.core.access import tickets
from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.state import Caller
from headrace_common.core.access.tickets import (
    LIFE_MS,
    NAME_CHARS_MAX,
    REUSED_MS_MIN,
    TICKET_BYTES,
    Audience,
    Ticket,
    Tickets,
    maker_of,
)
from headrace_common.core.errors import Rejected, Unauthenticated
from headrace_common.core.ids import NodeId

READ = frozenset({(Operation.READ, ResourceType.GROUP, "billing")})
WORKER = Audience("billing", "10.0.0.1:7000", "totals")


def shown(name: str, host: str | None = None) -> Shown:
    return Shown(Caller(user(name), host=host), key_text(name), key_of(name))


def secrets() -> Iterator[bytes]:
    yield from (n.to_bytes(32, "big") for n in range(10_000))


class Broker:
    """Makes tickets, on a clock that a test moves."""

    def __init__(self) -> None:
        drawn = secrets()
        self.tickets = Tickets(lambda: next(drawn))
        self.now_ms = 1_000.0

    def make(self, name: str = "alice", audience: Audience = WORKER, host: str | None = None) -> Ticket:
        return self.tickets.make(NodeId(7), shown(name, host), audience, READ, self.now_ms)

    def finds(self, ticket: bytes, audience: Audience = WORKER) -> bool:
        try:
            self.tickets.find(ticket, audience, self.now_ms)
        except Unauthenticated:
            return False
        return True


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_a_ticket_is_what_it_was_made_as(broker: Broker) -> None:
    made = broker.make()
    found = broker.tickets.find(made.text, WORKER, broker.now_ms)
    assert (found.owner, found.audience, found.rights) == (shown("alice"), WORKER, READ)
    assert maker_of(made.text) == 7
    assert len(made.text) == TICKET_BYTES


def test_it_ends_after_a_minute(broker: Broker) -> None:
    made = broker.make()
    broker.now_ms += LIFE_MS - 1
    assert broker.finds(made.text)
    broker.now_ms += 1
    assert not broker.finds(made.text)


def test_it_is_good_for_its_audience_alone(broker: Broker) -> None:
    made = broker.make()
    for other in (
        WORKER._replace(group="other"),
        WORKER._replace(endpoint="10.0.0.2:7000"),
        WORKER._replace(purpose="secrets"),
        WORKER._replace(purpose=""),
    ):
        assert not broker.finds(made.text, other)
    assert broker.finds(made.text)


def test_what_was_never_made_is_found_nowhere(broker: Broker) -> None:
    made = broker.make()
    forged = [b"", made.text[:-1], made.text + b"\0", made.text[:-1] + b"!", (8).to_bytes(4, "big") + made.text[4:]]
    assert not any(broker.finds(text) for text in forged)
    assert [maker_of(text) for text in forged] == [None, None, None, 7, 8]
    another = Broker()
    assert not another.finds(made.text)


def test_who_asks_again_gets_the_same_while_it_is_young(broker: Broker) -> None:
    made = broker.make()
    assert broker.make() is made
    broker.now_ms += LIFE_MS - REUSED_MS_MIN
    assert broker.make() is made
    broker.now_ms += 1
    younger = broker.make()
    assert younger.text != made.text
    assert broker.make() is younger
    assert broker.finds(made.text)
    broker.now_ms += REUSED_MS_MIN
    assert broker.make("bob").text != made.text  # the first is over, and forgotten
    assert broker.make() is younger or broker.now_ms > younger.until_ms - REUSED_MS_MIN


def test_others_get_another(broker: Broker) -> None:
    texts = {
        broker.make().text,
        broker.make("bob").text,
        broker.make(host="10.0.0.9").text,
        broker.make(audience=WORKER._replace(endpoint="10.0.0.2:7000")).text,
        broker.make(audience=WORKER._replace(purpose="other")).text,
    }
    assert len(texts) == 5


def test_those_that_are_over_are_forgotten(broker: Broker) -> None:
    for n in range(10):
        broker.make(audience=WORKER._replace(purpose=str(n)))
    broker.now_ms += LIFE_MS
    broker.make("bob")
    assert len(broker.tickets) == 1
    assert len(broker.tickets._same) == 1
    assert len(broker.tickets._of) == 1


def test_a_caller_with_too_many_loses_its_own_oldest(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "TICKETS_PER_CALLER_MAX", 2)
    of_bob = broker.make("bob")
    first, second, third = (broker.make(audience=WORKER._replace(purpose=purpose)) for purpose in "abc")
    assert not broker.finds(first.text, first.audience)
    assert all(broker.finds(one.text, one.audience) for one in (of_bob, second, third))


def test_of_all_there_are_so_many_at_most(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "TICKETS_MAX", 2)
    first, second, third = (broker.make(name) for name in ("alice", "bob", "carol"))
    assert [broker.finds(one.text) for one in (first, second, third)] == [False, True, True]


def test_audiences_have_names_of_some_length() -> None:
    WORKER.check()
    WORKER._replace(purpose="").check()
    for bad in (WORKER._replace(group=""), WORKER._replace(endpoint=""), WORKER._replace(purpose="x" * 1_001)):
        with pytest.raises(Rejected):
            bad.check()
    WORKER._replace(purpose="x" * NAME_CHARS_MAX).check()
