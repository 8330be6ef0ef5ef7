"""
Compares tables with the records that they were written from.

The expected rows of a range are put into a temporary table with the columns of the target, and the database compares:
so what it makes of a value, when it stores one, is never a difference. All is one transaction, which sees one state of
positions and rows; a repair keeps the positions locked until it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.sql.session import RowFault, TableName
from headrace_connect.connectors.sql_sink.connecting import connect_to_compare
from headrace_connect.connectors.sql_sink.database import Write
from headrace_connect.connectors.sql_sink.envelopes import parts_of
from headrace_connect.connectors.sql_sink.faults import told
from headrace_connect.connectors.sql_sink.folding import Key, groups, keys_of
from headrace_connect.connectors.sql_sink.kinds import Column
from headrace_connect.connectors.sql_sink.positions import Positions
from headrace_connect.connectors.sql_sink.rows import Fitted, fit_rows
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.connectors.sql_sink.tables import Tables
from headrace_connect.core.drift import Drift
from headrace_connect.plugin import Checked, Rows
from headrace_connect.settings import Problem, invalid

KEYS_MAX: Final = 1_000_000
"""That are remembered, of all tables."""
OFFSET: Final = "headrace_offset"
_GONE: Final = ("", -1, -1)
"""Of a key: its row was truncated away, or it is in several partitions, whose order nobody knows."""


@dataclass(slots=True)
class _Found:
    records: int = 0
    refused: int = 0
    missing: list[int] = field(default_factory=list)
    different: list[int] = field(default_factory=list)
    unexpected: int = 0
    repaired: int = 0


class SqlVerifier:
    """Satisfies ``Verifier``."""

    def __init__(self, settings: SinkSettings) -> None:
        """
        Raises:
            InvalidConfig: rows do not say which record they are from.
        """
        if settings.pk_mode == "none" or settings.insert_mode == "update":
            reason = (
                "insert.mode=update makes no rows, so nobody knows which should be there"
                if settings.insert_mode == "update"
                else "rows of pk.mode=none do not say which record they are from; kafka, record_key or record_value do"
            )
            key = "insert.mode" if settings.insert_mode == "update" else "pk.mode"
            raise invalid([Problem(key, f"{settings.name} cannot be verified: {reason}")])
        drift = Drift.IGNORE if settings.drifts is Drift.IGNORE else Drift.STRICT
        self._settings = replace(settings, auto_create=False, auto_evolve=False, drift=drift)
        self._database = connect_to_compare(settings)
        self._tables = Tables(self._database, self._settings)
        self._positions = Positions(self._database, settings.name)
        self._last: dict[TableName, dict[Key, tuple[str, int, int]]] = {}
        """Of each key: topic, partition and offset of its last record."""
        self._stages: dict[tuple[object, ...], TableName] = {}
        self._repairs = False
        self.learns = settings.pk_mode != "kafka"

    def begin(self, partitions: Sequence[TopicPartition], *, repair: bool) -> Mapping[TopicPartition, int]:
        """See ``Verifier``."""
        self._repairs = repair
        with told():
            self._database.connect()
            if repair:
                self._database.begin()
            else:
                self._database.begin_reading()
            if not self._positions.has_tables():
                return {}
            find = self._positions.lock if repair else self._positions.find
            found = {partition: find(partition) for partition in sorted(partitions)}
        return {partition: position for partition, position in found.items() if position is not None}

    def learn(self, rows: Rows) -> None:
        """See ``Verifier``."""
        topic = rows.source.topic
        table = self._settings.table_of(rows.topic)
        known = self._last.setdefault(table, {})
        offsets: list[Any] = rows.offsets.to_pylist()
        with told():
            for fitted in self._fit(table, rows):
                if fitted.truncates:
                    known.update(dict.fromkeys(known, _GONE))
                if fitted.write is None:
                    continue
                for row, key in enumerate(keys_of(fitted.write)):
                    if row in fitted.wrong:
                        continue
                    before = known.get(key)
                    is_apart = before is not None and before is not _GONE and before[:2] != (topic, rows.partition)
                    at = (topic, rows.partition, offsets[fitted.start + row])
                    known[key] = _GONE if is_apart else at
        if sum(map(len, self._last.values())) > KEYS_MAX:
            raise InvalidConfig(f"records: these have more than {KEYS_MAX:,} keys; verify fewer records, or one topic")

    def _fit(self, table: TableName, rows: Rows) -> Iterator[Fitted]:
        for part in parts_of(rows, self._settings.value_form):
            if part.truncates:
                yield Fitted(part.start, {}, None, self._settings.truncate_enabled)
            else:
                yield fit_rows(table, part, self._tables, self._settings)

    def check(self, partition: TopicPartition, rows: Sequence[Rows], first: int, end: int) -> Checked:
        """See ``Verifier``."""
        found = _Found()
        present: dict[TableName, int] = {}
        with told():
            for some in rows:
                table = self._settings.table_of(some.topic)
                for fitted in self._fit(table, some):
                    found.refused += len(fitted.wrong)
                    if fitted.write is None:
                        continue
                    write = self._expected(partition, some, fitted, fitted.write)
                    found.records += len(write)
                    missing = len(found.missing)
                    for group in groups(write) if len(write) else ():
                        self._compare(group, found)
                    there = len(write) - (0 if self._repairs else len(found.missing) - missing)
                    present[table] = present.get(table, 0) + there
            if self._settings.pk_mode == "kafka":
                for table in present or {self._settings.table_of(partition.topic): 0}:
                    found.unexpected += self._count(table, partition, first, end) - present.get(table, 0)
        return Checked(
            found.records,
            found.refused,
            tuple(found.missing),
            tuple(found.different),
            max(0, found.unexpected),
            found.repaired,
        )

    def _expected(self, partition: TopicPartition, rows: Rows, fitted: Fitted, write: Write) -> Write:
        """The rows that should be there, or not, with their offsets as a further column."""
        offsets = rows.offsets.slice(fitted.start, len(write))
        good = [row for row in range(len(write)) if row not in fitted.wrong]
        if self.learns:
            known, keys, at = self._last[write.table], keys_of(write), offsets.to_pylist()
            good = [row for row in good if known[keys[row]] == (partition.topic, partition.partition, at[row])]
        return replace(write, columns={OFFSET: offsets, **write.columns}).choose(good)

    def _compare(self, write: Write, found: _Found) -> None:
        """Rows that have the same columns, all deletes or none."""
        deletes = write.has_deletes
        names = [*write.keys] if deletes else [name for name in write.columns if name != OFFSET]
        stage, table = self._fill(write, names), self._named(write.table)
        matching = " and ".join(f"t.{name} = s.{name}" for name in map(self._database.quote, write.keys))
        if deletes:
            there = f"exists (select 1 from {table} t where {matching})"
            offsets = [at for (at,) in self._database.execute(f"select s.{OFFSET} from {stage} s where {there}").rows]
            found.different += offsets
        else:
            key = f"t.{self._database.quote(write.keys[0])}"
            columns = {column.name: column for column in self._database.find_columns(write.table)}
            unlike = " or ".join(self._differs(columns[name]) for name in names)
            statement = (
                f"select s.{OFFSET}, {key} is null from {stage} s left join {table} t on {matching} "
                f"where {key} is null or {unlike}"
            )
            rows = dict(self._database.execute(statement).rows)
            found.missing += [at for at, is_missing in rows.items() if is_missing]
            found.different += [at for at, is_missing in rows.items() if not is_missing]
            offsets = list(rows)
        if self._repairs and offsets:
            found.repaired += self._repair(write, names, set(offsets))

    def _differs(self, column: Column) -> str:
        name = self._database.quote(column.name)
        return self._database.differs(f"s.{name}", f"t.{name}", column)

    def _repair(self, write: Write, names: Sequence[str], offsets: set[int]) -> int:
        """Write these; how many of them the database takes."""
        at = write.columns[OFFSET].to_pylist()
        mode = "upsert" if write.mode == "insert" else write.mode
        columns = {name: write.columns[name] for name in names}
        rows = [row for row, offset in enumerate(at) if offset in offsets]
        wanted = replace(write, columns=columns, mode=mode).choose(rows)
        try:
            with self._database.savepoint():
                self._database.write(wanted)
        except RowFault as error:
            raise InvalidConfig(f"the database refuses to be repaired: {error}") from error
        return len(rows)

    def _fill(self, write: Write, names: Sequence[str]) -> str:
        """A temporary table that has only these rows."""
        key = (write.table, *names)
        if key not in self._stages:
            name = f"headrace_verify_{len(self._stages) + 1}"
            listed = ", ".join(map(self._database.quote, names))
            self._database.execute(
                f"create temporary table {name} as select cast(0 as bigint) as {OFFSET}, {listed} "
                f"from {self._named(write.table)} where 1 = 0"
            )
            self._stages[key] = (self._database.temporary, name)
        stage = self._stages[key]
        self._database.execute(f"delete from {self._named(stage)}")
        columns = {name: write.columns[name] for name in (OFFSET, *names)}
        no_deletes = pa.array([False] * len(write))
        self._database.write(Write(stage, columns, (), no_deletes, "insert"))
        return self._named(stage)

    def _count(self, table: TableName, partition: TopicPartition, first: int, end: int) -> int:
        """Rows of a range."""
        if not self._database.find_columns(table):
            return 0
        topic, number, offset = map(self._database.quote, self._settings.kafka_key)
        found = self._database.execute(
            f"select count(*) from {self._named(table)} where {topic} = ? and {number} = ? and {offset} >= ? "
            f"and {offset} < ?",
            (partition.topic, partition.partition, first, end),
        ).rows
        return int(found[0][0])

    def _named(self, table: TableName) -> str:
        return ".".join(map(self._database.quote, table))

    def finish(self) -> None:
        """See ``Verifier``."""
        with told():
            if self._repairs:
                self._database.commit()
            else:
                self._database.rollback()

    def close(self) -> None:
        """See ``Verifier``."""
        self._database.close()
