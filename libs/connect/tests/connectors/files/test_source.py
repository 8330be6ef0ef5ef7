"""Files that grow, shrink, are replaced, are half, are damaged: each row once, each bad record with its offset."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from headrace_connect.connectors.files import FilesSource
from headrace_connect.connectors.files.settings import SourceSettings
from headrace_connect.plugin import Chunk, Position, RetriableError, Split


class Reading:
    """One split, read by one instance after another, each from what the one before committed."""

    def __init__(self, directory: Path, name: str, **values: Any) -> None:
        self.settings = SourceSettings(str(directory), **values)
        self.split = Split(name, {"name": name})
        self.rows: list[Any] = []
        self.bad: list[tuple[bytes, str]] = []
        self.position: Position | None = None
        self.now_s = 0.0
        self._chunks: Iterator[Chunk] | None = None
        self._source: FilesSource | None = None

    @property
    def is_still(self) -> bool:
        """What the source says of the split, which was read to its end."""
        assert self._source is not None, "it was read"
        return self._source.is_still(self.split)

    def restart(self) -> None:
        """As after a crash: what is known is the position, as JSON."""
        if self._chunks is not None:
            self._chunks.close()  # type: ignore[attr-defined]
        self._chunks = None

    def read(self, chunks_max: int = 1_000) -> list[Any]:
        """Read until there is nothing more, or so many chunks; the new rows."""
        if self._chunks is None:
            source = self._source = started(self.settings)
            source.monotonic_s = lambda: self.now_s  # type: ignore[misc]
            self._chunks = iter(source.read(self.split, self.position))
        count = len(self.rows)
        for _ in range(chunks_max):
            chunk = next(self._chunks)
            rows = chunk.rows.to_pylist() if isinstance(chunk.rows, pa.Table) else list(chunk.rows)
            self.rows += rows
            self.bad += [(one.raw, one.reason) for one in chunk.bad]
            self.position = json.loads(json.dumps(dict(chunk.position)))
            if chunk.drained:
                return self.rows[count:]
        assert chunks_max < 1_000, "a source that is never drained"
        return self.rows[count:]


def started(values: SourceSettings) -> FilesSource:
    source = FilesSource(values)
    source.start()
    return source


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path, "a", format="lines")


def values(rows: list[Any]) -> list[str]:
    return [row["value"] for row in rows]


pieces = st.lists(
    st.sampled_from(['"', ",", "\n", "\r\n", "\r", "aé", "b", '{"a":1}\n', "x,y\n", '"p\nq",z\n']), max_size=12
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["lines", "csv", "jsonl"]),
    st.sampled_from(["utf-8", "utf-16-le", "latin-1"]),
    pieces,
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.booleans()), max_size=12),
)
def test_any_cutting_into_appends_and_reads_gives_the_same_rows_once(
    format_: str, encoding: str, parts: list[str], steps: list[tuple[int, int, bool]]
) -> None:
    whole = "".join(["h1,h2\n", *parts]).encode(encoding)
    options = {"format": format_, "encoding": encoding, "batch_bytes": 32}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "once").write_bytes(whole)
        once = Reading(directory, "once", **options)
        once.read()
        pieced = Reading(directory, "pieced", **options)
        done = 0
        with (directory / "pieced").open("ab", buffering=0) as file:
            for count, chunks, restart in [*steps, (len(whole), 1_000, True)]:
                file.write(whole[done : done + count])
                done += count
                pieced.read(chunks)
                if restart:
                    pieced.restart()
        pieced.read()
        assert pieced.rows == once.rows
        raws = [[raw for raw, _ in one.bad] for one in (once, pieced)]
        assert raws[0] == raws[1]
        assert pieced.position is not None
        assert once.position is not None
        assert pieced.position["offset"] == once.position["offset"]


def test_half_a_line_waits(tmp_path: Path, reading: Reading) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntw")
    assert values(reading.read()) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n")
    assert values(reading.read()) == ["two"]


def test_a_file_that_is_quiet_is_complete(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "a", format="lines", complete_after_ms=5_000)
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo")
    assert values(reading.read()) == ["one"]
    reading.now_s = 4.9
    assert values(reading.read()) == []
    reading.now_s = 5.0
    assert values(reading.read()) == ["two"]
    reading.restart()
    with path.open("ab") as file:
        file.write(b"\nthree\n")
    assert values(reading.read()) == ["three"], "the end of line that came late belongs to two"
    assert reading.bad == []


def test_what_comes_behind_a_record_that_had_no_end_is_damage(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "a", format="lines", complete_after_ms=0)
    path = tmp_path / "a"
    path.write_bytes(b"one")
    reading.read()
    assert values(reading.read()) == []
    with path.open("ab") as file:
        file.write(b"-and-a-half\ntwo\n")
    reading.restart()
    assert values(reading.read()) == ["two"]
    assert [raw for raw, _ in reading.bad] == [b"-and-a-half\n"]
    assert "byte 3" in reading.bad[0][1]


def test_a_file_that_is_replaced_is_read_from_its_start(tmp_path: Path, reading: Reading) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\n")
    reading.read()
    (tmp_path / "b").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "b").replace(path)
    assert values(reading.read()) == ["one", "two", "three"]


def test_a_file_that_is_copied_whole_when_it_grows(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "a", format="lines", identity="content")
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\n")
    reading.read()
    (tmp_path / "b").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "b").replace(path)
    assert values(reading.read()) == ["three"]
    (tmp_path / "b").write_bytes(b"one\ntwo\nthrEe\nfour\n")
    (tmp_path / "b").replace(path)
    assert values(reading.read()) == ["one", "two", "thrEe", "four"]


@pytest.mark.parametrize("content", [b"new\n", b"", b"ONE\ntwo\nthree\n", b"one\nTWO\nthree\n"])
def test_a_file_that_is_written_anew_in_its_place(tmp_path: Path, reading: Reading, content: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\n")
    reading.read()
    reading.restart()
    path.write_bytes(content)  # the same inode
    assert values(reading.read()) == content.decode().splitlines()


def test_a_file_that_begins_as_before_and_is_another(tmp_path: Path, reading: Reading) -> None:
    path = tmp_path / "a"
    header = "x" * 1_500
    path.write_text(f"{header}\none\n")
    reading.read()
    path.write_text(f"{header}\nTWO\nthree\n")  # the same inode, and the same first kilobyte
    assert values(reading.read()) == [header, "TWO", "three"]


def test_a_log_that_is_rotated_is_read_to_its_end_first(tmp_path: Path, reading: Reading) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\n")
    reading.read()
    reading.restart()
    with path.open("ab") as file:
        file.write(b"two\nthree")
    path.rename(tmp_path / "a.1")
    path.write_bytes(b"four\n")
    assert values(reading.read()) == ["two", "three", "four"]
    reading.restart()
    assert values(reading.read()) == []


def test_a_file_that_is_gone_and_comes_back(tmp_path: Path, reading: Reading) -> None:
    path = tmp_path / "a"
    assert reading.read() == []
    path.write_bytes(b"one\n")
    assert values(reading.read()) == ["one"]
    path.unlink()
    assert reading.read() == []
    (tmp_path / "keep").write_bytes(b"")  # takes the inode
    path.write_bytes(b"two\n")
    assert values(reading.read()) == ["two"]


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_files_grow_by_streams(tmp_path: Path, codec: str) -> None:
    lines = [f"line {n}\n".encode() for n in range(2_000)]
    reading = Reading(tmp_path, "a", format="lines", compression=codec, batch_bytes=1_024)
    path = tmp_path / "a"
    whole = b""
    for start in range(0, 2_000, 500):
        whole += (
            pa.compress(b"".join(lines[start : start + 500]), codec, asbytes=True)
            if codec == "zstd"
            else (gzip.compress(b"".join(lines[start : start + 500])))
        )
        path.write_bytes(whole[:-5])
        reading.read(3)
        reading.restart()
        path.write_bytes(whole)
        reading.read(7)
    reading.read()
    assert values(reading.rows) == b"".join(lines).decode().splitlines()
    assert reading.bad == []


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_compressed_file_that_stays_truncated_is_damage(tmp_path: Path, codec: str) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(5_000))
    whole = gzip.compress(lines) if codec == "gzip" else pa.compress(lines, codec, asbytes=True)
    path = tmp_path / ("a.gz" if codec == "gzip" else "a.zst")
    path.write_bytes(whole[: len(whole) // 2])
    reading = Reading(tmp_path, path.name, format="lines", complete_after_ms=10)
    reading.read()
    reading.now_s = 1
    reading.read()
    assert values(reading.rows) == lines.decode().splitlines()[: len(reading.rows)]
    assert len(reading.bad) == 1
    assert "Truncated" in reading.bad[0][1] or "no end" in reading.bad[0][1]
    known = sum(len(row["value"]) + 1 for row in reading.rows)
    assert lines[known:].startswith(reading.bad[0][0])
    reading.restart()
    assert reading.read() == []
    assert len(reading.bad) == 1


def test_garbage_in_a_compressed_file_is_damage_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n") + b"garbage, no gzip")
    reading = Reading(tmp_path, "a.gz", format="lines")
    reading.read()
    assert values(reading.rows) == ["one", "two"]
    assert len(reading.bad) == 1


def test_a_record_that_is_too_long_is_bad_alone(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "a", format="lines", batch_bytes=16)
    (tmp_path / "a").write_bytes(b"one\n" + b"x" * 40 + b"\ntwo\n" + b"0123456789012345\n" + b"012345678901234\n")
    reading.read()
    assert values(reading.rows) == ["one", "two", "012345678901234"]
    assert [raw for raw, _ in reading.bad] == [b"x" * 16, b"0123456789012345"]
    assert "byte 4" in reading.bad[0][1]


def test_a_quote_that_never_closes_takes_one_line(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "a", format="csv", batch_bytes=32)
    (tmp_path / "a").write_bytes(b'a,b\n1,2\n"3,4\n' + b"5,6\n" * 10)
    reading.read()
    assert len(reading.rows) == 11
    assert [raw for raw, _ in reading.bad] == [b'"3,4\n']


def test_a_csv_file_with_a_bad_header_is_refused_and_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa,a\n1,2\n")
    reading = Reading(tmp_path, "a", format="csv")
    assert reading.read() == []
    assert "twice" in reading.bad[0][1]
    reading.restart()
    reading.read()
    assert len(reading.bad) == 1
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbf\n\na,b\n1,2\n")
    (tmp_path / "b").replace(tmp_path / "a")
    assert reading.read() == [{"a": "1", "b": "2"}]


def test_csv_without_a_header(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "a", format="csv", csv_columns=("a", "b"), csv_delimiter="\\t", csv_types="a:int64")
    (tmp_path / "a").write_bytes(b"1\tx\nq\ty\n2\t\n")
    assert reading.read() == [{"a": 1, "b": "x"}, {"a": 2, "b": ""}]
    assert [raw for raw, _ in reading.bad] == [b"q\ty\n"]


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
@pytest.mark.parametrize("batch_rows", [1, 7, 1_000])
def test_row_groups_are_read_once(tmp_path: Path, format_: str, batch_rows: int) -> None:
    table = pa.table({"n": range(95), "text": [f"row {n}" for n in range(95)]})
    write_groups(tmp_path / "a", format_, table, 30)
    reading = Reading(tmp_path, "a", format=format_, batch_rows=batch_rows)
    for _ in range(30):
        reading.read(2)
        reading.restart()
    reading.read()
    assert reading.rows == table.to_pylist()
    write_groups(tmp_path / "a", format_, table.slice(0, 50), 30)
    assert reading.read() == table.slice(0, 50).to_pylist(), "written anew, with the same inode"


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_rows_are_read_once_when_settings_change(tmp_path: Path, format_: str) -> None:
    table = pa.table({"n": range(20)})
    write_groups(tmp_path / "a", format_, table, 10)
    reading = Reading(tmp_path, "a", format=format_, batch_rows=4)
    reading.read(2)
    reading.restart()
    reading.settings = SourceSettings(str(tmp_path), format_, batch_rows=6)  # type: ignore[arg-type]
    reading.read()
    assert reading.rows == table.to_pylist()


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_a_file_that_is_being_written_waits(tmp_path: Path, format_: str) -> None:
    table = pa.table({"n": range(10)})
    path = tmp_path / "a"
    write_groups(path, format_, table, 5)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    reading = Reading(tmp_path, "a", format=format_, complete_after_ms=1_000)
    assert reading.read() == []
    reading.now_s = 1
    reading.read()
    assert len(reading.bad) == 1, "it stayed so"
    reading.restart()
    reading.read()
    assert len(reading.bad) == 1
    path.write_bytes(whole)
    assert reading.read() == table.to_pylist()


def test_a_damaged_row_group_is_left_out(tmp_path: Path) -> None:
    table = pa.table({"n": range(90)})
    path = tmp_path / "a"
    write_groups(path, "parquet", table, 30)
    with parquet.ParquetFile(path) as file:
        column = file.metadata.row_group(1).column(0)
        start, end = column.data_page_offset, column.dictionary_page_offset + column.total_compressed_size
    data = bytearray(path.read_bytes())
    data[start:end] = b"\xff" * (end - start)
    path.write_bytes(data)
    reading = Reading(tmp_path, "a", format="parquet")
    reading.read()
    assert [row["n"] for row in reading.rows] == [*range(30), *range(60, 90)]
    assert "row group 1" in reading.bad[0][1]


def test_files_are_listed_by_their_pattern(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "a.txt", "x/c.csv", "x/y/d.csv", ".hidden.csv", "e.csv.part"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")

    def names(pattern: str) -> list[str]:
        return [split.id for split in started(SourceSettings(str(tmp_path), "csv", pattern)).splits()]

    assert names("*.csv") == ["a.csv", "b.csv"]
    assert names("*/*.csv") == ["x/c.csv"]
    assert names("**/*.csv") == ["a.csv", "b.csv", "x/c.csv", "x/y/d.csv"]
    assert names("**") == ["a.csv", "a.txt", "b.csv", "x/c.csv", "x/y/d.csv"]


def test_a_long_name_has_an_id(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    (deep / "a").write_bytes(b"one\n")
    source = started(SourceSettings(str(tmp_path), "lines", "**"))
    (split,) = source.splits()
    assert len(split.id) == 249
    assert next(iter(source.read(split, None))).rows.to_pylist() == [{"value": "one"}]  # type: ignore[union-attr]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    source = started(SourceSettings(str(tmp_path / "none"), "lines"))
    with pytest.raises(RetriableError, match="none is not there"):
        source.splits()
    assert "cannot be listed" in source.check()[0]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"path": "nope://x/y"}, "cannot be used"),
        ({"path": "s3:///x"}, "names no bucket"),
        ({"path": ""}, "path is empty"),
        ({"encoding": "shift_jis"}, "^encoding: offsets cannot be kept"),
        ({"csv_types": "a:int64"}, "for format=csv"),
        ({"format": "csv", "csv_delimiter": ";;"}, "one ASCII character"),
        ({"format": "csv", "csv_quote": ","}, "the same character"),
        ({"format": "csv", "csv_columns": ("a", "a")}, "twice"),
        ({"format": "csv", "csv_columns": ("a",), "csv_types": "b:int64"}, "not in csv.columns"),
        ({"pattern": "../x"}, "relative to path"),
    ],
)
def test_settings_that_cannot_work(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SourceSettings(**{"path": "/x", "format": "lines"} | values)


def test_offsets_that_somebody_wrote_by_hand(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "a", format="lines")
    for position in (
        {"offset": 5},
        {"id": "1", "offset": -1},
        {"id": 1, "offset": 1},
        {"id": "1", "offset": 1, "x": 2},
    ):
        reading.position = position
        reading.restart()
        with pytest.raises(Exception, match="delete the connector's offsets"):
            reading.read()


def write_groups(path: Path, format_: str, table: pa.Table, rows: int) -> None:
    if format_ == "parquet":
        parquet.write_table(table, path, row_group_size=rows)
        return
    with ipc.new_file(str(path), table.schema) as file:
        for batch in table.to_batches(max_chunksize=rows):
            file.write_batch(batch)


def test_a_pipe_is_no_file(tmp_path: Path, reading: Reading) -> None:
    os.mkfifo(tmp_path / "a")
    assert reading.read() == []


def test_a_pattern_that_matches_nothing_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    source = started(SourceSettings(str(tmp_path), format="lines", pattern="*.csv"))
    assert not source.splits()
    told = f"no file below {tmp_path} matches the pattern *.csv"
    assert told in caplog.text
    assert [told in said for said in source.check()] == [True]
    caplog.clear()
    source = started(SourceSettings(str(tmp_path), format="lines", pattern="*.txt"))
    assert len(source.splits()) == 1
    assert not source.check()
    assert not caplog.text


# --- files that nobody writes to --------------------------------------------------------------------------------------


@pytest.fixture
def resting(tmp_path: Path, reading: Reading) -> Reading:
    """One that has looked the same for long."""
    (tmp_path / "a").write_bytes(b"1\n")
    reading.read()
    reading.now_s = 10
    reading.read()
    assert reading.is_still
    return reading


def test_a_file_is_trusted_to_be_still_when_it_has_looked_the_same_for_some_seconds(
    tmp_path: Path, reading: Reading
) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    for now_s in (0.0, 1.0, 2.9):
        reading.now_s = now_s
        reading.read()
        assert not reading.is_still, "what is written next may have the same time"
    reading.now_s = 3.0
    reading.read()
    assert reading.is_still


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"2\n")


def _overwrite(path: Path) -> None:
    path.write_bytes(b"2\n")


def _overwrite_with_its_times(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path: Path) -> None:
    path.with_name("b").write_bytes(b"2\n")
    os.replace(path.with_name("b"), path)


def _rename(path: Path) -> None:
    path.rename(path.with_name("b"))


@pytest.mark.parametrize("change", [_append, _overwrite, _overwrite_with_its_times, _replace, _rename, os.unlink])
def test_whatever_is_done_to_a_file_it_is_read_again(resting: Reading, tmp_path: Path, change: Any) -> None:
    change(tmp_path / "a")
    assert not resting.is_still
    resting.read()
    assert not resting.is_still


def test_a_file_that_is_taken_as_complete_later_is_read_until_then(tmp_path: Path) -> None:
    reading = Reading(tmp_path, "a", format="lines", complete_after_ms=60_000)
    (tmp_path / "a").write_bytes(b"1\n2")
    for now_s in (0.0, 30.0):
        reading.now_s = now_s
        reading.read()
        assert not reading.is_still
    reading.now_s = 60.0
    assert values(reading.read()) == ["2"]
    reading.read()
    assert reading.is_still


def test_half_a_line_that_may_always_grow_is_no_reason_to_read(tmp_path: Path, reading: Reading) -> None:
    (tmp_path / "a").write_bytes(b"1\n2")
    for now_s in (0.0, 10.0):
        reading.now_s = now_s
        reading.read()
    assert reading.is_still
    _append(tmp_path / "a")
    assert not reading.is_still
    assert values(reading.read()) == ["22"]


def test_a_split_that_nobody_reads_is_not_still(tmp_path: Path) -> None:
    source = started(SourceSettings(str(tmp_path), format="lines"))
    assert not source.is_still(Split("a", {"name": "a"}))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("below/c", ["below/c"]),
        ("none", []),
        ("below", []),
        ("below//c", []),
        ("./a", []),
        ("d.part", []),
        ("[a]", ["a"]),
        ("?", ["a", "b"]),
    ],
)
def test_a_pattern_that_is_a_name_finds_what_one_with_wildcards_would(
    tmp_path: Path, pattern: str, names: list[str]
) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a", "b", "below/c", "d.part"):
        (tmp_path / name).touch()
    source = started(SourceSettings(str(tmp_path), pattern=pattern, format="lines"))
    assert [split.id for split in source.splits()] == names
