"""Small files are put together: the rows stay the same, for readers and sinks, killed at any access."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from libs.connect.tests.connectors.lake_sink.lakes import (
    Killed,
    Killer,
    Mortal,
    numbers,
    on,
    opened,
    put,
    started,
    stored,
)
from libs.connect.tests.connectors.lake_sink.merges import compact
from libs.connect.tests.connectors.lake_sink.test_parquet import PAGE
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows
from pyarrow import parquet

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import LakeSink, committed_files, open_dataset
from headrace_connect.connectors.lake_sink.commits import DataFile
from headrace_connect.connectors.lake_sink.merges import plan_bins
from headrace_connect.connectors.lake_sink.merging import merge_files, plan_merge, take_merge
from headrace_connect.connectors.places import find_place
from headrace_connect.plugin import PartitionTaken


def fill(sink: LakeSink, start: int, commits: int) -> int:
    """Commits of three records each, from ``start`` on."""
    for first in range(start, start + 3 * commits, 3):
        put(sink, first, first + 3)
        sink.commit({P0: first + 3}, b"token %d" % first if first % 2 else None)
    return start + 3 * commits


def test_the_newest_commit_stays_and_all_below_is_one_file(tmp_path: Path) -> None:
    place, sink = find_place(str(tmp_path)), opened(tmp_path)
    assert compact(place) == 0, "there is nothing"
    end = fill(sink, 0, 5)
    before = committed_files(str(tmp_path))
    assert compact(place) == 1
    merged, newest = committed_files(str(tmp_path))
    assert newest == before[-1]
    assert merged.startswith(f"{TOPIC}/0/{0:020}-{end - 3:020}-")
    assert parquet.ParquetFile(tmp_path / merged).read().column("n").to_pylist() == list(range(end - 3))
    assert compact(place) == 0, "one file and the newest commit are left"
    end = fill(sink, end, 3)
    assert compact(place) == 1
    assert len(committed_files(str(tmp_path))) == 2
    assert sorted(numbers(tmp_path)) == list(range(end))
    assert started(tmp_path).open([P0], 2) == {P0: end}
    assert all((tmp_path / name).exists() for name in before), "who has listed them reads them"


def test_what_was_replaced_is_deleted_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    place, sink = find_place(str(tmp_path)), opened(tmp_path)
    end = 0
    for hour in range(4):
        end = fill(sink, end, 3)
        compact(place, now_ms=hour * 1_000, keep_ms=1_500)
        assert sorted(numbers(tmp_path)) == list(range(end))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")}
    assert len(files - set(committed_files(str(tmp_path)))) > 2, "of the last merges"
    compact(place, now_ms=100_000, keep_ms=0)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")} == set(
        committed_files(str(tmp_path))
    )
    assert sorted(numbers(tmp_path)) == list(range(end))
    merges = sorted(path.name for path in tmp_path.rglob("merge-*.commit"))
    assert json.loads((tmp_path / TOPIC / "0" / merges[2]).read_text())["cleaned"] == 1


def test_killed_at_any_access(tmp_path: Path) -> None:
    moments: set[str] = set()
    for moment in range(1, 1_000):
        lake = tmp_path / str(moment)
        sink = opened(lake)
        fill(sink, 0, 2)
        compact(find_place(str(lake)), now_ms=1)
        fill(sink, 6, 2)
        killer = Killer(moment)
        try:
            compact(Mortal(lake, killer), now_ms=10, keep_ms=5)
        except Killed:
            moments.add(killer.last)
            assert sorted(numbers(lake)) == list(range(12)), killer.last
        else:
            break
        fill(sink, 12, 1)
        assert compact(find_place(str(lake)), now_ms=20, keep_ms=0) in (0, 1)
        assert sorted(numbers(lake)) == list(range(15)), killer.last
        assert started(lake).open([P0], 2) == {P0: 15}
    assert moments >= {"before write", "behind write", "before commit", "behind commit"}


def test_of_two_one_merges(tmp_path: Path) -> None:
    place, sink = find_place(str(tmp_path)), opened(tmp_path)
    end = fill(sink, 0, 4)
    plan = plan_merge(place, f"{TOPIC}/0", 1 << 20)
    assert plan is not None
    made = {each: merge_files(place, each) for each in plan.bins}
    assert compact(place) == 1
    assert not take_merge(place, plan, made, 0)
    assert sorted(numbers(tmp_path)) == list(range(end))
    assert not any((tmp_path / file.path).exists() for file in made.values())


def test_a_sink_that_was_paused_commits_nothing_below(tmp_path: Path) -> None:
    """Commits stay where they are merged: their places are taken."""
    sink, old = opened(tmp_path), opened(tmp_path)
    put(old, 0, 7)
    end = fill(sink, 0, 4)
    compact(find_place(str(tmp_path)), keep_ms=0)
    with pytest.raises(PartitionTaken):
        old.commit({P0: 7}, None)
    assert sorted(numbers(tmp_path)) == list(range(end))


def test_directories_types_and_void_commits(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by='odd=col("n") % 2', added_columns=("offset",))
    other = on(started(tmp_path), Mortal(tmp_path, lambda moment: moment == "before token"))
    for n in range(6):
        if n == 3:
            other.open([P0], 1)
            other.write(rows([{"n": 99}], start=n))
            with pytest.raises(Killed):
                other.commit({P0: n + 1}, b"never")
            sink.open([P0, P1], 1)
        sink.write(rows([{"n": n, **({"half": n / 2} if n > 2 else {}), "w": n if n < 4 else n + 0.5}], start=n))
        sink.commit({P0: n + 1}, None)
    before = sorted(stored(tmp_path), key=lambda row: row["n"])
    assert [row["n"] for row in before] == list(range(6))
    assert compact(find_place(str(tmp_path))) == 1
    assert sorted(stored(tmp_path), key=lambda row: row["n"]) == before
    files = committed_files(str(tmp_path))
    assert len(files) == 3
    assert {name for file in files for name in parquet.ParquetFile(tmp_path / file).schema.names} == {
        *("n", "half", "w", "__connect_offset")
    }
    assert before[-1] == {"n": 5, "half": 2.5, "w": 5.5, "odd": 1, "__connect_offset": 5}


def test_the_page_has_the_rule(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    fill(sink, 0, 4)
    compact(find_place(str(tmp_path)))
    (block,) = [block for block in PAGE.read_text().split("```") if "def list_files" in block]
    (tmp_path / "rule.py").write_text(block.removeprefix("python\n"))
    listed = runpy.run_path(str(tmp_path / "rule.py"))["list_files"](tmp_path)
    assert sorted(listed) == committed_files(str(tmp_path))


def test_a_reader_goes_on_while_files_are_merged(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    end = fill(sink, 0, 5)
    listed = open_dataset(str(tmp_path), TOPIC)
    compact(find_place(str(tmp_path)))
    assert sorted(listed.to_table().column("n").to_pylist()) == list(range(end))


def test_which_files_are_worth_it() -> None:
    def file(first: int, size: int, directory: str = "t/0") -> DataFile:
        return DataFile(f"{directory}/{first:020}-{first + 1:020}-x.parquet", "t", 1, size)

    files = [file(n, size) for n, size in enumerate([10, 10, 60, 10, 40, 45, 20, 30])]
    assert [[each.bytes for each in one.files] for one in plan_bins(files, 100)] == [[10, 10], [10, 40, 45, 20]]
    assert plan_bins([file(0, 1), file(1, 1, "t/0/day=1")], 100) == []
    assert plan_bins(list(reversed(files)), 100) == plan_bins(files, 100)
    with pytest.raises(InvalidConfig, match="no name of this connector"):
        plan_bins([DataFile("t/0/part-1.parquet", "t", 1, 1)], 100)
