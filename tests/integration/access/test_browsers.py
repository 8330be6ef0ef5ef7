"""
Browsers at a closed local cluster: who logs in is in, and a page of another origin, or one that has its own name lead
here (DNS rebinding), gets nothing from any port that speaks HTTP. The requests have the headers that browsers send.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import httpx
import pytest

from headrace import AdminClient, access
from headrace_cli.local import LocalCluster
from headrace_common.core.ids import Endpoint

pytestmark = pytest.mark.integration

GOOD: Final = "a quiet river bends"
EVIL: Final = "http://evil.example"
CHANGES: Final = {"content-type": "application/json", "x-headrace-request": "1"}
PATHS: Final = (
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/topics"),
    ("GET", "/connectors"),
    ("POST", "/v1/login"),
    ("POST", "/v1/topics"),
    ("POST", "/v1/brokers/1/drain"),
    ("POST", "/connectors"),
    ("DELETE", "/v1/topics/orders?confirm=orders"),
)


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


def ask(at: str, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Answered:
    """With these headers alone, ``Host`` among them."""
    where = Endpoint.parse(at)
    connection = HTTPConnection(where.host, where.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in (headers | {"Content-Length": str(len(body))} if body else headers).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return Answered(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("browsers") / "data", brokers=1, connect=True) as made:
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
    [(name, text)] = browser.cookies.items()
    return f"{name}={text}"


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
    again = browser.get("/v1/topics", headers={"cookie": cookie})
    assert (again.status_code, "Max-Age=0" in again.headers["set-cookie"]) == (401, True)
    logs = b"".join(path.read_bytes() for path in cluster.directory.path.rglob("*.log"))
    audit = b"".join(path.read_bytes() for path in (cluster.directory.path / "audit").rglob("*") if path.is_file())
    assert b"Controller/Login" in audit
    for secret in (GOOD, "not this one", cookie.partition("=")[2]):
        assert secret.encode() not in logs + audit


def test_pages_of_others_get_nothing(cluster: LocalCluster, browser: httpx.Client) -> None:
    cookie = log_in(browser)
    of_admin, of_worker = cluster.process("admin").http, cluster.process("connect-1").http
    assert of_admin
    assert of_worker
    metrics = [one.metrics for one in cluster.processes if one.metrics and one.role != "etcd"]  # it looks at no Host
    assert len(metrics) >= 4
    with AdminClient(cluster.bootstrap_servers) as admin:
        before = sorted(one.name for one in admin.list_topics()), len(admin.list_keys())
        for at in (of_admin, of_worker, *metrics):
            for method, path in PATHS:
                for shown in ({}, {"cookie": cookie}):
                    assert_refused(at, method, path, shown)
        assert (sorted(one.name for one in admin.list_topics()), len(admin.list_keys())) == before
        assert admin.describe_cluster().brokers
    assert browser.get("/v1/session").status_code == 200, "nobody was logged out by it"


def assert_refused(at: str, method: str, path: str, shown: dict[str, str]) -> None:
    """Under a name that was rebound nothing is answered; from another origin nothing is done, and nothing is read."""
    port = at.rpartition(":")[2]
    form = {"content-type": "text/plain"} if method != "GET" else {}
    body = b'{"name": "evil", "user": "alice", "password": "a quiet river bends"}' if method == "POST" else b""
    rebound = {"host": f"evil.example:{port}", "origin": f"{EVIL}:{port}", "sec-fetch-site": "same-origin"}
    for headers in (rebound | CHANGES, rebound | form):
        answer = ask(at, method, path, headers | shown, body)
        assert answer.status in {401, 403, 415, 421}, (at, method, path, headers, answer)
        assert not any(told in answer.body for told in (b'"topics"', b"# HELP", b"<html", b'"paths"'))
    for site in ("cross-site", "same-site"):
        headers = {"host": at, "origin": EVIL, "sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        answer = ask(at, method, path, headers | form | shown, body)
        assert not [name for name in answer.headers if name.startswith("access-control")], (at, answer)
        if method != "GET" or shown:
            assert answer.status >= 400 or path in {"/", "/metrics"}, (at, method, path, answer)
    preflight = {"host": at, "origin": EVIL, "access-control-request-method": method}
    answer = ask(at, "OPTIONS", path, preflight | {"access-control-request-headers": "content-type"})
    assert not [name for name in answer.headers if name.startswith("access-control")], (at, answer)
