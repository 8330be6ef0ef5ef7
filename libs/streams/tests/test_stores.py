"""Whom ``Stores`` asks, and what it says where nobody listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace_common.core.errors import GroupNotFound, LeaderNotAvailable, Rejected
from headrace_streams import Stores, stores
from headrace_streams.stores import NoWorkers


class Admin:
    """Describes a group with these members."""

    members: tuple[Any, ...] = ()
    known = True

    def __init__(self, servers: str | None) -> None:
        pass

    def describe_group(self, group: str) -> Any:
        if not self.known:
            raise GroupNotFound(group)
        return SimpleNamespace(members=self.members, items=())

    def close(self) -> None:
        pass


class Clock:
    """Goes on while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, s: float) -> None:
        self.now += s


def test_workers_that_do_not_listen_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admin, "members", (SimpleNamespace(member_id="m", endpoint=""),))
    monkeypatch.setattr(stores, "AdminClient", Admin)
    with Stores("counts") as asked, pytest.raises(Rejected, match="start them with --query-listen HOST:PORT"):
        asked.names()


def test_workers_that_may_come_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admin, "members", (SimpleNamespace(member_id="m", endpoint="m:1"),))
    monkeypatch.setattr(stores, "AdminClient", Admin)
    with (
        Stores("counts", timeout_ms=0) as asked,
        pytest.raises(LeaderNotAvailable, match="no worker of counts answers; `headrace group describe counts`"),
    ):
        asked.names()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("timeout_ms", "waited_s"), [(30_000, 3.0), (500, 0.5), (0, 0.0)])
def test_an_app_without_workers_is_told_after_three_seconds(
    monkeypatch: pytest.MonkeyPatch, known: bool, timeout_ms: int, waited_s: float
) -> None:
    """So long a restart may take; no member and no group are told alike."""
    clock = Clock()
    monkeypatch.setattr(stores, "time", clock)
    monkeypatch.setattr(Admin, "known", known)
    monkeypatch.setattr(stores, "AdminClient", Admin)
    with (
        Stores("counts", timeout_ms=timeout_ms) as asked,
        pytest.raises(NoWorkers, match="no worker of counts is a member of its group; start one"),
    ):
        asked["counts"]
    assert clock.now == pytest.approx(100 + waited_s, abs=0.15)


def test_a_group_that_was_empty_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it was before counts no more: three seconds without members at a time are much, not in all."""
    clock = Clock()
    monkeypatch.setattr(stores, "time", clock)
    monkeypatch.setattr(stores, "AdminClient", Admin)

    def members(self: Admin) -> tuple[Any, ...]:
        return () if 2 < clock.now % 10 < 4 else (SimpleNamespace(member_id="m", endpoint="m:1"),)

    monkeypatch.setattr(Admin, "members", property(members))
    with Stores("counts") as asked, pytest.raises(LeaderNotAvailable, match="no worker of counts answers"):
        asked.names()
    assert clock.now == pytest.approx(130, abs=0.15)
