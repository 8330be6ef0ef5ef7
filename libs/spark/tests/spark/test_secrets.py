"""A key that a query shows is nowhere that Spark writes: plans, event log, checkpoints, exceptions. And it counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.access import Put, allow
from headrace.testing.clusters import TestCluster
from headrace_common.core.access.api_keys import parse_key
from headrace_spark.core.task_keys import NOTE

if TYPE_CHECKING:
    from .conftest import Reads, Sunk

pytestmark = pytest.mark.spark

CANARY = "User:canary"
ENDED = ("SparkListenerSQLExecutionEnd", "QueryTerminatedEvent")
"""They are in the event log behind all that a query and a stream have written there, options of theirs not among it."""


@pytest.fixture
def key(headrace_cluster: TestCluster) -> Iterator[str]:
    """Of one who may read what begins with ``canary``, and write there."""
    if not headrace_cluster.local.options.closed:
        pytest.skip("the cluster of these tests is open, and asks for no key")
    rules = [
        Put(allow(CANARY, {"read", "write"}, "topic", "canary*")),
        Put(allow(CANARY, {"write"}, "transactional_id", "canary*")),
    ]
    with headrace_cluster.admin() as admin:
        admin.alter_access(rules)
        made = admin.create_key(CANARY)
        yield made.key.reveal()


def keys_of_tasks(cluster: TestCluster, topic: str) -> dict[str, set[str]]:
    """Those for a topic: what they may be used for, by id."""
    with cluster.admin() as admin:
        keys = [key for key in admin.list_keys(CANARY) if key.note == NOTE]
    scopes = {key.id: {f"{','.join(one.operations)} {one.type} {one.pattern}" for one in key.scope} for key in keys}
    return {id: scope for id, scope in scopes.items() if any(grant.endswith(f" {topic}") for grant in scope)}


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def written_by(spark: SparkSession, *more: Path) -> str:
    """All that Spark has written into files, once the last write is in its event log, which it writes behind."""
    # Of the context: it may have been started by the tests of another package, whose directory counts.
    directory = Path(urlsplit(spark.sparkContext.getConf().get("spark.eventLog.dir") or "").path)
    deadline = time.monotonic() + 30
    while True:
        files = [file for place in (directory, *more) for file in place.rglob("*") if file.is_file()]
        text = "\n".join(file.read_bytes().decode(errors="replace") for file in files)
        if all(event in text for event in ENDED) or time.monotonic() > deadline:
            return text
        time.sleep(0.1)


def test_a_key_is_used_and_is_nowhere_to_be_seen(
    spark: SparkSession,
    reads: Reads,
    headrace_cluster: TestCluster,
    fill: Callable[..., None],
    sunk: Callable[..., Sunk],
    key: str,
    tmp_path: Path,
) -> None:
    shown = {"headrace__token": key}
    source, target = headrace_cluster.unique_topic("canary"), headrace_cluster.unique_topic("canary")
    fill(source, range(3))
    frame = reads.batch(source, **shown).load()
    written = frame.select("value").write.format("headrace").mode("append").option("topic", target)
    options = {"headrace.token": key, "transactionalId": "canary"}
    written.options(**reads._options("", {}), **options).save()
    stream = reads.stream(target, startingOffsets="earliest", kafka__isolation__level="read_committed", **shown).load()
    query = sunk(stream, availableNow=True).ended()
    assert query.values() == [0, 1, 2]
    query.query.explain(extended=True)
    texts = [plan_of(frame), plan_of(stream), written_by(spark, tmp_path)]
    with pytest.raises(PySparkException) as refused:
        reads.batch(headrace_cluster.unique_topic("others"), **shown).load().collect()
    texts.append(str(refused.value))
    assert "not there: others" in texts[-1], "it is known by the key of the query, not by what this machine has"
    with pytest.raises(PySparkException) as mistyped:
        reads.batch(source, headrace__token=f"{key[:-1]}{'a' if key[-1] != 'a' else 'b'}").load().collect()
    texts.append(str(mistyped.value))
    for text in texts:
        assert key[:-1] not in text
        assert key.rpartition("_")[2][:20] not in text
    assert not [event for event in ENDED if event not in texts[2]]
    assert "headrace" in texts[2], "the plans are in it"
    assert "redacted" in texts[2]


def test_tasks_show_a_key_that_the_driver_made_for_them(
    reads: Reads, headrace_cluster: TestCluster, fill: Callable[..., None], key: str
) -> None:
    """Spark plans a DataFrame once: later actions on it show what its tasks were given, and nothing of the driver's."""
    source, target = headrace_cluster.unique_topic("canary"), headrace_cluster.unique_topic("canary")
    fill(source, range(3))
    frame = reads.batch(source, headrace__token=key).load()
    assert frame.count() == 3
    ((task_key, scope),) = keys_of_tasks(headrace_cluster, source).items()
    assert scope == {f"READ TOPIC {source}"}
    writing = frame.select("value").write.format("headrace").mode("append").options(**reads._options("", {}))
    writing.options(**{"headrace.token": key, "transactionalId": "canary", "topic": target}).save()
    with headrace_cluster.consumer(target, isolation_level="read_committed") as consumer:
        assert len(consumer.poll(timeout_ms=15_000)) == 3
    (scope,) = keys_of_tasks(headrace_cluster, target).values()
    ids = {f"WRITE TRANSACTIONAL_ID {name}" for name in ("canary", "canary.*", "canary/*")}
    assert scope == {f"WRITE TOPIC {target}", *ids}
    with headrace_cluster.admin() as admin:
        admin.delete_keys([parse_key(key).id])
        assert frame.count() == 3
        admin.delete_keys([task_key])
    with pytest.raises(PySparkException, match=f"there is no API key {task_key}"):
        frame.count()
