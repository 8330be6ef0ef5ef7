"""lake_compact on a Delta table: no Spark is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from headrace_jobs.arguments import EXIT_WRONG
from headrace_jobs.lake_compact import job


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for n in range(4):
        properties = CommitProperties(app_transactions=[Transaction("headrace/lake/orders/0", n + 1)])
        rows = pa.table({"n": [n], "x": [9 - n]})
        write_deltalake(str(tmp_path / "orders"), rows, mode="append", commit_properties=properties)
    return tmp_path


def given(path: Path, **more: str) -> list[str]:
    config = {"name": "lake", "connector.class": "lake-sink", "topics": "orders", "path": str(path), "format": "delta"}
    return ["--connector-json", json.dumps({**config, **more})]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert job.main(argv) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_files_are_put_together_and_deleted_later(
    lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = run(capsys, *given(lake))
    assert done == {"merges": 1, "files_before": 4, "files_after": 1, "deleted": 0, "lost": 0}
    table = DeltaTable(str(lake / "orders"))
    assert sorted(table.to_pyarrow_table().column("n").to_pylist()) == [0, 1, 2, 3]
    assert table.transaction_version("headrace/lake/orders/0") == 4
    assert run(capsys, *given(lake), "--keep", "1 hour")["deleted"] == 0, "it is younger"
    done = run(capsys, *given(lake), "--z-order", " n,")
    assert (done["files_before"], done["files_after"]) == (1, 1)
    assert DeltaTable(str(lake / "orders")).to_pyarrow_table().column("n").to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("more", "argv", "said"),
    [
        ({}, ["--z-order", "y"], "has no column 'y'"),
        ({}, ["--keep", "soon"], "--keep"),
        ({}, ["--target-mb", "0"], "--target-mb"),
        ({"format": "parquet"}, ["--z-order", "x"], "--z-order is for format=delta"),
        ({"format": "iceberg", "catalog.type": "rest", "catalog.uri": "http://x"}, [], "rewrite_data_files"),
    ],
)
def test_what_is_wrong_is_said(
    lake: Path, capsys: pytest.CaptureFixture[str], more: dict[str, str], argv: list[str], said: str
) -> None:
    assert job.main([*given(lake, **more), *argv]) == EXIT_WRONG
    assert said in capsys.readouterr().err
