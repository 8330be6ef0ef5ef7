"""
As users have it: the built wheels, no registration, and executors that are processes of their own.

Packages of others come from where the tests have them, as a plain directory on the path: what is installed there in
editable form is not found that way, so that ours come from the wheels alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from headrace.testing.clusters import TestCluster

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[4]
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

def homes(batches):
    import headrace, headrace_common, headrace_spark, pyarrow
    files = [module.__file__ for module in (headrace, headrace_common, headrace_spark)]
    for batch in batches:
        made = {"value": batch.column("value"), "files": [json.dumps(files)] * len(batch)}
        yield pyarrow.RecordBatch.from_pydict(made)

bootstrap, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
frame = spark.read.format("headrace").options(**options).load().select("value")
rows = frame.mapInArrow(homes, "value binary, files string").collect()
kept = []
stream = spark.readStream.format("headrace").options(**options).load()
query = stream.writeStream.foreachBatch(lambda batch, _: kept.extend(batch.collect())).trigger(availableNow=True)
query.option("checkpointLocation", checkpoint).start().awaitTermination()
print("FOUND " + json.dumps({
    "batch": sorted(int(row["value"]) for row in rows),
    "stream": sorted(int(row["value"]) for row in kept),
    "files": sorted({file for row in rows for file in json.loads(row["files"])}),
}))
spark.stop()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The wheels, unpacked into a directory."""
    for package in ("common", "sdk", "spark"):
        build = ["build", "-q", "--wheel", "--offline", "--no-build-isolation", "-o", str(tmp_path / "wheels")]
        subprocess.run([sys.executable, "-m", "uv", *build, str(ROOT / "libs" / package)], check=True, timeout=120)
    wheels = sorted(map(str, (tmp_path / "wheels").glob("*.whl")))
    assert len(wheels) == 3
    into = ["pip", "install", "-q", "--no-deps", "--offline", "--target", str(tmp_path / "installed")]
    subprocess.run([sys.executable, "-m", "uv", *into, *wheels], check=True, timeout=120)
    return tmp_path / "installed"


def test_wheels_in_a_cluster(
    headrace_cluster: TestCluster, fill: Callable[..., None], installed: Path, tmp_path: Path
) -> None:
    topic = headrace_cluster.unique_topic(partitions=2)
    fill(topic, range(50))
    fill(topic, range(50, 80), partition=1)
    (tmp_path / "program.py").write_text(PROGRAM)
    others = str(Path(pyarrow.__file__).parents[1])
    python, path = os.path.realpath(sys.executable), os.pathsep.join([str(installed), others])
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": path,
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    arguments = ["--master", "local-cluster[1,1,1024]", *(f"--conf={name}={value}" for name, value in conf.items())]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))},
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": python,
        "PYSPARK_SUBMIT_ARGS": " ".join([*arguments, "pyspark-shell"]),
    }
    bootstrap = ",".join(headrace_cluster.bootstrap_servers)
    done = subprocess.run(
        [python, str(tmp_path / "program.py"), bootstrap, topic, str(tmp_path / "checkpoint")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found["batch"] == found["stream"] == list(range(80))
    assert len(found["files"]) == 3
    assert all(Path(file).is_relative_to(installed) for file in found["files"])
