"""Browsers at a closed local cluster: who logs in is in, until the logout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from headrace import AdminClient, access
from headrace_cli.local import LocalCluster

pytestmark = pytest.mark.integration

GOOD: Final = "a quiet river bends"
CHANGES: Final = {"content-type": "application/json", "x-headrace-request": "1"}


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("browsers") / "data", brokers=1) as made:
        with AdminClient(made.bootstrap_servers) as admin:
            admin.create_topic("orders")
            admin.create_user("alice", GOOD)
            admin.alter_access([access.Put(access.bind("User:alice", "superuser"))])
        yield made


@pytest.fixture
def browser(cluster: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{cluster.process('admin').http}", headers=CHANGES, timeout=30) as made:
        yield made


def log_in(browser: httpx.Client) -> str:
    answer = browser.post("/v1/login", json={"user": "alice", "password": GOOD})
    assert answer.status_code == 200, answer.text
    return browser.cookies["headrace"]


def test_who_logs_in_is_in_until_the_logout(cluster: LocalCluster, browser: httpx.Client) -> None:
    assert browser.get("/v1/topics").status_code == 401
    assert browser.post("/v1/login", json={"user": "alice", "password": "not this one"}).status_code == 401
    cookie = log_in(browser)
    assert browser.get("/v1/session").json()["principal"] == "User:alice"
    assert browser.post("/v1/topics", json={"name": "made"}).status_code == 201, "the controller knows who it was"
    with AdminClient(cluster.bootstrap_servers) as admin:
        assert [key.login for key in admin.list_keys("User:alice")] == [True]
        assert browser.post("/v1/logout").status_code == 204
        assert admin.list_keys("User:alice") == []
    again = browser.get("/v1/topics", headers={"cookie": f"headrace={cookie}"})
    assert (again.status_code, "Max-Age=0" in again.headers["set-cookie"]) == (401, True)
    logs = b"".join(path.read_bytes() for path in cluster.directory.path.rglob("*.log"))
    audit = b"".join(path.read_bytes() for path in (cluster.directory.path / "audit").rglob("*") if path.is_file())
    assert b"Controller/Login" in audit
    for secret in (GOOD, "not this one", cookie):
        assert secret.encode() not in logs + audit
