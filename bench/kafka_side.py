"""A real Kafka broker (KRaft, one node) on loopback, from Maven artifacts in the user's cache directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-bench"
# what kafka-server-start gives its process
JVM = ["-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true"]
LOG4J = """appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c)%n
rootLogger.level=ERROR
rootLogger.appenderRef.out.ref=out
"""


class PeerMissing(Exception):
    """Java or Maven is not installed."""


def fetch() -> None:
    """Download the artifacts once."""
    if not shutil.which("java") or not shutil.which("mvn"):
        raise PeerMissing("Kafka to compare with needs Java 17 and Maven; install both, or leave --peer away")
    for profile in ("broker", "tools"):
        target = CACHE / profile
        if target.exists():
            continue
        part = CACHE / f"{profile}.part"
        shutil.rmtree(part, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", str(HERE / "kafka.xml"), "-P", profile, "dependency:copy-dependencies"]
        subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={part}"], check=True)
        part.rename(target)
    (CACHE / "log4j2.properties").write_text(LOG4J)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class KafkaSide:
    """One broker; ``flush_each`` syncs every write, as flush ``group`` is to be compared with."""

    def __init__(self, bootstrap: str, pid: int, folder: Path) -> None:
        self.bootstrap, self.pid, self.folder = bootstrap, pid, folder

    @staticmethod
    @contextlib.contextmanager
    def running(*, flush_each: bool = False) -> Iterator[KafkaSide]:
        """Start it, warmed up; stop it and remove its data afterwards."""
        fetch()
        folder = Path(tempfile.mkdtemp(prefix="bench-kafka-"))
        client, controller = free_port(), free_port()
        config = folder / "server.properties"
        config.write_text(_config(folder, client, controller, flush_each))
        java = ["java", f"-Dlog4j2.configurationFile={CACHE}/log4j2.properties", "-cp", f"{CACHE}/broker/*"]
        cluster_id = "aGVhZHJhY2UtYmVuY2gtMQ"
        format_storage = [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
        subprocess.run(format_storage, check=True, stdout=subprocess.DEVNULL)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([java[0], *JVM, *java[1:], "kafka.Kafka", str(config)], stdout=log, stderr=log)
        side = KafkaSide(f"127.0.0.1:{client}", process.pid, folder)
        try:
            _wait_for_port(client)
            side.client("produce", topic=side.topic(6), records=1_000_000, tuned=True)  # its JIT warms up
            yield side
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            shutil.rmtree(folder, ignore_errors=True)

    def topic(self, partitions: int) -> str:
        """A new topic with a leader for each partition."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        run_client("bench.clients.kafka_client", "topic", bootstrap=self.bootstrap, topic=name, partitions=partitions)
        return name

    def client(self, test: str, **options: Any) -> dict[str, float]:
        """Run one client process; its JSON line."""
        return run_client("bench.clients.kafka_client", test, bootstrap=self.bootstrap, **options)

    def java_consumer(self, topic: str, records: int) -> float:
        """Records per second of Kafka's own consumer tool, joining not counted."""
        command = [
            "java",
            "-Xmx512M",
            f"-Dlog4j2.configurationFile={CACHE}/log4j2.properties",
            "-cp",
            f"{CACHE}/tools/*",
        ]
        command += [
            "org.apache.kafka.tools.ConsumerPerformance",
            "--bootstrap-server",
            self.bootstrap,
            "--topic",
            topic,
        ]
        command += ["--num-records", str(records), "--hide-header"]
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
        return float(out.strip().splitlines()[-1].split(",")[9])


def run_client(module: str, test: str, **options: Any) -> dict[str, float]:
    """Run ``python -m module test --option value …`` and return the JSON line it ends with."""
    command = [sys.executable, "-m", module, test]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif isinstance(value, list):
            command += [f"{flag}={item}" for item in value]
        elif value is not False:
            command.append(f"{flag}={value}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=HERE.parent)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def _config(folder: Path, client: int, controller: int, flush_each: bool) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": folder / "data",
        "num.network.threads": 3,
        "num.io.threads": 8,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
    }
    if flush_each:
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{k}={v}\n" for k, v in settings.items())


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"port {port} did not open")
