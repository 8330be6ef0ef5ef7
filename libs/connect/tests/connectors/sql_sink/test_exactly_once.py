"""Each record counts once in a real SQLite file: killed at any statement, with two holders, with repeats."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows
from libs.connect.tests.connectors.sql_sink.test_sqlite import SqliteFile

from headrace.records import TopicPartition
from headrace_connect.connectors.sql.session import Result
from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.connectors.sql_sink.sqlite import Sqlite
from headrace_connect.plugin import PartitionTaken, RetriableError


class Killed(BaseException):
    """The process is no more."""


class Mortal(Sqlite):
    """Dies before or behind one of its statements."""

    def __init__(self, path: str, dies: Callable[[str], bool]) -> None:
        super().__init__(path, 1)
        self._dies = dies
        self._dead = False

    def connect(self) -> None:
        super().connect()
        self._live.execute("pragma synchronous = off")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        self._die(self._dead or self._dies(f"before {statement}"))
        result = super().execute(statement, values)
        self._die(self._dies(f"behind {statement}"))
        return result

    def _die(self, now: bool) -> None:
        if now:
            self._dead = True
            raise Killed


def sink_on(target: SqliteFile, dies: Callable[[str], bool] = lambda _: False, **values: Any) -> tuple[SqlSink, Mortal]:
    made = SinkSettings("shop", target.url, auto_create=True, auto_evolve=True, **values)
    sink = SqlSink(made)
    database = Mortal(str(target.path), dies)
    for holder in (sink, sink._positions, sink._tables):
        holder._database = database  # type: ignore[attr-defined]
    return sink, database


class Killer:
    """Dies at the n-th moment; counts them."""

    def __init__(self, moment: int) -> None:
        self.left = moment
        self.last = ""

    def __call__(self, moment: str) -> bool:
        self.last = moment
        self.left -= 1
        return self.left == 0


def work(sink: SqlSink, epoch: int, count: int) -> None:
    """Write ``count`` records in steps of three, from where the target says."""
    position = sink.open([P0], epoch).get(P0, 0)
    while position < count:
        end = min(count, position + 3)
        sink.write(rows([{"n": n} for n in range(position, end)], start=position))
        sink.commit({P0: end}, b"token %d" % position if position % 2 else None)
        position = end


def test_killed_between_any_two_statements(tmp_path: Path) -> None:
    moments: list[str] = []
    for moment in range(1, 1_000):
        target = SqliteFile(tmp_path / f"{moment}.db")
        killer = Killer(moment)
        sink, database = sink_on(target, killer)
        try:
            sink.start()
            work(sink, 1, 7)
        except Killed:
            database.close()  # as the system closes the files of a process
        else:
            break
        moments.append(killer.last.split("(")[0])
        again, _ = sink_on(target)
        again.start()
        work(again, 2, 7)
        again.stop()
        assert target.query(f'select n from "{TOPIC}" order by n') == [(n,) for n in range(7)], killer.last
        assert target.query("select position, epoch from headrace_positions") == [(7, 2)]
        sink.stop()
        os.unlink(target.path)
    assert len(moments) > 60
    assert {"before commit", "behind commit", "before begin immediate"} <= set(moments)


def test_killed_at_any_statement_of_a_rewind(tmp_path: Path) -> None:
    old, new = {P0: 7, P1: 7}, {P0: 2, P1: 9}
    seen: set[bool] = set()
    for moment in range(1, 1_000):
        target = SqliteFile(tmp_path / f"{moment}.db")
        first, _ = sink_on(target)
        first.start()
        first.open([P0, P1], 1)
        first.commit(old, None)
        first.stop()
        killer = Killer(moment)
        sink, database = sink_on(target, killer)
        try:
            sink.start()
            sink.rewind(new)
        except Killed:
            database.close()
        again, _ = sink_on(target)
        again.start()
        found = again.open([P0, P1], 2)
        again.stop()
        sink.stop()
        assert found in (old, new), killer.last
        seen.add(found == new)
        if killer.left > 0:
            break
    assert seen == {False, True}
    assert moment > 10


@pytest.mark.parametrize("moment", ["before commit", "behind commit"])
def test_a_commit_whose_outcome_is_unknown(tmp_path: Path, moment: str) -> None:
    """As a connection that breaks: the same instance asks the target."""
    target = SqliteFile(tmp_path / "x.db")
    armed: list[str] = []

    def breaks(now: str) -> bool:
        if now in armed:
            armed.remove(now)
            database.close()
            raise RetriableError("the connection is gone")
        return False

    sink, database = sink_on(target, breaks)
    sink.start()
    sink.open([P0], 1)
    sink.write(rows([{"n": 1}]))
    armed.append(moment)
    with pytest.raises(RetriableError):
        sink.commit({P0: 1}, None)
    with pytest.raises(RetriableError):
        sink.commit({P0: 1}, None)
    position = sink.open([P0], 1).get(P0, 0)
    assert position == (moment == "behind commit")
    if not position:
        sink.write(rows([{"n": 1}]))
        sink.commit({P0: 1}, None)
    sink.write(rows([{"n": 2}], start=1))
    sink.commit({P0: 2}, None)
    sink.stop()
    assert target.query(f'select n from "{TOPIC}"') == [(1,), (2,)]


def test_a_position_alone_whose_commit_is_unknown(tmp_path: Path) -> None:
    """Markers and dead letters move a position without rows."""
    target = SqliteFile(tmp_path / "x.db")
    armed: list[str] = []

    def breaks(now: str) -> bool:
        if now in armed:
            armed.remove(now)
            raise RetriableError("no answer")
        return False

    sink, _ = sink_on(target, breaks)
    sink.start()
    sink.open([P0], 1)
    armed.append("behind commit")
    with pytest.raises(RetriableError):
        sink.commit({P0: 5}, None)
    with pytest.raises(RetriableError):
        sink.commit({P0: 6}, None)
    assert sink.open([P0], 1) == {P0: 5}
    sink.commit({P0: 6}, None)
    sink.stop()


class Holders(RuleBasedStateMachine):
    """Any number of instances of two partitions, in any order: old ones go on, die, open again."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.target = SqliteFile(Path(self.directory.name) / "x.db")
        self.epoch = 0
        self.sinks: list[SqlSink] = []

    def teardown(self) -> None:
        for sink in self.sinks:
            sink.stop()
        self._finish()
        self.check()
        done = dict(self.target.query("select partition, count(*) from t group by partition"))
        assert done == {0: 12, 1: 12}
        self.directory.cleanup()

    def _finish(self) -> None:
        holder = self.new_holder()
        self.opens(holder)
        for partition in (P0, P1):
            for _ in range(12):
                self.writes(holder, partition, 3)
                self.commits(holder)
        holder["sink"].stop()

    @rule(target=holders)
    def new_holder(self) -> dict[str, Any]:
        sink, _ = sink_on(self.target, table_name_format="t")
        sink.start()
        self.sinks.append(sink)
        self.epoch += 1
        return {"sink": sink, "epoch": self.epoch, "read": {}, "done": {}}

    @rule(holder=holders)
    def opens(self, holder: dict[str, Any]) -> None:
        self._try(holder, lambda: holder["read"].update(self._opened(holder)))

    def _opened(self, holder: dict[str, Any]) -> dict[TopicPartition, int]:
        found = holder["sink"].open([P0, P1], holder["epoch"])
        holder["done"] = {}
        return {partition: found.get(partition, 0) for partition in (P0, P1)}

    @rule(holder=holders, partition=st.sampled_from([P0, P1]), count=st.integers(1, 4))
    def writes(self, holder: dict[str, Any], partition: TopicPartition, count: int) -> None:
        start = holder["read"].get(partition)
        if start is None:
            return
        end = min(12, start + count)
        if start == end:
            return
        values = [{"partition": partition.partition, "n": n} for n in range(start, end)]

        def write() -> None:
            holder["sink"].write(rows(values, start=start, partition=partition))
            holder["read"][partition] = end
            holder["done"][partition] = end

        self._try(holder, write)

    @rule(holder=holders)
    def commits(self, holder: dict[str, Any]) -> None:
        def commit() -> None:
            holder["sink"].commit(holder["done"], None)
            holder["done"] = {}

        if holder["done"]:
            self._try(holder, commit)

    @rule(holder=holders, partition=st.sampled_from([P0, P1]))
    def closes(self, holder: dict[str, Any], partition: TopicPartition) -> None:
        holder["sink"].close([partition])
        holder["read"].pop(partition, None)
        holder["done"].pop(partition, None)

    @rule(holder=holders)
    def dies(self, holder: dict[str, Any]) -> None:
        holder["sink"].stop()
        holder["read"] = {}
        holder["done"] = {}

    def _try(self, holder: dict[str, Any], call: Callable[[], None]) -> None:
        """As the runtime: what fails is opened again, what is taken is given up."""
        try:
            call()
        except (RetriableError, PartitionTaken):
            holder["read"] = {}
            holder["done"] = {}

    @invariant()
    def check(self) -> None:
        if not self.target.query("select 1 from sqlite_master where name = 't'"):
            return
        twice = self.target.query("select partition, n from t group by partition, n having count(*) > 1")
        assert twice == []
        for partition, count, last in self.target.query("select partition, count(*), max(n) from t group by partition"):
            where = f"partition = {partition}"
            assert self.target.query(f"select position from headrace_positions where {where}") == [(last + 1,)]
            assert count == last + 1


TestHolders = Holders.TestCase
TestHolders.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
