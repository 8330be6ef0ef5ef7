"""
Changes of rows as records: Debezium's envelope, or ``flat``, the row itself.

A record's key is that of its row. A delete is followed by a tombstone (a null value), so that a compacted topic forgets
the row; where a key changes, the row of the old key is deleted and that of the new one created.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.batch import NAME
from headrace_connect.core.changes import Change, Op, Transaction, has_messages, row_of
from headrace_connect.core.pgoutput.messages import UNCHANGED, Binary, Relation, Row, Value
from headrace_connect.core.values import Columns, ValueModes
from headrace_connect.core.values.types import Array, schema_metadata

Headers = list[tuple[str, bytes]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
FlatField = Literal["op", "schema", "table", "lsn", "commit_lsn", "index", "txId", "ts_ms"]
NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
_CONNECTOR: Final = "postgresql"
_JAVA: Final = "io.debezium.connector.postgresql"
_BLOCKS: Final = {"source": f"{_JAVA}.Source", "message": f"{_JAVA}.Message", "transaction": "event.block"}
"""Names of schemas within an envelope."""
_UNITS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
"""So many are a millisecond."""
_TRANSACTION: Final = pa.struct([("id", pa.string()), ("total_order", pa.int64())])
_FLAT: Final[dict[FlatField, pa.DataType]] = {
    "op": pa.string(), "schema": pa.string(), "table": pa.string(), "lsn": pa.int64(), "commit_lsn": pa.int64(),
    "index": pa.int64(), "txId": pa.int64(), "ts_ms": pa.int64(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """What records look like."""

    name: str
    """``topic.prefix``."""
    database: str
    form: Literal["debezium", "flat"] = "debezium"
    tombstones: bool = True
    """``tombstones.on.delete``; ``flat`` has nothing else for a delete, and needs them."""
    truncates: bool = False
    """Records for truncations, in Debezium's form; their key is null."""
    transactions: bool = False
    """``provide.transaction.metadata``: fill ``transaction``."""
    flat_fields: tuple[FlatField, ...] = ()
    """Columns beside those of the row in ``flat``, with ``__`` before their names."""
    version: str = ""
    """Of the connector, for ``source``."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.flat_fields if name not in _FLAT]
        if unknown:
            raise InvalidConfig(f"value.form.fields: there is no {', '.join(unknown)}; there are {', '.join(_FLAT)}")
        if self.form == "flat" and not self.tombstones:
            raise InvalidConfig("the form flat says deletes by tombstones: tombstones.on.delete must be true")


@dataclass(frozen=True, slots=True)
class Refused:
    """A change that cannot be represented."""

    place: int
    """Of the change in those that were given."""
    reason: str
    raw: bytes
    """The rows as JSON of PostgreSQL's texts."""


@dataclass(frozen=True, slots=True)
class Records:
    """All of equal length; a change makes none, one, two or three records, behind each other."""

    keys: Array | None
    """Structs; null: the record has no key. None: no record has one."""
    values: Array
    """Structs; null: a tombstone."""
    timestamps_ms: Array
    """When the transaction committed."""
    headers: list[Headers] | None
    """None: no record has any."""
    places: Numbers
    """Of the change that a record is made from, ascending."""
    refused: list[Refused] = field(default_factory=list)
    """Changes of which there is no record."""


@dataclass(slots=True)
class _Record:
    place: int
    change: Change
    op: Op | None
    """None: a tombstone."""
    key: Row | None
    before: Row | None
    after: Row | None
    header: tuple[str, Row] | None = None


@dataclass(frozen=True, slots=True)
class _Heads:
    """What records say beside their rows, one value for each."""

    op: Array
    """Null: a tombstone."""
    lsn: Numbers
    index: Numbers
    xid: Numbers
    commit_lsn: Numbers
    commit_time_us: Numbers

    @classmethod
    def of(cls, records: Sequence[_Record], own: Sequence[Transaction]) -> _Heads:
        """Of changes, and the transactions that they are in."""
        return cls(
            pa.array([record.op for record in records], pa.string()),
            _numbers([record.change.lsn for record in records]),
            _numbers([record.change.index for record in records]),
            _numbers([transaction.xid for transaction in own]),
            _numbers([transaction.commit_lsn for transaction in own]),
            _numbers([transaction.commit_time_us for transaction in own]),
        )

    @classmethod
    def of_read(cls, places: Numbers, read: Transaction) -> _Heads:
        """Of rows that were read, all as they were at one place of the WAL."""
        lsn, xid, time_us = (
            np.full(len(places), value, np.int64) for value in (read.commit_lsn, read.xid, read.commit_time_us)
        )
        return cls(_same(Op.READ.value, len(places)), lsn, places, xid, lsn, time_us)

    def __len__(self) -> int:
        return len(self.lsn)

    @property
    def times_ms(self) -> Array:
        """When their transactions committed."""
        return pa.array(self.commit_time_us // 1_000)

    @property
    def tombstones(self) -> Array:
        """Which of them are."""
        return self.op.is_null()


class _Unsayable(Exception):
    """A change has no form; the message says why."""


class Envelope:
    """Records of one relation. Immutable; one for each ``Relation``."""

    def __init__(
        self,
        relation: Relation,
        form: Form,
        modes: ValueModes,
        domains: Mapping[int, tuple[str, str]],
        key: Sequence[str] | None = None,
    ) -> None:
        """
        Args:
            key: the columns of the key; None: those of the replica identity, none if it is the whole row.

        Raises:
            InvalidConfig: ``key`` has a column that is not there or not logged, or ``flat`` would have two
                columns of one name.
        """
        names = [column.name for column in relation.columns]
        if key is None:
            key = [column.name for column in relation.columns if column.is_key and relation.identity in "di"]
        if not set(key) <= set(names):
            raise InvalidConfig(f"{relation} has no column {', '.join(sorted({*key} - {*names}))} for its key")
        foreign = [column.name for column in relation.columns if column.name in key and not column.is_key]
        if foreign and relation.identity in "di":
            raise InvalidConfig(
                f"{relation}: the key has {', '.join(foreign)}, which is no part of the replica identity: deletes "
                "would not say it; set REPLICA IDENTITY FULL"
            )
        if form.form == "flat" and {f"__{name}" for name in form.flat_fields} & {*names}:
            raise InvalidConfig(f"{relation} has a column with the name of one of value.form.fields")
        self.relation = relation
        self._messages = has_messages(relation)
        self._form = form
        self._key = [names.index(name) for name in key]
        self._columns = Columns(relation, modes, domains)
        of_key = replace(relation, columns=tuple(relation.columns[place] for place in self._key))
        self._key_columns = Columns(of_key, modes, domains)
        may_be_null = self._messages or relation.identity not in "di"
        self._key_fields = [field.with_nullable(may_be_null) for field in self._key_columns.schema]
        name = f"{form.name}.{relation.schema}.{relation.name}"
        self._row_schema = f"{name}.Value"
        self.key_schema = f"{_JAVA}.MessageKey" if self._messages else f"{name}.Key"
        """The name of the keys' schema, as Debezium has it."""
        envelope = f"{_JAVA}.MessageValue" if self._messages else f"{name}.Envelope"
        self.value_schema = envelope if form.form == "debezium" else self._row_schema
        """The same of values; Debezium's own sinks know by it what is an envelope."""

    def key_of(self, row: Row) -> Row:
        """The values of the key of a row."""
        return [row[place] for place in self._key]

    def wrap(
        self, changes: Sequence[Change], transactions: Transaction | Sequence[Transaction], now_ms: int
    ) -> Records:
        """
        Records of changes of this relation, in order. Changes that cannot be represented are told beside them.

        Args:
            transactions: that of all of them, or of each.
            now_ms: when the connector handles them, Unix milliseconds.
        """
        of_changes = [transactions] * len(changes) if isinstance(transactions, Transaction) else transactions
        records: list[_Record] = []
        problems: dict[int, str] = {}
        for place, change in enumerate(changes):
            try:
                records += self._records(place, change)
            except _Unsayable as cause:
                problems[place] = str(cause)
        befores = self._convert(self._columns, records, [record.before for record in records], problems)
        afters = self._convert(self._columns, records, [record.after for record in records], problems)
        keys = self._convert(self._key_columns, records, [record.key for record in records], problems)
        if problems:
            good = [at for at, record in enumerate(records) if record.place not in problems]
            keep = pa.array(good, pa.int64())
            befores, afters, keys = befores.take(keep), afters.take(keep), keys.take(keep)
            records = [records[at] for at in good]
        heads = _Heads.of(records, [of_changes[record.place] for record in records])
        has_headers = any(record.header is not None for record in records)
        return Records(
            self._keys_of(keys) if self._key else None,
            self._values(heads, befores, afters, now_ms),
            heads.times_ms,
            [self._headers(record) for record in records] if has_headers else None,
            _numbers([record.place for record in records]),
            [Refused(place, cause, _raw(changes[place])) for place, cause in sorted(problems.items())],
        )

    def wrap_rows(self, columns: Sequence[Array], read: Transaction, now_ms: int) -> Records:
        """
        The same of rows that were read, in order, which count as they were at ``read.commit_lsn``.

        Args:
            columns: of the relation, at least one: the texts of their values (binary).
            read: with xid 0, and when they were read.
        """
        afters, problems = self._columns.convert_texts(columns)
        keys: Any = None
        if self._key:
            keys, _ = self._key_columns.convert_texts([columns[at] for at in self._key])
            keys = self._keys_of(keys)
        places = np.arange(len(afters))
        refused = [
            Refused(place, cause, self._raw_row(columns, place, read)) for place, cause in sorted(problems.items())
        ]
        if problems:
            places = np.delete(places, list(problems))
            keep: Any = pa.array(places)
            afters, keys = afters.take(keep), None if keys is None else keys.take(keep)
        heads = _Heads.of_read(places, read)
        values = self._values(heads, pa.nulls(len(heads), self._columns.type), afters, now_ms)
        return Records(keys, values, heads.times_ms, None, places, refused)

    def _keys_of(self, keys: Any) -> Array:
        """Columns of the replica identity are NOT NULL; of a key that the table got later that is not known."""
        return pa.StructArray.from_arrays(keys.flatten(), fields=self._key_fields, mask=keys.is_null())

    def _raw_row(self, columns: Sequence[Array], place: int, read: Transaction) -> bytes:
        row: Row = [column[place].as_py() for column in columns]
        return _raw(Change(Op.READ, read.commit_lsn, place, self.relation, None, False, row))

    def _records(self, place: int, change: Change) -> list[_Record]:
        before, after, op = change.before, change.after, change.op
        if change.message is not None:
            after = row_of(change.message)
        if op is Op.TRUNCATE:
            wanted = self._form.truncates and self._form.form == "debezium"
            return [_Record(place, change, op, None, None, None)] if wanted else []
        old = self._key_or_none(before)
        new = self._key_or_none(after)
        if not self._key and self._form.form == "flat" and op in (Op.DELETE, Op.UPDATE):
            raise _Unsayable(
                f"{self.relation}: a table without a key has no flat form of updates and deletes; use debezium"
            )
        if op is Op.DELETE:
            return self._delete(place, change, old, None)
        if op is Op.UPDATE and old is not None and new is not None and old != new:
            created = _Record(place, change, Op.INSERT, new, None, after, (OLD_KEY, old))
            return [*self._delete(place, change, old, new), created]
        return [_Record(place, change, op, new, before, after)]

    def _key_or_none(self, row: Row | None) -> Row | None:
        if row is None or not self._key:
            return None
        key = self.key_of(row)
        if UNCHANGED in key:
            raise _Unsayable(f"{self.relation}: the server did not send the key of the row; set REPLICA IDENTITY FULL")
        return key

    def _delete(self, place: int, change: Change, old: Row | None, new: Row | None) -> list[_Record]:
        header = (NEW_KEY, new) if new is not None else None
        deleted = _Record(place, change, Op.DELETE, old, change.before, None, header)
        tombstone = _Record(place, change, None, old, None, None)
        if self._form.form == "flat":
            return [tombstone]
        return [deleted, tombstone] if self._form.tombstones and old is not None else [deleted]

    def _convert(
        self, columns: Columns, records: Sequence[_Record], rows: Sequence[Row | None], problems: dict[int, str]
    ) -> Array:
        array, found = columns.convert(rows)
        for at, cause in found.items():
            problems.setdefault(records[at].place, cause)
        return array

    def _headers(self, record: _Record) -> Headers:
        if record.header is None:
            return []
        name, key = record.header
        names = [column.name for column in self._key_columns.relation.columns]
        return [(name, json.dumps(dict(zip(names, map(_shown, key), strict=True))).encode())]

    def _values(self, heads: _Heads, befores: Array, afters: Array, now_ms: int) -> Array:
        return self._flat(heads, afters) if self._form.form == "flat" else self._full(heads, befores, afters, now_ms)

    def _flat(self, heads: _Heads, after: Any) -> Array:
        known = self._source(heads) if self._form.flat_fields else {}
        known["op"] = heads.op
        known["commit_lsn"] = pa.array(heads.commit_lsn)
        known["index"] = pa.array(heads.index)
        fields = [*self._columns.schema, *(pa.field(f"__{name}", _FLAT[name]) for name in self._form.flat_fields)]
        arrays = [*after.flatten(), *(known[name] for name in self._form.flat_fields)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=heads.tombstones)

    def _full(self, heads: _Heads, before: Array, after: Array, now_ms: int) -> Array:
        source = self._source(heads)
        rows = (
            {"message": after} if self._messages else {"before": _zoned_as_text(before), "after": _zoned_as_text(after)}
        )
        arrays: dict[str, Array] = {
            **rows,
            "source": pa.StructArray.from_arrays(list(source.values()), names=list(source)),
            "transaction": self._transaction(heads),
            "op": heads.op,
            **{f"ts_{unit}": _same(now_ms * in_ms, len(heads), pa.int64()) for unit, in_ms in _UNITS.items()},
        }
        row = {NAME: self._row_schema.encode()}
        metadata = {"before": row, "after": row} | {name: schema_metadata(one) for name, one in _BLOCKS.items()}
        fields = [pa.field(name, array.type, metadata=metadata.get(name)) for name, array in arrays.items()]
        return pa.StructArray.from_arrays(list(arrays.values()), fields=fields, mask=heads.tombstones)

    def _source(self, heads: _Heads) -> dict[str, Array]:
        """Debezium's block. ``sequence`` has the LSN of the commit and that of the change: it orders records."""
        count, text = len(heads), pa.string()
        is_read = pc.fill_null(pc.equal(heads.op, pa.scalar(Op.READ.value)), pa.scalar(False))
        commits, lsns = (pa.array(numbers).cast(text) for numbers in (heads.commit_lsn, heads.lsn))
        return {
            "version": _same(self._form.version, count),
            "connector": _same(_CONNECTOR, count),
            "name": _same(self._form.name, count),
            "ts_ms": heads.times_ms,
            "ts_us": pa.array(heads.commit_time_us),
            "ts_ns": pa.array(heads.commit_time_us * 1_000),
            "db": _same(self._form.database, count),
            "schema": _same(self.relation.schema, count),
            "table": _same("" if self._messages else self.relation.name, count),
            "txId": pa.array(heads.xid, mask=heads.xid == 0),
            "snapshot": pc.if_else(is_read, "incremental", "false"),
            "sequence": _joined('["', commits, '","', lsns, '"]', ""),
            "lsn": pa.array(heads.lsn),
        }

    def _transaction(self, heads: _Heads) -> Array:
        if not self._form.transactions:
            return pa.nulls(len(heads), _TRANSACTION)
        xids, commits = (pa.array(numbers).cast(pa.string()) for numbers in (heads.xid, heads.commit_lsn))
        block = [_joined(xids, commits, ":"), pa.array(heads.index + 1)]
        return pa.StructArray.from_arrays(block, fields=list(_TRANSACTION), mask=pa.array(heads.xid == 0))


_joined: Final[Any] = pc.binary_join_element_wise


def _numbers(values: Sequence[int]) -> Numbers:
    return np.array(values, np.int64)


def _same(value: Any, count: int, kind: Any = None) -> Array:
    return pa.repeat(pa.scalar(value, kind or pa.string()), count)


def _zoned_as_text(rows: Any) -> Array:
    """Debezium has timestamps with a time zone as ISO 8601 text in UTC."""
    columns = [_one_zoned_as_text(of, array) for of, array in zip(rows.type, rows.flatten(), strict=True)]
    arrays, fields = [array for _, array in columns], [of for of, _ in columns]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=rows.is_null())


def _one_zoned_as_text(of: Any, array: Any) -> tuple[Any, Array]:
    if not (pa.types.is_timestamp(of.type) and of.type.tz):
        return of, array
    text: Array = pc.replace_substring(pc.cast(array, pa.string()), " ", "T")
    return pa.field(of.name, pa.string(), metadata=schema_metadata("io.debezium.time.ZonedTimestamp")), text


def _shown(value: Value) -> str | None:
    match value:
        case bytes():
            return value.decode(errors="backslashreplace")
        case Binary(data):
            return data.hex()
        case None:
            return None
        case _:
            return "(unchanged)"


def _raw(change: Change) -> bytes:
    names = [column.name for column in change.relation.columns]
    rows = {"before": change.before, "after": change.after}
    shown = {
        what: None if row is None else dict(zip(names, map(_shown, row), strict=True)) for what, row in rows.items()
    }
    return json.dumps({"table": str(change.relation), "op": change.op.value, "lsn": change.lsn, **shown}).encode()
