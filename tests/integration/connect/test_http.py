"""Web hooks and endpoints over real sockets, with processes that are killed with -9: each record once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.connect.killing import RUN_S, run
from tests.integration.connect.web import serving

from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

REQUESTS, SENDERS = 200, 8
STARTS_MAX = 10


def numbers_in(cluster: TestCluster, topic: str) -> Counter[int]:
    """What readers of committed records see."""
    with cluster.consumer(topic, isolation_level="read_committed") as consumer:
        return Counter(json.loads(record.value)["n"] for record in consumer.read_to_end(timeout_ms=60_000))


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def running(
    cluster: TestCluster, directory: Path, config: Mapping[str, Any], kill_at: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """One process, which does not end by itself."""
    file = directory / f"{config['name']}.json"
    file.write_text(json.dumps({"name": config["name"], "config": config}))
    if kill_at:
        (directory / kill_at).write_text("kill")
    command = [
        sys.executable,
        "-m",
        "headrace_cli",
        "connect",
        "run",
        str(file),
        "--bootstrap",
        ",".join(cluster.bootstrap_servers),
    ]
    environment = os.environ | {"HEADRACE_FAILPOINTS_DIR": str(directory)}
    with (directory / "runs.log").open("ab") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def send_all(url: str, answered: list[int], over: threading.Event) -> list[int]:
    """Each request until it is answered with 202 or it is ``over``, by several senders; how often each was sent."""

    def send(number: int) -> int:
        tries = 0
        with httpx.Client(timeout=20) as client:
            while not over.is_set():
                tries += 1
                try:
                    answer = client.post(url, json={"n": number}, headers={"X-Id": f"id-{number}"})
                except httpx.HTTPError:
                    over.wait(0.05)
                    continue
                if answer.status_code == 202:
                    answered.append(number)
                    break
        return tries

    with ThreadPoolExecutor(SENDERS) as pool:
        return list(pool.map(send, range(REQUESTS)))


def test_a_web_hook_is_killed_while_senders_ask(cluster: TestCluster, tmp_path: Path) -> None:
    topic, port = cluster.unique_topic("hook", partitions=2), free_port()
    config = {
        "name": f"hook.{topic}",
        "connector.class": "http-source",
        "topic": topic,
        "listen": f"127.0.0.1:{port}",
        "id.header": "X-Id",
        "id.window": "320",
    }

    def kill_at(step: str) -> None:
        with running(cluster, tmp_path, config, f"connect.source.{step}") as process:
            assert process.wait(RUN_S) == -signal.SIGKILL, (tmp_path / "runs.log").read_text()[-4_000:]

    over = threading.Event()
    with ThreadPoolExecutor(1) as pool, ExitStack() as ending:
        ending.callback(over.set)  # a sender that is not answered does not hold up what has failed
        answered: list[int] = []
        sent = pool.submit(send_all, f"http://127.0.0.1:{port}/", answered, over)
        kill_at("confirmed")
        unanswered: set[int] = set()
        for _ in range(STARTS_MAX):  # a commit has a position alone if nobody has asked before it
            kill_at("committed")
            # Readers may see it later: then the next start knows the number by its id, and answers.
            unanswered = set(numbers_in(cluster, topic)) - set(answered)
            if unanswered:
                break
        assert unanswered, "it was killed between the commit and the answers"
        with running(cluster, tmp_path, config) as process:
            tries = sent.result(RUN_S)
            process.terminate()
            assert process.wait(RUN_S) == 0
    assert sum(tries) > REQUESTS, "some had to ask again"
    found = numbers_in(cluster, topic)
    assert sorted(found) == list(range(REQUESTS))
    assert set(found.values()) == {1}


class Endpoint(BaseHTTPRequestHandler):
    """Takes each key once, and refuses one number."""

    protocol_version = "HTTP/1.1"
    taken: dict[str, int]
    again: list[str]
    bad: int

    def do_POST(self) -> None:
        number = json.loads(self.rfile.read(int(self.headers["content-length"])))["n"]
        key = self.headers["idempotency-key"]
        if number == self.bad:
            self.answer(422)
            return
        if key in self.taken:
            self.again.append(key)
        self.taken.setdefault(key, number)
        self.answer(201)

    def do_OPTIONS(self) -> None:
        self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def endpoint(bad: int) -> Iterator[tuple[str, type[Endpoint]]]:
    handler: type[Endpoint] = type("Handler", (Endpoint,), {"taken": {}, "again": [], "bad": bad})
    with serving(handler) as url:
        yield f"{url}/orders", handler


def test_a_sink_is_killed_between_an_answer_and_its_commit(cluster: TestCluster, tmp_path: Path) -> None:
    topic, rows, bad = cluster.unique_topic("orders", partitions=2), 300, 7
    with cluster.producer() as producer:
        producer.send_many(topic, [json.dumps({"n": n}).encode() for n in range(rows)])
        producer.flush()
    with endpoint(bad) as (url, target):
        config = {
            "name": f"out.{topic}",
            "connector.class": "http-sink",
            "topics": topic,
            "url": url,
            "format": "single",
            "idempotency": "request",
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": f"{topic}-dead",
        }
        run(cluster, tmp_path, config, "connect.sink.committed")
        run(cluster, tmp_path, config)
    assert sorted(target.taken.values()) == [n for n in range(rows) if n != bad]
    assert target.again, "the second run had to send some again"
    assert set(numbers_in(cluster, f"{topic}-dead")) == {bad}
