"""What somebody writes who comes from another client: each mistake is named, with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace.errors import HeadraceError


@pytest.mark.parametrize("client", [headrace.Producer, headrace.AdminClient])
@pytest.mark.parametrize("servers", [9292, {"127.0.0.1:9292"}])
def test_addresses_of_another_kind_are_named(client: Any, servers: Any) -> None:
    with pytest.raises(HeadraceError, match=r"a list of host:port, not \w+; .* \(\*\*settings\)"):
        client(servers)


@pytest.mark.parametrize("topic", [b"bytes", ["list"], 5, None])
def test_a_topic_that_is_no_text_is_named(topic: Any) -> None:
    with pytest.raises(HeadraceError, match="a topic name is text, not"):
        headrace.Consumer(topic)


def test_a_producer_names_it_too() -> None:
    with headrace.Producer("127.0.0.1:1") as producer, pytest.raises(HeadraceError, match="a topic name is text, not"):
        producer.send(b"bytes", b"x")  # what users do


def test_what_the_guide_for_users_of_other_clients_names_is_there() -> None:
    assert headrace.NewTopic("t", 6, 3).name == "t"
