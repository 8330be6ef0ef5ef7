"""lake_compact on the lake of a lake-sink that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.connect.handing import Handing

from headrace.testing.clusters import TestCluster
from headrace_connect.connectors.lake_sink import committed_files
from headrace_jobs.arguments import EXIT_WRONG
from headrace_jobs.lake_compact import job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_files_are_put_together_between_commits(
    spark: SparkSession, headrace_cluster: TestCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handing = Handing(headrace_cluster, tmp_path)
    begin = ["--connector", str(handing.file)]
    for _ in range(4):
        handing.fill(10)
        handing.sink()
        assert job.main([*begin, "--keep", "1 millisecond"]) == 0
        handing.check()
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert done["merges"] == 2
    assert done["deleted"] >= 4
    assert done["files_before"] > done["files_after"] == 2
    assert len(committed_files(str(handing.lake))) == 4, "of each partition one, and that of the newest commit"
    assert job.main([*begin, "--keep", "soon"]) == EXIT_WRONG
    handing.fill(10)
    handing.sink()
    handing.check()
