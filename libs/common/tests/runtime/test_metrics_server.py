"""The metrics port under clients who connect and say nothing, over real sockets."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry

from headrace_common.core.ids import Endpoint
from headrace_common.runtime import metrics_server
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.service import CannotListen

SECONDS = 60


@contextmanager
def serving() -> Iterator[Endpoint]:
    with open_metrics("x", 1, Endpoint("127.0.0.1", 0)) as metrics:
        assert metrics.endpoint is not None
        metrics.meter.create_counter("headrace_answers", description="Answers").add(42)
        yield metrics.endpoint


def connect(endpoint: Endpoint, sent: bytes = b"") -> socket.socket:
    opened = socket.create_connection((endpoint.host, endpoint.port), timeout=SECONDS)
    opened.sendall(sent)
    return opened


def scraped(endpoint: Endpoint, **headers: str) -> bytes:
    with urlopen(Request(f"http://{endpoint}/metrics", headers=headers), timeout=SECONDS) as answer:
        body: bytes = answer.read()
    return body


@pytest.mark.parametrize("half", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"])
def test_a_thousand_silent_connections_cost_one_thread_and_keep_nobody_out(half: bytes) -> None:
    before = set(threading.enumerate())  # some of other tests, which may end meanwhile
    with serving() as endpoint, ExitStack() as stack:
        silent = [stack.enter_context(connect(endpoint, half)) for _ in range(1_000)]
        [own] = set(threading.enumerate()) - before
        assert b"headrace_answers_total" in scraped(endpoint)
        for one in silent[: -metrics_server.CONNECTIONS_MAX]:
            assert ended(one)
    assert not own.is_alive()


def ended(one: socket.socket) -> bool:
    """Whether the server has closed it."""
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_has_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "SECONDS_MAX", 0.03)
    with serving() as endpoint, connect(endpoint, b"GET /") as one:
        assert ended(one)


def test_a_head_without_an_end_is_cut_off() -> None:
    with serving() as endpoint, connect(endpoint, b"GET /metrics HTTP/1.1\r\n" + b"x" * 20_000) as one:
        assert ended(one)


def test_what_is_asked_for_decides_the_form() -> None:
    with serving() as endpoint:
        plain = scraped(endpoint)
        assert b"# HELP headrace_answers_total Answers" in plain
        assert b"headrace_answers_total" in gzip.decompress(scraped(endpoint, **{"Accept-Encoding": "gzip"}))
        assert scraped(endpoint, Accept="application/openmetrics-text; version=1.0.0").endswith(b"# EOF\n")
        with urlopen(Request(f"http://{endpoint}/metrics", method="HEAD"), timeout=SECONDS) as head:
            assert (head.status, head.read()) == (200, b"")


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/metrics", 405), ("GET", "/else", 404)])
def test_there_is_nothing_else(method: str, path: str, status: int) -> None:
    with serving() as endpoint:
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(f"http://{endpoint}{path}", method=method), timeout=SECONDS)
        assert refused.value.code == status
        refused.value.close()


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"\xff\xfe \x00\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics\r\n: \xff\r\n\r\n"]
)
def test_rubbish_is_answered_or_ended(sent: bytes) -> None:
    with serving() as endpoint:
        with connect(endpoint, sent) as one:
            while not ended(one):
                pass
        assert b"headrace_answers_total" in scraped(endpoint)


def test_a_port_that_is_taken_is_refused_with_its_address() -> None:
    with (
        serving() as taken,
        pytest.raises(CannotListen, match=f"cannot listen on {taken}"),
        open_metrics("x", 1, taken),
    ):
        pass


def test_values_whose_labels_come_and_go_are_read_at_each_look() -> None:
    lags = {("a", "0"): 7.0}
    with open_metrics("x", 1, Endpoint("127.0.0.1", 0)) as metrics:
        assert metrics.endpoint is not None
        metrics.family("headrace_lag", "Lag", ["topic", "partition"], lambda: list(lags.items()))
        metrics.family("headrace_seen", "Seen", [], lambda: [((), 3)], counts=True)
        page = scraped(metrics.endpoint)
        assert b'headrace_lag{partition="0",topic="a"} 7.0' in page
        assert b"headrace_seen_total 3.0" in page
        for number in range(2_500):  # more than an instrument of OpenTelemetry keeps
            lags[str(number), "1"] = lags.pop(next(iter(lags)))
        page = scraped(metrics.endpoint)
        assert b'headrace_lag{partition="1",topic="2499"} 7.0' in page
        assert page.count(b"headrace_lag{") == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:9100", 200),
        (b"[::1]:9100", 200),
        (b"LOCALHOST:9100", 200),
        (b"evil.example:9100", 421),
        (b"localhost.evil.example", 421),
        (b"[", 421),
    ],
)
def test_on_loopback_no_name_but_localhost_leads_there(host: bytes, status: int) -> None:
    head = b"GET /metrics HTTP/1.1\r\nHost: " + host + b"\r\n"
    registry = CollectorRegistry()
    local = metrics_server._answer(head, metrics_server._Metrics(registry, local=True))
    assert local.startswith(b"HTTP/1.1 %d " % status)
    assert b"access-control" not in local.lower()
    elsewhere = metrics_server._answer(head, metrics_server._Metrics(registry, local=False))
    assert elsewhere.startswith(b"HTTP/1.1 200 ")


def test_a_scraper_may_say_no_host_and_this_machine_alone_is_local() -> None:
    with serving() as endpoint:
        with connect(endpoint, b"GET /metrics HTTP/1.0\r\n\r\n") as one:
            assert one.recv(12) == b"HTTP/1.1 200"
        with pytest.raises(HTTPError) as refused:
            scraped(endpoint, Host="evil.example")
    assert refused.value.code == 421
