"""A real Kafka (KRaft, one node or three) on loopback, from Maven artifacts in the user's cache directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
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

from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

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


def fetch(*more: str) -> None:
    """Download the artifacts once: what a broker and its tools need, and ``more`` profiles of kafka.xml."""
    if not shutil.which("java") or not shutil.which("mvn"):
        raise PeerMissing("Kafka to compare with needs Java 17 and Maven; install both, or leave --peer away")
    for profile in ("broker", "tools", *more):
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
    """One broker or three; ``flush_each`` syncs every write, as flush ``group`` is to be compared with."""

    def __init__(self, folder: Path, brokers: int) -> None:
        self.folder, self.count = folder, brokers
        self.ports = {number: free_port() for number in range(1, brokers + 1)}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @staticmethod
    @contextlib.contextmanager
    def running(*, brokers: int = 1, flush_each: bool = False, warm: bool = True) -> Iterator[KafkaSide]:
        """Start it, warmed up unless told otherwise; stop it and remove its data. Each broker is a controller too."""
        fetch()
        side = KafkaSide(Path(tempfile.mkdtemp(prefix="bench-kafka-")), brokers)
        controllers = {number: free_port() for number in side.ports}
        try:
            for number in side.ports:
                config = side.config(number)
                config.write_text(_config(side.folder, number, side.ports, controllers, flush_each))
                format_storage = [
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    "aGVhZHJhY2UtYmVuY2gtMQ",
                    "-c",
                    str(config),
                ]
                subprocess.run([*java("broker"), *format_storage], check=True, stdout=subprocess.DEVNULL)
            for number in side.ports:
                side.start(number)
            for port in side.ports.values():
                _wait_for_port(port)
            if warm:
                side.client("produce", topic=side.topic(6, brokers), records=1_000_000, tuned=True)  # its JIT warms up
            yield side
        finally:
            side.stop()
            shutil.rmtree(side.folder, ignore_errors=True)

    def config(self, number: int) -> Path:
        """Its settings file."""
        return self.folder / f"server-{number}.properties"

    def start(self, number: int) -> None:
        """Start this broker, for the first time or again."""
        with (self.folder / f"log-{number}").open("ab") as log:
            command = [*java("broker", *JVM), "kafka.Kafka", str(self.config(number))]
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self, number: int, signum: signal.Signals) -> None:
        """Signal it and wait until it is gone."""
        process = self.processes[number]
        process.send_signal(signum)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End all; their data are removed anyway."""
        for number in self.processes:
            self.end(number, signal.SIGKILL)

    def brokers(self) -> list[int]:
        """The process ids of all brokers."""
        return [process.pid for process in self.processes.values()]

    def active_controller(self) -> int:
        """Who leads the quorum, as its state files say."""
        for number in self.ports:
            state = self.folder / f"data-{number}" / "__cluster_metadata-0" / "quorum-state"
            leader = json.loads(state.read_text()).get("leaderId", -1) if state.exists() else -1
            if leader > 0 and self.processes[leader].poll() is None:
                return int(leader)
        raise RuntimeError("no state file of Kafka's quorum names a leader that runs")

    def leaders(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition → leader, number of replicas in sync."""
        found = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(topic, 10)
        return {number: (p.leader, len(p.isrs)) for number, p in found.topics[topic].partitions.items()}

    def wait_whole(self, topic: str, timeout_seconds: float = 120) -> None:
        """Until every replica is in sync and every broker leads a share.

        Raises:
            TimeoutError: not in time.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            leaders = self.leaders(topic).values()
            if all(in_sync == self.count for _, in_sync in leaders):
                if len({leader for leader, _ in leaders}) == self.count:
                    return
                admin.elect_leaders(ElectionType.PREFERRED).result(30)
            time.sleep(0.2)
        raise TimeoutError(f"topic {topic} was not whole {timeout_seconds:g} s after a fault")

    def topic(self, partitions: int, replicas: int = 1) -> str:
        """A new topic with a leader for each partition."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        shape = {"topic": name, "partitions": partitions, "replicas": replicas}
        run_client("bench.clients.kafka_client", "topic", bootstrap=self.bootstrap, **shape)
        return name

    def client(self, test: str, **options: Any) -> dict[str, float]:
        """Run one client process; its JSON line."""
        return run_client("bench.clients.kafka_client", test, bootstrap=self.bootstrap, **options)

    def java_consumer(self, topic: str, records: int) -> float:
        """Records per second of Kafka's own consumer tool, joining not counted."""
        options = ["--topic", topic, "--num-records", str(records), "--hide-header"]
        return float(self._tool("ConsumerPerformance", options).strip().splitlines()[-1].split(",")[9])

    def java_producer(self, topic: str, records: int, size: int) -> dict[str, float]:
        """Records per second of Kafka's own producer tool, tuned, acks=all."""
        options = ["--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
        tuned = ["acks=all", "batch.size=524288", "linger.ms=10", "buffer.memory=67108864"]
        said = self._tool(
            "ProducerPerformance", [*options, "--command-property", *tuned]
        )  # of repeated ones the last counts
        return {"rec_s": float(re.findall(r"records sent, ([\d.]+) records/sec", said)[-1])}

    def _tool(self, name: str, options: list[str]) -> str:
        command = [*java("tools", "-Xmx512M"), f"org.apache.kafka.tools.{name}", "--bootstrap-server", self.bootstrap]
        return subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=300).stdout


def java(profile: str, *options: str) -> list[str]:
    """How to start a class of these artifacts; its name follows."""
    return ["java", *options, f"-Dlog4j2.configurationFile={CACHE}/log4j2.properties", "-cp", f"{CACHE}/{profile}/*"]


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


def _config(folder: Path, number: int, ports: dict[int, int], controllers: dict[int, int], flush_each: bool) -> str:
    client, controller, brokers = ports[number], controllers[number], len(ports)
    in_sync = 2 if brokers >= 3 else 1
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in controllers.items()),
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": folder / f"data-{number}",
        "num.network.threads": 3,
        "num.io.threads": 8,
        "offsets.topic.replication.factor": brokers,
        "transaction.state.log.replication.factor": brokers,
        "transaction.state.log.min.isr": in_sync,
        "min.insync.replicas": in_sync,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
    }
    if flush_each:
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{k}={v}\n" for k, v in settings.items())


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 300  # a machine that is busy with other work
    while time.monotonic() < deadline:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"port {port} did not open")
