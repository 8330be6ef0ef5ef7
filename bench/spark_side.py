"""
A Spark session of two cores, and what it reads from and writes to: Headrace, a real Kafka. Called by ``bench.spark*``.

Headrace's source has the options of Spark's Kafka source, so a ``Broker`` is the same calls with another format.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.headrace_side import HeadraceSide
from bench.kafka_side import CACHE, HERE, KafkaSide, PeerMissing
from bench.machine import cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def kafka_jars() -> Sequence[Path]:
    """Spark's Kafka source, downloaded once.

    Raises:
        PeerMissing: there is no Maven.
    """
    target = CACHE / "spark"
    if not target.exists():
        if not shutil.which("mvn"):
            raise PeerMissing("Spark's Kafka source comes with Maven; install it, or say --no-peer")
        part = CACHE / "spark.part"
        shutil.rmtree(part, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", str(HERE / "spark.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={part}"], check=True)
        part.rename(target)
    return sorted(target.glob("*.jar"))


@contextlib.contextmanager
def session(folder: Path, jars: Sequence[Path]) -> Iterator[SparkSession]:
    """``local[2]`` with Spark's defaults, but for what is watched and where files go."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("bench")
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "5000",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **({"spark.jars": ",".join(map(str, jars))} if jars else {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # what fails is raised; a query that is stopped is none of it
    try:
        yield spark
    finally:
        spark.stop()


@dataclass(frozen=True, slots=True)
class Took:
    """What one thing cost."""

    wall: float
    spark: float
    """CPU seconds of the JVM and its Python processes."""
    brokers: float
    """CPU seconds of the processes of the cluster, whoever they served."""

    @property
    def cpu(self) -> float:
        """All of it."""
        return self.spark + self.brokers


@dataclass(frozen=True, slots=True)
class Broker:
    """One side: a cluster with a format of Spark's."""

    format: str
    bootstrap: str
    pids: tuple[int, ...]
    cluster: Any
    """``HeadraceSide`` or ``KafkaSide``: both make topics and run clients."""

    def options(self, **more: str) -> dict[str, str]:
        """The cluster, and more."""
        return {"kafka.bootstrap.servers": self.bootstrap, **more}

    def topic(self, partitions: int = 6) -> str:
        """A new one."""
        return str(self.cluster.topic(partitions))

    def fill(self, topic: str, records: int, size: int) -> None:
        """Random values, not compressed, in batches of up to a megabyte on both sides."""
        ours: dict[str, Any] = {"mode": "many", "set": ["batch_size=1000000"]}
        theirs: dict[str, Any] = {"mode": "batch", "tuned": True}
        how = ours if self.format == "headrace" else theirs
        self.cluster.client("produce", topic=topic, records=records, size=size, **how)

    def read(self, spark: SparkSession, topic: str, **more: str) -> DataFrame:
        """The whole topic."""
        return spark.read.format(self.format).options(**self.options(subscribe=topic, **more)).load()

    def stream(self, spark: SparkSession, topic: str) -> DataFrame:
        """What comes to it from now on."""
        options = self.options(subscribe=topic, startingOffsets="latest")
        return spark.readStream.format(self.format).options(**options).load()


@dataclass(frozen=True, slots=True)
class Bench:
    """What a suite gets."""

    spark: SparkSession
    folder: Path
    headrace: Broker
    kafka: Broker | None
    runs: int

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """The sides that are there."""
        return (self.headrace, self.kafka) if self.kafka else (self.headrace,)

    @property
    def jvm(self) -> int:
        """Its process; Spark's Python processes are its children."""
        gateway: Any = self.spark.sparkContext._gateway
        return int(gateway.proc.pid)

    def took(self, action: Callable[[], object], broker: Broker | None = None) -> Took:
        """Do it, and say what it cost."""
        pids = broker.pids if broker else ()
        spark, brokers, wall = cpu_seconds([self.jvm]), cpu_seconds(pids), time.perf_counter()
        action()
        wall = time.perf_counter() - wall
        return Took(wall, cpu_seconds([self.jvm]) - spark, cpu_seconds(pids) - brokers)


@contextlib.contextmanager
def running(runs: int, *, peer: bool) -> Iterator[Bench]:
    """Both clusters of one broker each, and a session."""
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        jars = kafka_jars() if peer else ()
        ours = stack.enter_context(HeadraceSide.running(flush="os"))
        pids = tuple(p.pid for p in ours.cluster.processes if p.pid is not None)
        headrace = Broker("headrace", ours.bootstrap, pids, ours)
        kafka = None
        if peer:
            theirs = stack.enter_context(KafkaSide.running())
            kafka = Broker("kafka", theirs.bootstrap, tuple(p.pid for p in theirs.processes.values()), theirs)
        spark = stack.enter_context(session(folder, jars))
        yield Bench(spark, folder, headrace, kafka, runs)
