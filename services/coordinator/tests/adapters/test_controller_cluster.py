"""Until when a coordinator surely has its shards, as far as the controller goes."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import EMPTY_IMAGE, Node, NodeKey, Role
from headrace_coordinator.adapters.controller_cluster import ControllerCluster

KEY = NodeKey(Role.COORDINATOR, NodeId(1))
NODE = Node(KEY, Endpoint("127.0.0.1", 9492), b"i" * 16, 5, fenced=False)
SESSION_MS = 1_000
CONTACT_MS = 70.0


def tenure_until_ms(node: Node | None, **known: Any) -> float:
    """Of a node that the image has so, and that knows this of its own."""
    image = replace(EMPTY_IMAGE, nodes={} if node is None else {KEY: node})
    own = {"registered": SimpleNamespace(epoch=5, session_timeout_ms=SESSION_MS), "contact_ms": CONTACT_MS}
    client: Any = SimpleNamespace(**{"key": KEY, "image": image, "fenced": False, **own, **known})
    return ControllerCluster(client).tenure_until_ms


def test_tenure_is_a_session_from_the_last_beat_that_was_answered() -> None:
    assert tenure_until_ms(NODE) == CONTACT_MS + SESSION_MS


@pytest.mark.parametrize("known", [{"registered": None}, {"contact_ms": None}, {"fenced": True}])
def test_there_is_none_before_a_controller_has_let_the_node_take_part(known: dict[str, Any]) -> None:
    assert tenure_until_ms(NODE, **known) == -math.inf


@pytest.mark.parametrize("node", [None, replace(NODE, fenced=True), replace(NODE, epoch=4)])
def test_there_is_none_before_the_image_in_which_the_node_takes_part(node: Node | None) -> None:
    """An answer may be faster than the image, and shards may have moved in between."""
    assert tenure_until_ms(node) == -math.inf
