"""The connection of heartbeats, which another thread closes."""

from __future__ import annotations

from typing import Any

import pytest
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.secure import shown

from headrace_common.adapters import controller_heartbeat
from headrace_common.adapters.controller_heartbeat import HeartbeatThread
from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.channels import Certificates, Security
from headrace_common.runtime.clock import SystemClock

HERE, THERE = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)


def heartbeats(security: Security) -> Any:
    return HeartbeatThread(NodeKey(Role.BROKER, NodeId(1)), ControllerRoute([HERE]), SystemClock(), print, security)


def test_it_is_shown_to_others_once_it_has_its_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made a stub of a channel that was closed meanwhile would end the process."""
    thread = heartbeats(Security())
    found: list[object] = []

    def make(channel: object) -> object:
        found.append(thread._channel)
        return object()

    monkeypatch.setattr(controller_heartbeat, "ControllerStub", make)
    stub = thread._stub(HERE)
    assert found == [None]
    thread._channel[1].close()
    assert thread._stub(HERE) is stub


def test_another_place_or_other_certificates_mean_another_one() -> None:
    certificates = Certificates(shown(Authority()))
    thread = heartbeats(Security(pem=certificates))
    first = thread._stub(HERE)
    assert thread._stub(HERE) is first
    second = thread._stub(THERE)
    assert second is not first
    certificates.pem = shown(Authority())
    assert thread._stub(THERE) is not second
    thread._channel[1].close()
