"""Small files through the session's file systems: whole, or not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace_jobs.hadoop_files import HadoopFiles

pytestmark = pytest.mark.spark


def test_a_file_is_written_whole_and_again(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(spark)
    for path in (f"{tmp_path}/a b/c.json", f"{(tmp_path / 'd').as_uri()}/e.json"):
        assert files.read(path) is None
        for text in ("one", "zwei \u00e4 \U0001f600", ""):
            files.write(path, text)
            assert files.read(path) == text
    assert sorted(name for name in files.list_names(f"{tmp_path}/a b") if not name.endswith(".crc")) == ["c.json"]
    assert files.list_names(f"{tmp_path}/none") == []
