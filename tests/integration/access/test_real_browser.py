"""
A real browser at a closed local cluster: people log in by our page, and a page of another origin, or one that has its
own name lead here (DNS rebinding), reads nothing and changes nothing at any port, although the browser is logged in.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from headrace import AdminClient, Producer, access
from headrace_cli.local import LocalCluster

from .chromium import Asked, Chromium, Page, chromium

PROGRAM: Final = os.environ.get("HEADRACE_BROWSER", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not PROGRAM, reason="make browser: it installs Chromium"),
]

START_S: Final = 240.0
"""On a busy machine."""
GOOD: Final = "a quiet river bends"
ATTACK: Final = Path(__file__).with_name("attack.js").read_text()
EVIL: Final = "evil.test"
"""A name that leads to this machine."""
OF_ADMIN: Final = (
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/session"),
    ("GET", "/v1/topics"),
    ("GET", "/v1/keys"),
    ("GET", "/v1/topics/orders/partitions/0/records?offset=earliest"),
    ("GET", "/health/cluster"),
    ("POST", "/v1/topics"),
    ("POST", "/v1/login"),
    ("POST", "/v1/logout"),
    ("POST", "/v1/keys"),
    ("POST", "/v1/brokers/1/drain"),
    ("DELETE", "/v1/topics/orders?confirm=orders"),
)
OF_WORKER: Final = (
    ("GET", "/"),
    ("GET", "/connectors"),
    ("GET", "/connector-plugins"),
    ("POST", "/connectors"),
    ("DELETE", "/connectors/none"),
)
OF_METRICS: Final = (("GET", "/metrics"), ("GET", "/health"), ("POST", "/"), ("DELETE", "/metrics"))
OF_GRPC: Final = (("GET", "/"), ("POST", "/headrace.v1.Admin/ListTopics"), ("POST", "/v3/kv/range"))


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:  # else strangers are refused because there are many of them
        patch.setenv("HEADRACE_ADMIN_HTTP_STRANGERS_PER_SECOND", "0")
        made = LocalCluster(tmp_path_factory.mktemp("real-browser") / "data", brokers=1, connect=True, closed=True)
        try:
            made.start(START_S)
            with AdminClient(made.bootstrap_servers) as admin:
                admin.create_topic("orders")
                admin.create_user("alice", GOOD)
                admin.alter_access([access.Put(access.bind("User:alice", "superuser"))])
            with Producer(made.bootstrap_servers) as producer:
                producer.send("orders", "<img src=x onerror='window.taken = 1'>").result(30)
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    profile = tmp_path_factory.mktemp("chromium") / "profile"
    with chromium(PROGRAM, profile, f"--host-resolver-rules=MAP *.test 127.0.0.1,MAP {EVIL} 127.0.0.1") as made:
        yield made


@pytest.fixture
def new_page(browser: Chromium) -> Iterator[Callable[[], Page]]:
    with browser.person() as made:
        yield made


@pytest.fixture
def page(new_page: Callable[[], Page]) -> Page:
    return new_page()


@pytest.fixture(scope="module")
def foreign_port() -> Iterator[int]:
    """Of this machine: an empty page of somebody else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><body>evil</body>")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def admin_at(cluster: LocalCluster, host: str) -> str:
    return f"http://{host}:{urlsplit(cluster.admin_url).port}"


def log_in(page: Page, at: str, password: str = GOOD) -> None:
    page.go(f"{at}/docs")
    page.type("#user", "alice")
    page.type("#password", password)
    page.press_enter()


def is_docs(page: Page) -> None:
    page.until("document.querySelectorAll('#routes details').length > 40")


# --- our own pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_person_logs_in_reads_and_logs_out(cluster: LocalCluster, page: Page, host: str) -> None:
    at = admin_at(cluster, host)
    log_in(page, at, "not this one")
    page.until("document.querySelector('#said').textContent.length > 3")
    assert "password" in page.run("document.querySelector('#said').textContent")
    assert page.run("document.querySelector('#password').value") == ""
    assert page.cookies() == {}
    page.type("#password", GOOD)
    page.press_enter()
    is_docs(page)
    [cookie] = page.cookies().values()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["domain"]) == (True, "Lax", host)
    assert page.run("document.cookie") == ""
    assert sent(page, "GET", "/v1/session")["principal"] == "User:alice"
    records = sent(page, "GET", "/v1/topics/{topic}/partitions/{partition}/records", topic="orders", partition="0")
    assert "<img" in json.dumps(records)
    assert not page.run("'taken' in window"), "what a record holds is text"
    page.reload()
    is_docs(page)
    assert sent(page, "POST", "/v1/logout") is None
    page.until("document.querySelector('h1') !== null")
    page.reload()
    assert page.run("document.querySelector('h1').textContent") == "Log in"
    assert page.cookies() == {}
    assert page.complaints == []


def sent(page: Page, method: str, path: str, **inputs: str) -> Any:
    """What the page shows for a request that it sends."""
    return json.loads(
        page.run(
            f"""(async () => {{
                const [found] = [...document.querySelectorAll("details.{method.lower()}")].filter(
                  (one) => one.querySelector("summary code").textContent === {json.dumps(path)});
                for (const [name, value] of Object.entries({json.dumps(inputs)}))
                  found.querySelector(`input[aria-label="${{name}}"]`).value = value;
                found.querySelector("button").click();
                const output = found.querySelector("pre");
                while (output.hidden || output.textContent === "...") await new Promise((done) => setTimeout(done, 10));
                return output.textContent.split("\\n\\n").slice(1).join("\\n\\n") || "null";
            }})()"""
        )
    )


def test_our_pages_run_nothing_but_their_own_script(cluster: LocalCluster, page: Page) -> None:
    log_in(page, admin_at(cluster, "localhost"))
    is_docs(page)
    assert page.complaints == []
    blocked = page.run(
        """(async () => {
            const blocked = [];
            document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
            const inject = (html) => document.body.append(document.createRange().createContextualFragment(html));
            inject("<script>window.taken = 1</script>");
            inject("<img src='x' onerror='window.taken = 2'>");
            inject("<script src='data:text/javascript,window.taken=3'></script>");
            inject("<iframe srcdoc='<script>parent.taken = 4</script>'></iframe>");
            inject("<form id='away' action='/v1/topics' method='post'></form>");
            document.querySelector("#away").submit();
            await fetch("https://evil.test/").catch(() => null);
            const until = Date.now() + 5000;
            while (!blocked.includes("form-action") && Date.now() < until)
              await new Promise((done) => setTimeout(done, 50));
            return blocked;
        })()"""
    )
    assert not page.run("'taken' in window")
    assert {"script-src-elem", "img-src", "form-action", "connect-src"} <= set(blocked)
    assert "evil.test" not in "".join(one.url for one in page.asked if one.status is not None)


# --- pages of others ------------------------------------------------------------------------------------------------


def ports(cluster: LocalCluster) -> dict[str, tuple[tuple[str, str], ...]]:
    """All of the cluster, by ``name:port``, with what is tried there."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    for one in cluster.processes:
        if one.metrics:
            found[one.metrics] = OF_METRICS
        if one.grpc:
            found[one.grpc] = OF_GRPC
        if one.http is not None:
            found[one.http] = OF_WORKER if one.role == "connect" else OF_ADMIN
    assert len(found) >= 10
    return found


def what_there_is(cluster: LocalCluster) -> tuple[Any, ...]:
    with AdminClient(cluster.bootstrap_servers) as admin:
        topics, keys = sorted(one.name for one in admin.list_topics()), sorted(key.id for key in admin.list_keys())
        return topics, keys, [(one.id, one.fenced, one.drained) for one in admin.describe_cluster().brokers]


def attack(page: Page, cluster: LocalCluster, host: str) -> tuple[list[Any], list[Asked]]:
    """What a page that is open could read or take for a success; and all that was asked."""
    places = [(f"http://{host}:{at.rpartition(':')[2]}", ways) for at, ways in ports(cluster).items()]
    every = page.run(f"Promise.all({json.dumps(places)}.map(([base, ways]) => ({ATTACK})(base, ways)))")
    of_etcd = {f"http://{host}:{at.rpartition(':')[2]}" for at in metrics_of_etcd(cluster)}
    done: list[Any] = []
    for (base, _), said in zip(places, every, strict=True):
        done += [(base, *one) for one in (*said["read"], *(() if base in of_etcd else said["took"]))]
    return done, page.asked


def metrics_of_etcd(cluster: LocalCluster) -> set[str]:
    """Figures, told to whoever asks, by whatever name; pages of others may load them, and not read them."""
    return {one.metrics for one in cluster.processes if one.role == "etcd"}


@pytest.mark.parametrize(
    ("own", "foreign"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("localhost", EVIL)],
    ids=["another port", "another host", "another site"],
)
def test_pages_of_others_do_nothing(
    cluster: LocalCluster, new_page: Callable[[], Page], foreign_port: int, own: str, foreign: str
) -> None:
    logged_in = new_page()
    log_in(logged_in, admin_at(cluster, own))
    is_docs(logged_in)
    before = what_there_is(cluster)
    page = new_page()
    page.go(f"http://{foreign}:{foreign_port}/")
    done, asked = attack(page, cluster, own)
    assert done == []
    assert_refused(cluster, asked)
    of_admin = [one for one in asked if one.url.startswith(f"{admin_at(cluster, own)}/v1/")]
    went_with = [one for one in of_admin if one.cookies]
    assert bool(went_with) is (own == foreign), "browsers know no ports: it came along, and was worth nothing"
    assert {one.status for one in went_with} <= {403, None}
    assert what_there_is(cluster) == before
    assert sent(logged_in, "GET", "/v1/session")["by"] == "cookie", "nobody was logged out"
    sent(logged_in, "POST", "/v1/logout")


def assert_refused(cluster: LocalCluster, asked: list[Asked]) -> None:
    rest = {cluster.process("admin").http, cluster.process("connect-1").http}
    for one in asked:
        place = urlsplit(one.url)
        if place.netloc.rpartition(":")[2] not in {str(at).rpartition(":")[2] for at in rest}:
            continue
        told = place.path == "/health/cluster" or one.method == "OPTIONS"
        assert one.status in {None, 401, 403, 405, 415, 421} or told, one


def test_a_name_that_is_led_here_gets_nothing(cluster: LocalCluster, new_page: Callable[[], Page]) -> None:
    logged_in = new_page()
    log_in(logged_in, admin_at(cluster, "localhost"))
    is_docs(logged_in)
    before = what_there_is(cluster)
    for at, ways in ports(cluster).items():
        base = f"http://{EVIL}:{at.rpartition(':')[2]}"
        page = new_page()
        with page.served(f"{base}/", "<!doctype html><body>evil</body>"):
            page.go(f"{base}/")
        said = page.run(f"({ATTACK})({json.dumps(base)}, {json.dumps(ways)})")
        if at in metrics_of_etcd(cluster):
            assert "orders" not in json.dumps(said)
            continue
        assert {one[2] for one in said["read"] if isinstance(one[2], int)} <= {421}, (at, said)
        for one in said["read"]:
            assert isinstance(one[2], int) or re.search("does not answer as|ask by an address|^$", one[2]), (at, one)
        assert said["took"] == [], (at, said["took"])
        assert not any(one.cookies for one in page.asked)
    assert what_there_is(cluster) == before
    assert sent(logged_in, "GET", "/v1/session")["by"] == "cookie"
