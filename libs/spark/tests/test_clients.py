"""One client per process and settings."""

from __future__ import annotations

import os

import pytest

from headrace_spark.adapters import clients
from headrace_spark.adapters.clients import (
    CLIENTS_MAX,
    drop_client,
    settings_key,
    settle_worker,
    share_client,
    warn_once,
)


class Client:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def none_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_clients", type(clients._clients)())
    monkeypatch.setattr(clients, "_warned", set())
    monkeypatch.setattr(clients, "_settled", set())


def test_the_same_settings_share_one() -> None:
    first = share_client(("watch", settings_key({"b": 1, "a": 2})), Client)
    assert share_client(("watch", settings_key({"a": 2, "b": 1})), Client) is first
    assert share_client(("watch", settings_key({"a": 3})), Client) is not first


def test_after_a_fork_there_is_a_new_one_and_the_old_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    first = share_client("k", Client)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert share_client("k", Client) is not first
    assert first.closed == 0


def test_the_one_that_was_not_used_for_longest_is_closed() -> None:
    made = [share_client(number, Client) for number in range(CLIENTS_MAX)]
    assert share_client(0, Client) is made[0]
    share_client("more", Client)
    assert [client.closed for client in made] == [0, 1, *[0] * (CLIENTS_MAX - 2)]
    assert share_client(0, Client) is made[0]


def test_one_that_failed_is_made_anew() -> None:
    first = share_client("k", Client)
    drop_client("k")
    drop_client("k")
    assert first.closed == 1
    assert share_client("k", Client) is not first


def test_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for text in ("a", "b", "a"):
        warn_once(text)
    assert [record.message for record in caplog.records] == ["a", "b"]


def test_a_worker_is_settled_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(clients, "keep_freed_memory", lambda: done.append("allocator"))
    monkeypatch.setattr(clients.gc, "freeze", lambda: done.append("collector"))
    settle_worker()
    settle_worker()
    assert done == ["allocator", "collector"]
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    settle_worker()
    assert done == ["allocator", "collector"] * 2
