"""Entities: one text each, and what has none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.access import IMPOSSIBLE
from libs.common.tests.kit.quotas import ENTITIES

from headrace_common.core.errors import Rejected
from headrace_common.core.quotas.entities import (
    DEFAULT,
    NO_CLIENT_ID,
    Clients,
    Entity,
    Prefix,
    client_id_of,
    parse_entity,
)
from headrace_common.core.quotas.kinds import Limit, Rate

TEXTS = {
    "users/User:alice/clients/app": Clients("User:alice", "app"),
    "users/*/clients/*": Clients(DEFAULT, DEFAULT),
    "users/User:alice": Clients("User:alice"),
    "users/ServiceAccount:ns%2Fpod": Clients("ServiceAccount:ns/pod"),
    "clients/100%25": Clients(None, "100%"),
    "clients/%252F": Clients(None, "%2F"),
    "prefixes/orders.": Prefix("orders."),
}


@pytest.mark.parametrize(("text", "entity"), TEXTS.items(), ids=TEXTS)
def test_texts(text: str, entity: Entity) -> None:
    assert str(entity) == text
    assert parse_entity(text) == entity


def test_no_two_have_one_text() -> None:
    assert len(set(map(str, ENTITIES))) == len(ENTITIES)


@given(st.text("a/%2F5:*", min_size=1, max_size=8))
def test_every_client_id_has_a_text_of_its_own(name: str) -> None:
    if name == DEFAULT:
        return
    entity = Clients("User:alice", name)
    assert parse_entity(str(entity)) == entity


@given(st.one_of(st.text(max_size=20), st.text("users/clients*%2F:a.", max_size=30)))
def test_what_is_read_is_written_so(text: str) -> None:
    try:
        entity = parse_entity(text)
    except Rejected:
        return
    assert str(entity) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "users",
        "users/",
        "users/alice",
        "users/User:*",
        "users/Group:staff",
        "users/Node:broker-1",
        "users/User:alice/clients",
        "users/User:alice/clients/app/x",
        "clients/app/users/User:alice",
        "clients/a%2fb",
        "clients/%41",
        "ips/10.0.0.1",
        "prefixes/*",
        "prefixes/__consumer",
        "topics/orders",
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(Rejected):
        parse_entity(text)


@pytest.mark.parametrize("name", [name for name in IMPOSSIBLE if name != DEFAULT])
def test_names_that_cannot_be(name: str) -> None:
    for make in (Prefix, lambda name: Clients(None, name), lambda name: Clients(f"User:{name}")):
        with pytest.raises(Rejected):
            make(name)
    assert client_id_of(name) == NO_CLIENT_ID


def test_a_client_that_names_itself_as_the_default_is_written_shows_none() -> None:
    assert client_id_of(DEFAULT) == NO_CLIENT_ID
    assert client_id_of("app") == "app"


def test_nothing_is_for_nobody() -> None:
    with pytest.raises(Rejected, match="a user, a client id or both"):
        Clients()


def test_what_can_be_set_for_whom() -> None:
    for clients in (Clients("User:alice", "app"), Clients(None, "app"), Clients("User:alice"), Clients(DEFAULT)):
        assert clients.quotas == set(Rate)
    assert Prefix("a").quotas == set(Limit)
