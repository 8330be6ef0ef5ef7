"""A worker of Kafka Connect over a real Kafka, with the connectors that Maven has."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.kafka_side import CACHE, fetch, free_port, java

JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
_START_S: Final = 120.0
_PAUSE_S: Final = 0.2


class Refused(Exception):
    """What the worker said to a request."""


class KafkaConnect:
    """One worker, and its REST interface."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.port = port
        self.pid = process.pid
        self._process, self._log = process, log

    @staticmethod
    @contextmanager
    def running(folder: Path, bootstrap: str, *plugins: str, **settings: Any) -> Iterator[KafkaConnect]:
        """
        Start it, and kill it in the end.

        Args:
            plugins: profiles of kafka.xml, each a connector with libraries of its own.
            settings: of the worker, with ``_`` for ``.``.
        """
        fetch("connect", *plugins)
        port = free_port()
        config = folder / "connect.properties"
        log = folder / "connect.log"
        given = _settings(bootstrap, port) | {name.replace("_", "."): value for name, value in settings.items()}
        given["plugin.path"] = _plugins(folder, plugins)
        config.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        with log.open("wb") as said:
            command = [*java("connect", "-Xmx1G"), "org.apache.kafka.connect.cli.ConnectDistributed", str(config)]
            process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            worker = KafkaConnect(port, process, log)
            worker.wait_for("/connectors", lambda _: True, _START_S)
            yield worker
        finally:
            process.kill()
            process.wait()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """
        The answer, of JSON.

        Raises:
            Refused: it is not a success.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(f"{method} {path}: {error.code} {error.read()[:2000].decode()}") from None
        return json.loads(content) if content else None

    def wait_for(self, path: str, good: Any, seconds: float = 60.0) -> Any:
        """
        Until the answer is good.

        Raises:
            TimeoutError: not in time; with the worker's last lines.
        """
        until = time.monotonic() + seconds
        found: Any = None
        while time.monotonic() < until and self._process.poll() is None:
            try:
                found = self.call("GET", path)
                if good(found):
                    return found
            except (OSError, Refused) as error:
                found = error
            time.sleep(_PAUSE_S)
        raise TimeoutError(f"{path}: {found}\n{self._log.read_text(errors='replace')[-3000:]}")

    def start(self, name: str, config: Mapping[str, str]) -> None:
        """Make a connector of one task, and wait until both run."""
        self.call("PUT", f"/connectors/{name}/config", {"tasks.max": "1", **config})
        self.wait_for(f"/connectors/{name}/status", _runs)


def _plugins(folder: Path, plugins: Iterable[str]) -> Path:
    """A directory with a directory for each of them."""
    path = folder / "plugins"
    path.mkdir()
    for plugin in plugins:
        (path / plugin).symlink_to(CACHE / plugin)
    return path


def _runs(status: Any) -> bool:
    states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
    if "FAILED" in states:
        raise RuntimeError(json.dumps(status)[:3000])
    return bool(status["tasks"]) and set(states) == {"RUNNING"}


def _settings(bootstrap: str, port: int) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "bench",
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": JSON,
        "value.converter": JSON,
        "offset.flush.interval.ms": 500,
        "scheduled.rebalance.max.delay.ms": 0,
        **{
            f"{what}.storage.{key}": value
            for what in ("config", "offset", "status")
            for key, value in {"topic": f"connect-{what}", "replication.factor": 1}.items()
        },
    }
