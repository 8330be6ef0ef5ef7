"""One table of Delta or Iceberg: its rows, who of two holders commits, tokens, and what it has no form of."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from libs.connect.tests.connectors.lake_sink.holders import Holder, Holders
from libs.connect.tests.connectors.lake_sink.kinds import DELTA, ICEBERG, TableKind, load
from libs.connect.tests.connectors.sql_sink.records import P0, P1, rows
from pyiceberg.table import Transaction

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink import LakeSink
from headrace_connect.connectors.lake_sink import delta as module
from headrace_connect.connectors.lake_sink.delta import DeltaLake
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.plugin import PartitionTaken, RetriableError, RowsRefused


@pytest.fixture(params=[DELTA, ICEBERG], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> TableKind:
    found: TableKind = request.param
    return found


def put(sink: LakeSink, start: int, end: int, partition: TopicPartition = P0) -> None:
    sink.write(rows([{"n": n} for n in range(start, end)], start=start, partition=partition))


def test_rows_and_their_position_come_together(kind: TableKind, tmp_path: Path) -> None:
    sink = kind.opened(tmp_path)
    sink.commit({P0: 2}, None)  # there is no table yet
    put(sink, 3, 5)
    sink.commit({P0: 5}, None)
    sink.commit({P0: 7}, None)
    put(sink, 7, 8)
    sink.write(rows([{"n": 8, "new": {"a": [1]}}], start=8))
    sink.commit({P0: 9}, b"token")
    assert kind.numbers(tmp_path) == [3, 4, 7, 8]
    assert kind.stored(tmp_path)[-1]["new"] == {"a": [1]}
    again = kind.started(tmp_path)
    assert again.open([P0, P1], 2) == {P0: 9}
    assert again.settle(b"token")


def test_positions_outlive_checkpoints_and_the_commits_of_others(tmp_path: Path) -> None:
    sink = DELTA.opened(tmp_path)
    put(sink, 0, 2)
    sink.commit({P0: 2}, b"token")
    table = DeltaTable(str(tmp_path / "t"))
    table.optimize.compact()
    table.create_checkpoint()
    again = DELTA.started(tmp_path)
    assert again.open([P0], 1) == {P0: 2}
    assert again.settle(b"token")
    put(sink, 2, 3)
    sink.commit({P0: 3}, None)
    assert DELTA.numbers(tmp_path) == [0, 1, 2]


def test_positions_are_changed_and_holders_of_before_are_fenced(kind: TableKind, tmp_path: Path) -> None:
    old, other = kind.opened(tmp_path), kind.started(tmp_path)
    other.rewind({P0: None})
    assert kind.read(tmp_path) is None, "and none is made for that"
    put(old, 0, 5)
    old.commit({P0: 5}, None)
    put(old, 5, 8)
    other.rewind({P0: 3, P1: 7})
    with pytest.raises(PartitionTaken):
        old.commit({P0: 8}, None)
    assert other.open([P0, P1], 2) == {P0: 3, P1: 7}
    put(other, 3, 6)
    other.commit({P0: 6}, None)
    assert kind.numbers(tmp_path) == [0, 1, 2, 3, 3, 4, 4, 5], "what comes again is there again"
    other.rewind({P0: 100})
    with pytest.raises(PartitionTaken):
        other.commit({P0: 7}, None)
    assert other.open([P0], 2) == {P0: 100}, "others are skipped"
    put(other, 100, 101)
    other.commit({P0: 101}, None)
    other.rewind({P0: None, P1: None, TopicPartition("gone", 0): None})
    assert other.open([P0, P1], 2) == {}
    put(other, 0, 1)
    other.commit({P0: 1}, None)
    assert kind.started(tmp_path).open([P0, P1], 3) == {P0: 1}


def test_positions_are_set_before_there_is_a_table(kind: TableKind, tmp_path: Path) -> None:
    sink = kind.started(tmp_path)
    sink.rewind({P0: 3})
    assert sink.open([P0], 1) == {P0: 3}
    put(sink, 3, 5)
    sink.commit({P0: 5}, None)
    assert kind.numbers(tmp_path) == [3, 4]


def test_a_commit_that_comes_while_positions_are_changed(
    kind: TableKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes place before, or not at all; the new positions count."""
    old, other = kind.opened(tmp_path), kind.started(tmp_path)
    put(old, 0, 5)
    old.commit({P0: 5}, None)
    put(old, 5, 8)
    lake = other._lake
    commit, meanwhile = lake._commit, [True]  # type: ignore[attr-defined]

    def late(table: Any, given: Any, numbers: Any) -> None:
        if meanwhile:
            meanwhile.clear()
            old.commit({P0: 8}, None)
        commit(table, given, numbers)

    monkeypatch.setattr(lake, "_commit", late)
    other.rewind({P0: 2})
    assert kind.started(tmp_path).open([P0], 2) == {P0: 2}
    assert kind.numbers(tmp_path) == list(range(8))


def test_the_holder_that_was_paused_writes_nothing_more(kind: TableKind, tmp_path: Path) -> None:
    old, new = kind.opened(tmp_path), kind.opened(tmp_path)
    put(new, 0, 3)
    new.commit({P0: 3}, None)
    put(old, 0, 8)
    with pytest.raises(PartitionTaken):
        old.commit({P0: 8}, None)
    assert kind.numbers(tmp_path) == [0, 1, 2]


def test_who_commits_between_look_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen the same table."""
    sink, other, third = DELTA.opened(tmp_path), DELTA.opened(tmp_path), DELTA.started(tmp_path)
    put(sink, 0, 1)
    sink.commit({P0: 1}, None)
    for one in (sink, other):
        one.open([P0], 1)
        put(one, 1, 3)
    third.open([P1], 1)
    put(third, 0, 1, P1)

    def meanwhile(table: DeltaTable, *args: Any, **named: Any) -> None:
        monkeypatch.undo()
        third.commit({P1: 1}, None)  # no conflict: another partition
        other.commit({P0: 3}, None)
        write_deltalake(table, *args, **named)

    monkeypatch.setattr(module, "write_deltalake", meanwhile)
    with pytest.raises(RetriableError, match="Concurrent transaction"):
        sink.commit({P0: 3}, None)
    assert sink.open([P0], 1) == {P0: 3}
    assert DELTA.numbers(tmp_path) == [0, 1, 2, 0]


def test_two_make_the_table_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake does not look for conflicts with the first commit of a table, so that has no rows."""
    sink, other = DELTA.opened(tmp_path), DELTA.opened(tmp_path)
    for one in (sink, other):
        put(one, 0, 2)

    create = DeltaTable.create

    def meanwhile(*args: Any, **named: Any) -> DeltaTable:
        monkeypatch.undo()
        other.commit({P0: 2}, None)
        return create(*args, **named)

    monkeypatch.setattr(DeltaTable, "create", meanwhile)
    with pytest.raises(PartitionTaken):
        sink.commit({P0: 2}, None)
    assert DELTA.numbers(tmp_path) == [0, 1]


def test_a_token_that_was_given_up(kind: TableKind, tmp_path: Path) -> None:
    sink = kind.opened(tmp_path)
    put(sink, 0, 1)
    assert not kind.started(tmp_path).settle(b"early"), "there is no table yet"
    with pytest.raises(PartitionTaken):
        sink.commit({P0: 1}, b"early")
    sink.open([P0], 1)
    put(sink, 0, 1)
    sink.commit({P0: 1}, None)
    assert not kind.started(tmp_path).settle(b"late")
    assert not kind.started(tmp_path).settle(b"late")
    put(sink, 1, 2)
    with pytest.raises(PartitionTaken):
        sink.commit({P0: 2}, b"late")
    assert kind.numbers(tmp_path) == [0]
    assert not sink.settle(b"early")


def test_a_token_is_settled_while_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, other = DELTA.opened(tmp_path), DELTA.started(tmp_path)
    put(sink, 0, 1)
    sink.commit({P0: 1}, None)
    put(sink, 1, 2)

    def meanwhile(*args: Any, **named: Any) -> None:
        monkeypatch.undo()
        assert not other.settle(b"token")
        write_deltalake(*args, **named)

    monkeypatch.setattr(module, "write_deltalake", meanwhile)
    with pytest.raises(RetriableError):
        sink.commit({P0: 2}, b"token")
    assert DELTA.numbers(tmp_path) == [0]
    assert sink.open([P0], 1) == {P0: 1}


def test_all_records_so_far_are_dead_letters(kind: TableKind, tmp_path: Path) -> None:
    sink = kind.opened(tmp_path)
    sink.commit({P0: 2}, b"token")
    assert kind.started(tmp_path).open([P0], 1) == {P0: 2}
    put(sink, 2, 3)
    sink.commit({P0: 3}, None)
    assert kind.numbers(tmp_path) == [2]
    none = kind.opened(tmp_path, table="u", added_columns=())
    with pytest.raises(InvalidConfig, match="make the table"):
        none.commit({P0: 2}, b"another")


def test_types_of_columns(kind: TableKind, tmp_path: Path) -> None:
    values = pa.StructArray.from_arrays(
        [
            pa.array([float("nan")]),
            pa.array([2**64 - 1], pa.uint64()),
            pa.array([1_500], pa.timestamp("ms")),
            pa.array([253_402_300_799_999_999 + (kind is DELTA)], pa.timestamp("us", "Europe/Berlin")),
            pa.array(["a\0b"], pa.large_string()),
            pa.array(["x"]).dictionary_encode(),
            pa.array([[{"a": 1}]]),
            pa.array([{"a": None, "b": 1}]),
        ],
        names=["nan", "unsigned", "ms", "year", "nul", "dictionary", "list", "nulls"],
    )
    sink = kind.opened(tmp_path)
    sink.write(rows(values))
    sink.commit({P0: 1}, None)
    table = kind.read(tmp_path)
    assert table is not None
    assert table.column("year").cast(pa.int64())[0].as_py() == 253_402_300_799_999_999 + (kind is DELTA)
    (found,) = table.drop_columns(["year", "__connect_partition", "__connect_offset"]).to_pylist()
    assert found.pop("nan") != 0
    assert found == {
        "unsigned": 2**64 - 1,
        "ms": datetime.datetime.fromisoformat("1970-01-01T00:00:01.500000"),
        "nul": "a\0b",
        "dictionary": "x",
        "list": [{"a": 1}],
        "nulls": {"b": 1},
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pa.array([1_001], pa.timestamp("ns")), "lose data"),
        (pa.array([10**75], pa.decimal256(76, 0)), "38 digits"),
        (pa.array([{}]), "without fields"),
        (pa.array([{"a": None}]), "without fields"),
        (pa.array([[None]]), "type of its items"),
        (pa.array([datetime.time(1)]), "no form"),
        (pa.array([1.5]), "truncated"),
    ],
)
def test_values_without_a_form(kind: TableKind, tmp_path: Path, value: pa.Array[Any], reason: str) -> None:
    sink = kind.opened(tmp_path)
    sink.write(rows([{"n": 1}]))
    sink.commit({P0: 1}, None)
    name = "n" if pa.types.is_floating(value.type) else "x"
    with pytest.raises(RowsRefused, match=reason):
        sink.write(rows(pa.StructArray.from_arrays([value], names=[name]), start=1))


def test_1600_columns(tmp_path: Path) -> None:
    value = {f"c{n}": n for n in range(1_600)}
    sink = DELTA.opened(tmp_path)
    sink.write(rows([value]))
    sink.commit({P0: 1}, None)
    assert len(DELTA.stored(tmp_path)[0]) == 1_602


def test_partitions_and_columns_that_another_task_adds(kind: TableKind, tmp_path: Path) -> None:
    given = {"partition_by": 'odd=col("n") % 2 == 1'}
    one, other = kind.opened(tmp_path, **given), kind.started(tmp_path, **given)
    other.open([P1], 1)
    one.write(rows([{"n": 1, "a": 1}]))
    other.write(rows([{"n": 2, "b": 1}], partition=P1))
    one.commit({P0: 1}, None)
    with pytest.raises(RetriableError, match="columns"):
        other.commit({P1: 1}, None)
    other.open([P1], 1)
    other.write(rows([{"n": 2, "b": 1}], partition=P1))
    other.commit({P1: 1}, None)
    assert [(row["a"], row["b"], row["odd"]) for row in kind.stored(tmp_path)] == [(1, None, True), (None, 1, False)]
    if kind is DELTA:
        assert DeltaTable(str(tmp_path / "t")).metadata().partition_columns == ["odd"]
    else:
        assert [field.name for field in load(tmp_path).load_table("default.t").spec().fields] == ["odd"]


def test_one_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one table"):
        SinkSettings("lake", str(tmp_path), "delta", topics=("a", "b"))
    assert SinkSettings("lake", str(tmp_path), "delta", topics=("a",)).only_table == "a"
    sink = DELTA.opened(tmp_path, table="${topic}", topics=("other",))
    with pytest.raises(InvalidConfig, match="all of a connector"):
        put(sink, 0, 1)


def test_check_needs_rights(kind: TableKind, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = {"format": "delta", "table": "t"}
    assert LakeSink(SinkSettings("lake", str(tmp_path / "lake"), **given)).check() == []  # type: ignore[arg-type]
    (wrong,) = LakeSink(SinkSettings("lake", str(tmp_path / "file"), **given)).check()  # type: ignore[arg-type]
    assert "may be read and written" in wrong


class HoldersOfTables(Holders):
    """Some commits get no answer."""

    holders = Holders.holders
    kind: TableKind
    COUNT = 9

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0

    def made(self) -> Holder:
        return {"sink": self.kind.started(self.path)}

    def found(self) -> list[tuple[int, int]]:
        return [(row["__connect_partition"], row["n"]) for row in self.kind.stored(self.path)]

    @rule(holder=holders, lost=st.booleans(), has_token=st.booleans())
    def commits(self, holder: Holder, lost: bool, has_token: bool) -> None:
        self.tokens += 1
        token = b"%d" % self.tokens if has_token else None

        def lose() -> None:
            if lost:
                holder["sink"]._lost |= {P0, P1}
                raise RetriableError("nobody answers")

        self.commit(holder, token, lose)
        if token is not None and lost:
            assert holder["sink"].settle(token) in (True, False)


class HoldersOfDelta(HoldersOfTables):
    """With Delta."""

    kind = DELTA


class HoldersOfIceberg(HoldersOfTables):
    """With Iceberg."""

    kind = ICEBERG


SETTINGS = settings(max_examples=2, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestHoldersOfDelta, TestHoldersOfIceberg = HoldersOfDelta.TestCase, HoldersOfIceberg.TestCase
TestHoldersOfDelta.settings = TestHoldersOfIceberg.settings = SETTINGS


def test_the_first_writer_of_a_foreign_table(tmp_path: Path) -> None:
    """A table that was there before, with other applications' transactions."""
    write_deltalake(
        str(tmp_path / "t"),
        pa.table({"n": pa.array([7], pa.int32()), "__connect_partition": [9], "__connect_offset": [0]}),
        commit_properties=CommitProperties(app_transactions=[deltalake.Transaction("spark", 1)]),
    )
    sink = DELTA.opened(tmp_path)
    sink.write(rows([{"n": 1}]))
    with pytest.raises(RowsRefused, match="not in range"):
        sink.write(rows([{"n": 2**40}], start=1))
    sink.open([P0], 1)
    sink.write(rows([{"n": 1}]))
    sink.commit({P0: 1}, None)
    assert DELTA.numbers(tmp_path) == [1, 7]
    assert isinstance(sink._lake, DeltaLake)


def test_positions_of_iceberg_outlive_its_snapshots(tmp_path: Path) -> None:
    sink = ICEBERG.opened(tmp_path)
    put(sink, 0, 1)
    sink.commit({P0: 1}, b"token")
    foreign = load(tmp_path).load_table("default.t")
    foreign.append(pa.table({"n": [7], "__connect_partition": pa.array([9], pa.int32()), "__connect_offset": [0]}))
    for snapshot in foreign.snapshots()[:-1]:
        foreign.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    again = ICEBERG.started(tmp_path)
    assert again.open([P0], 2) == {P0: 1}
    assert again.settle(b"token")
    put(sink, 1, 2)
    sink.commit({P0: 2}, None)
    assert ICEBERG.numbers(tmp_path) == [0, 1, 7]


def test_iceberg_never_repeats_a_commit_that_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has made the table, and whatever its properties say; others who commit meanwhile are no conflict."""
    schema = pa.schema([("n", pa.int64()), ("__connect_partition", pa.int32()), ("__connect_offset", pa.int64())])
    load(tmp_path).create_namespace("default")
    load(tmp_path).create_table("default.t", schema, properties={"commit.retry.num-retries": "9"})
    sink, other, third = ICEBERG.opened(tmp_path), ICEBERG.opened(tmp_path), ICEBERG.started(tmp_path)
    third.open([P1], 1)
    assert load(tmp_path).load_table("default.t").properties["commit.retry.num-retries"] == "0"
    for one in (sink, other):
        put(one, 0, 2)
    put(third, 0, 1, P1)
    commit = Transaction.commit_transaction

    def meanwhile(transaction: Transaction) -> Any:
        monkeypatch.undo()
        third.commit({P1: 1}, None)
        other.commit({P0: 2}, None)
        return commit(transaction)

    monkeypatch.setattr(Transaction, "commit_transaction", meanwhile)
    with pytest.raises(RetriableError, match="t:"):
        sink.commit({P0: 2}, None)
    assert sink.open([P0], 1) == {P0: 2}
    put(sink, 2, 3)
    put(third, 1, 2, P1)

    def later(transaction: Transaction) -> Any:
        monkeypatch.undo()
        third.commit({P1: 2}, None)
        return commit(transaction)

    monkeypatch.setattr(Transaction, "commit_transaction", later)
    sink.commit({P0: 3}, None)
    assert ICEBERG.numbers(tmp_path) == [0, 1, 2, 0, 1]


def test_iceberg_needs_a_catalog(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="catalog"):
        SinkSettings("lake", str(tmp_path), "iceberg", table="t")
    with pytest.raises(ValueError, match="catalog"):
        SinkSettings("lake", str(tmp_path), "delta", table="t", catalog={"type": "sql"})
    for key in ("py-catalog-impl", "py-io-impl", "auth.impl"):
        with pytest.raises(ValueError, match="code"):
            ICEBERG.settings(tmp_path, catalog={"type": "sql", key: "some.module.Class"})
    (wrong,) = LakeSink(ICEBERG.settings(tmp_path, catalog={"type": "none-such"})).check()
    assert "none-such" in wrong
    for catalog in ({"type": "sql"}, {"type": "sql", "uri": "shop"}):
        (wrong,) = LakeSink(ICEBERG.settings(tmp_path, catalog=catalog)).check()
        assert wrong.startswith("catalog.uri")
        assert "--uri" not in wrong


def test_iceberg_has_the_years_1_to_9999(tmp_path: Path) -> None:
    sink = ICEBERG.opened(tmp_path)
    micros = pa.array(
        [-62_135_596_800_000_000, 253_402_300_799_999_999, None, 253_402_300_800_000_000], pa.timestamp("us")
    )
    days = pa.array([-719_162, 2_932_896, -719_163, None], pa.date32())
    for name, values, wrong in (("at", micros, [3]), ("on", days, [2])):
        with pytest.raises(RowsRefused, match="9999") as refused:
            sink.write(rows(pa.StructArray.from_arrays([values], names=[name])))
        assert list(refused.value.reasons) == wrong
    sink.write(rows(pa.StructArray.from_arrays([micros.slice(0, 2), days.slice(0, 2)], names=["at", "on"])))
    sink.commit({P0: 2}, None)
    assert len(ICEBERG.stored(tmp_path)) == 2


def test_a_position_of_iceberg_alone_is_no_stale_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog would take properties from whoever comes last; what follows an old snapshot it does not take."""
    sink, other = ICEBERG.opened(tmp_path), ICEBERG.opened(tmp_path)
    put(sink, 0, 1)
    sink.commit({P0: 1}, None)
    other.open([P0], 1)
    put(other, 1, 5)
    commit = Transaction.commit_transaction

    def meanwhile(transaction: Transaction) -> Any:
        monkeypatch.undo()
        other.commit({P0: 5}, None)
        return commit(transaction)

    monkeypatch.setattr(Transaction, "commit_transaction", meanwhile)
    with pytest.raises(RetriableError):
        sink.commit({P0: 3}, None)
    assert sink.open([P0], 1) == {P0: 5}
    assert ICEBERG.numbers(tmp_path) == [0, 1, 2, 3, 4]
