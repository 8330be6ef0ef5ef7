"""lake_follow as a scheduler runs it, in turn with lake-sink. What both do at once is tested without Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.connect.handing import Handing

from headrace.testing.clusters import TestCluster
from headrace_jobs.arguments import EXIT_FAILED, EXIT_WRONG
from headrace_jobs.lake_follow import job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    found: dict[str, int] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_forth_and_back(
    spark: SparkSession, headrace_cluster: TestCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handing = Handing(headrace_cluster, tmp_path, **{"partition.by": 'of=col("day")', "errors.tolerance": "all"})
    for turn in range(2):
        handing.fill(60, **({"more": turn} if turn else {}))
        handing.sink()
        handing.check()
        handing.fill(60, late=1.5)
        with headrace_cluster.producer() as producer:
            producer.send(handing.topic, b"{broken", partition=1)
            producer.send(handing.topic, b'{"n": 1, "more": "no number"}' if turn else None, partition=0)
        handing.follow(job.main, "--max-offsets-per-commit", "50")
        done = summary(capsys)
        assert done["rows"] == 60
        assert done["commits"] >= 4
        assert done["taken"] == 0
        handing.check()
        handing.follow(job.main)
        assert summary(capsys) == {"commits": 0, "rows": 0, "files": 0, "taken": 0}
    assert {row["of"] for row in handing.rows()} == {0, 1, 2}
    assert Counter(row["late"] for row in handing.rows()) == {None: 120, 1.5: 120}


def test_what_it_refuses(
    spark: SparkSession, headrace_cluster: TestCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handing = Handing(headrace_cluster, tmp_path)
    begin = ["--connector", str(handing.file), "--bootstrap", handing.bootstrap]
    with headrace_cluster.producer() as producer:
        producer.send(handing.topic, b"{broken", partition=1)
    assert job.main(begin) == EXIT_FAILED
    error = capsys.readouterr().err
    assert f"record {handing.topic}-1 offset 0 cannot be a row" in error
    assert "errors.tolerance=all drops it" in error
    assert list(handing.lake.rglob("*.commit")) == []
    handing.file.write_text(json.dumps(handing.config | {"format": "delta"}))
    assert job.main(begin) == EXIT_WRONG
    assert "format=parquet" in capsys.readouterr().err
    handing.file.write_text(json.dumps(handing.config | {"connector.class": "files-sink"}))
    assert job.main(begin) == EXIT_WRONG
    handing.file.write_text(json.dumps(handing.config | {"topics": "no-such-topic"}))
    assert job.main(begin) == EXIT_WRONG
    assert "no-such-topic" in capsys.readouterr().err
