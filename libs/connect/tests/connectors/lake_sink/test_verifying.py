"""What a verifier finds in a lake and repairs, in each format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from libs.connect.tests.connectors.lake_sink.kinds import DELTA, ICEBERG
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import LakeSink, committed_files, open_dataset
from headrace_connect.connectors.lake_sink.records import Records, token_name
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.plugin import Checked, Rows

ADDED = ("partition", "offset")


def settings_of(kind: str, directory: Path, **values: Any) -> SinkSettings:
    given = {"topics": (TOPIC,), "added_columns": ADDED, "table": "t", **values}
    if kind == "parquet":
        return SinkSettings("lake", str(directory), **given)
    return (DELTA if kind == "delta" else ICEBERG).settings(directory, **given)


def put(settings: SinkSettings, *parts: Rows) -> None:
    """Each in a commit of its own."""
    sink = LakeSink(settings)
    sink.start()
    sink.open([P0, P1], 1)
    for part in parts:
        sink.write(part)
        sink.commit({P0 if part.partition == 0 else P1: part.next_offset}, None)
    sink.close([P0, P1])


def verified(settings: SinkSettings, *parts: Rows, first: int = 0, end: int, repair: bool = False) -> Checked:
    """One range of the first partition."""
    verifier = LakeSink(settings).verifier()
    assert not verifier.learns
    assert verifier.begin([P0, P1], repair=repair)[P0] >= end
    found = verifier.check(P0, parts, first, end)
    verifier.finish()
    verifier.close()
    return found


def numbered(start: int, end: int, add: int = 0) -> Rows:
    values = [{"n": n + add, "tags": [str(n)], "x": float("nan") if n % 2 else n / 4} for n in range(start, end)]
    return rows(values, start=start)


def numbers(kind: str, directory: Path) -> list[int]:
    if kind == "parquet":
        return sorted(row["n"] for row in open_dataset(str(directory), "t").to_table().to_pylist())
    return sorted((DELTA if kind == "delta" else ICEBERG).numbers(directory))


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_what_is_wrong_is_found_by_offset_and_repaired(tmp_path: Path, kind: str) -> None:
    settings = settings_of(kind, tmp_path)
    put(settings, numbered(0, 4), numbered(4, 9))
    good = numbered(0, 9)
    assert verified(settings, good, end=9) == Checked(9)
    assert verified(settings, good.slice(2, 4), first=2, end=6) == Checked(4)
    other = numbered(2, 4, add=100)
    wanted = [numbered(0, 2), other, numbered(4, 9)]
    assert verified(settings, *wanted, end=9) == Checked(9, different=(2, 3))
    assert verified(settings, *wanted, end=9, repair=True).repaired == 2
    assert verified(settings, *wanted, end=9) == Checked(9)
    assert numbers(kind, tmp_path) == [0, 1, 4, 5, 6, 7, 8, 102, 103]
    put_on(settings, numbered(9, 11))
    assert numbers(kind, tmp_path)[-4:] == [9, 10, 102, 103], "the next holder goes on behind it"


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_rows_without_a_record_are_never_deleted(tmp_path: Path, kind: str) -> None:
    """Compaction removes records in the middle, and nobody knows of a row whether it was that."""
    settings = settings_of(kind, tmp_path)
    put(settings, numbered(0, 4), numbered(4, 9))
    compacted = [numbered(1, 2), numbered(5, 6)]
    found = Checked(2, unexpected=7)
    assert verified(settings, *compacted, end=9) == found
    assert verified(settings, *compacted, end=9, repair=True) == found
    assert numbers(kind, tmp_path) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    other = [numbered(1, 2), numbered(5, 6, add=100)]
    assert verified(settings, *other, end=9, repair=True) == Checked(2, different=(5,), unexpected=7, repaired=1)
    assert numbers(kind, tmp_path) == [0, 1, 2, 3, 4, 6, 7, 8, 105]
    whole = [numbered(0, 5), numbered(5, 6, add=100), numbered(6, 9)]
    assert verified(settings, *whole, end=9) == Checked(9), "they are as they were, in all columns"
    assert verified(settings, end=9, repair=True) == Checked(unexpected=9), "no record at all"
    assert len(numbers(kind, tmp_path)) == 9


def test_rows_of_records_that_do_not_fit_any_more_are_not_deleted(tmp_path: Path) -> None:
    settings = settings_of("parquet", tmp_path)
    put(settings, rows([{"n": 1}, {"n": 2}, {"n": 3}]))
    now = rows([{"n": 1}]), rows([{"n": "x"}], start=1), rows([{"n": 4}], start=2)
    found = verified(settings, *now, end=3, repair=True)
    assert found == Checked(2, refused=1, different=(2,), unexpected=1, repaired=1)
    assert numbers("parquet", tmp_path) == [1, 2, 4]


def test_what_is_missing_is_written_and_goes_on_behind_it(tmp_path: Path) -> None:
    settings = settings_of("delta", tmp_path)
    put(settings, numbered(0, 9))
    DeltaTable(str(tmp_path / "t")).delete("n in (2, 3)")
    whole = numbered(0, 9)
    assert verified(settings, whole, end=9, repair=True) == Checked(9, missing=(2, 3), repaired=2)
    assert verified(settings, whole, end=9) == Checked(9)


def put_on(settings: SinkSettings, part: Rows) -> None:
    sink = LakeSink(settings)
    sink.start()
    assert sink.open([P0], 2) == {P0: part.offsets[0].as_py()}
    sink.write(part)
    sink.commit({P0: part.next_offset}, None)


def test_parquet_of_several_tables_and_partitions_in_one_commit(tmp_path: Path) -> None:
    """A repair leaves the others as they are, and no file that does not count."""
    settings = settings_of("parquet", tmp_path, table="${topic}", partition_by='odd=(col("n") % 2)')
    parts = [rows([{"n": n} for n in range(4)]), rows([{"n": n} for n in range(4)], partition=P1)]
    put(settings, *parts)
    assert verified(settings, parts[0], end=4) == Checked(4)
    changed = rows([{"n": 7}, {"n": 8}], start=1)
    assert verified(settings, changed, first=1, end=3, repair=True) == Checked(2, different=(1, 2), repaired=2)
    assert verified(settings, changed, first=1, end=3) == Checked(2)
    assert sorted(row["n"] for row in open_dataset(str(tmp_path), TOPIC).to_table().to_pylist()) == [
        0,
        0,
        1,
        2,
        3,
        3,
        7,
        8,
    ]
    assert {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*.parquet")} == set(
        committed_files(str(tmp_path))
    )


def test_records_without_a_value_or_that_do_not_fit_are_no_rows(tmp_path: Path) -> None:
    settings = settings_of("parquet", tmp_path)
    put(settings, rows([{"n": 1}], start=0), rows([{"n": 2}], start=3))
    odd = [
        rows([{"n": 1}]),
        rows(pa.array([None], pa.struct([("n", pa.int64())])), start=1),
        rows([{"n": "x"}], start=2),
    ]
    assert verified(settings, *odd, rows([{"n": 2}], start=3), end=4) == Checked(2, refused=2)


def test_what_was_not_decided_yet_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("parquet", tmp_path)
    put(settings, numbered(0, 3))
    sink = LakeSink(settings)
    sink.start()
    sink.open([P0], 2)
    sink.write(numbered(3, 5))
    lake: Any = sink._lake

    def die(self: Records, token: str) -> bool:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(Records, "use", die)
        with pytest.raises(_Killed):
            sink.commit({P0: 5}, b"token")
    verifier = LakeSink(settings).verifier()
    assert verifier.begin([P0], repair=False) == {P0: 3}
    assert lake._records.use(token_name(b"token")), "nobody gave it up"
    assert LakeSink(settings).verifier().begin([P0], repair=False) == {P0: 5}


class _Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize(
    ("given", "lacks"),
    [({"added_columns": ("partition",)}, "offset"), ({"topics": ("a", "b")}, "topic")],
)
def test_settings_that_do_not_tell_rows(tmp_path: Path, given: dict[str, Any], lacks: str) -> None:
    with pytest.raises(InvalidConfig, match=f"do not say their {lacks}"):
        LakeSink(settings_of("parquet", tmp_path, **given)).verifier()


def test_rows_that_somebody_has_written_twice(tmp_path: Path) -> None:
    settings = settings_of("delta", tmp_path)
    put(settings, numbered(0, 3))
    write_deltalake(str(tmp_path / "t"), DeltaTable(str(tmp_path / "t")).to_pyarrow_table().slice(0, 1), mode="append")
    assert verified(settings, numbered(0, 3), end=3) == Checked(3, unexpected=1)
    assert verified(settings, numbered(1, 3), first=0, end=3, repair=True) == Checked(2, unexpected=2)
    assert numbers("delta", tmp_path) == [0, 0, 1, 2], "nobody knows their record"
    assert verified(settings, numbered(0, 3), end=3, repair=True) == Checked(3, unexpected=1, repaired=1)
    assert numbers("delta", tmp_path) == [0, 1, 2]
