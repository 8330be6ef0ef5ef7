"""The log of Spark's file sink: which files count, and what is said when it is not whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import DataLost, NotFound, UnsupportedVersion
from headrace_jobs.topic_to_lake.committed import (
    LOG,
    committed_files,
    files_to_read,
    local_path,
    paths_of,
)


def entry(path: str, action: str = "add") -> str:
    return json.dumps({"path": path, "size": 1, "isDir": False, "action": action})


def log_text(*lines: str) -> str:
    return "\n".join(("v1", *lines))


def test_the_last_compact_file_and_what_follows() -> None:
    names = [str(n) for n in range(9)] + ["9.compact", "10", "11", ".12.tmp", "._SUCCESS.crc", "10.crc"]
    assert [file.name for file in files_to_read(names)] == ["9.compact", "10", "11"]
    assert [file.name for file in files_to_read(["1", "0"])] == ["0", "1"]
    assert files_to_read([".0.tmp"]) == []


def test_a_hole_in_the_log_is_an_error_and_no_shorter_list() -> None:
    for names in (["0", "2"], ["1", "2"], ["9.compact", "11"]):
        with pytest.raises(DataLost, match="no file for the micro-batches"):
            files_to_read(names)


@given(st.integers(0, 60), st.integers(2, 12))
def test_each_micro_batch_is_read_once_whatever_was_compacted(last: int, interval: int) -> None:
    compacts = [batch for batch in range(last + 1) if (batch + 1) % interval == 0]
    names = [str(batch) for batch in range(last + 1) if batch not in compacts]
    names += [f"{batch}.compact" for batch in compacts]
    texts = {
        name: log_text(*(entry(f"f{n}") for n in range(int(name.split(".")[0]) + 1)))
        if name.endswith("compact")
        else log_text(entry(f"f{name}"))
        for name in names
    }
    found = paths_of(texts[file.name] for file in files_to_read(names))
    assert found == [f"f{batch}" for batch in range(last + 1)]


def test_what_was_deleted_does_not_count() -> None:
    assert paths_of([log_text(entry("a"), entry("b")), log_text(entry("a", "delete"))]) == ["b"]


def test_a_log_of_another_form_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="v2"):
        paths_of(["v2\n"])
    for line in ("{", '"x"', '{"size":1}'):
        with pytest.raises(DataLost, match="damaged line"):
            paths_of([log_text(line)])


def test_files_of_killed_attempts_are_not_listed(tmp_path: Path) -> None:
    lake = tmp_path / "a lake"
    (lake / LOG).mkdir(parents=True)
    name = f"{lake.as_uri()}/quality=good/event_date=2026-03-01/part-0.parquet"
    (lake / LOG / "0").write_text(log_text(entry(name)))
    (lake / "orphan.parquet").write_bytes(b"")
    assert [local_path(each) for each in committed_files(str(lake))] == [
        f"{lake}/quality=good/event_date=2026-03-01/part-0.parquet"
    ]
    assert committed_files(lake.as_uri()) == [name]


def test_a_directory_without_a_log_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing was committed"):
        committed_files(str(tmp_path))


def test_names_of_object_stores_keep_their_bucket() -> None:
    assert local_path("s3a://bucket/lake/a%20b.parquet") == "bucket/lake/a b.parquet"
