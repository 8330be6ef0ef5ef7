"""The block with Spark of the README, and docs/spark.md, as they stand and in their order, on a fresh cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace_cli.demo.spark import CONF
from headrace_cli.spark.java import find_java

from .reader import Reader, cluster_in, nothing_left_running
from .test_pages import OF_KUBERNETES, OF_MAKE, written

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

OF_CLIENTS = "needs no Spark: test_pages.py"
ORDERS = range(100)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with nothing_left_running(tmp_path):
        yield tmp_path


def reader(directory: Path, **given: Any) -> Reader:
    """With a Java, and a Spark that starts as fast as one can for a few records."""
    java = find_java(os.environ)
    assert java is not None, "make setup-spark has installed one"
    words = " ".join(f"--conf '{name}={value}'" for name, value in CONF.items())
    environment = {
        "JAVA_HOME": str(java),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] --conf spark.ui.enabled=false {words} pyspark-shell",
    }
    return Reader(directory, environment=environment, **given)


def test_the_block_with_spark_of_the_readme(directory: Path) -> None:
    """After what it needs: a cluster, topic ``orders``, and the name ``headrace``."""
    reader(
        directory,
        left_out={
            "make run ": OF_MAKE,
            "make images": OF_KUBERNETES,
            **dict.fromkeys(
                ("charge(record.value)", '"shipping", ', "producer.transaction(consumer)", "# totals.py"), OF_CLIENTS
            ),
        },
        endless={"SparkSession": lambda: written(directory, "copy", 2)},
    ).read("README.md")


def test_the_page_about_spark(directory: Path) -> None:
    page = reader(directory)
    page.shell("headrace up --brokers 1 --detach")
    page.read("docs/spark.md")
    assert "95\n" in page.said, "partition 0 from its fifth, partition 1 whole"
    lake = pq.read_table(directory / "lake", columns=["total"]).column(0).to_pylist()
    assert sorted(int(total) for total in lake) == list(ORDERS)
    cluster = cluster_in(directory)
    found: dict[str, list[bytes | None]] = {}
    for topic in ("totals", "big-orders", "from-old-spark", "orders-copy"):
        with cluster.consumer(topic, isolation_level="read_committed") as consumer:
            found[topic] = [record.value for record in consumer.read_to_end()]
    assert len(found["totals"]) == 10
    for topic, expected in (("big-orders", range(50, 100)), ("from-old-spark", ORDERS), ("orders-copy", ORDERS)):
        assert sorted(int(value or b"") for value in found[topic]) == list(expected), topic
