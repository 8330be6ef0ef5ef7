"""Whom ``Stores`` asks, and what it says where nobody listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace_common.core.errors import LeaderNotAvailable, Rejected
from headrace_streams import Stores, stores


class Admin:
    """Describes a group with these members."""

    members: tuple[Any, ...] = ()

    def __init__(self, servers: str | None) -> None:
        pass

    def describe_group(self, group: str) -> Any:
        return SimpleNamespace(members=self.members, items=())

    def close(self) -> None:
        pass


def test_workers_that_do_not_listen_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admin, "members", (SimpleNamespace(member_id="m", endpoint=""),))
    monkeypatch.setattr(stores, "AdminClient", Admin)
    with Stores("counts") as asked, pytest.raises(Rejected, match="start them with --query-listen HOST:PORT"):
        asked.names()


def test_workers_that_may_come_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "AdminClient", Admin)
    with (
        Stores("counts", timeout_ms=0) as asked,
        pytest.raises(LeaderNotAvailable, match="no worker of counts answers; `headrace group describe counts`"),
    ):
        asked.names()
