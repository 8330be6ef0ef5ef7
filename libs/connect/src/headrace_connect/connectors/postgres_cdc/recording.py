"""Groups of changes, and rows that were read, become chunks of records with the position behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace_common.runtime.clock import Clock
from headrace_connect.connectors.postgres_cdc.collecting import Group
from headrace_connect.connectors.postgres_cdc.position import BYTES_MAX, Place, size
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.tables import Table, Types
from headrace_connect.core.changes import Transaction, has_messages
from headrace_connect.core.drift import Columns, SourceDrift
from headrace_connect.core.envelope import Envelope, Records
from headrace_connect.core.events import Notify
from headrace_connect.core.pgoutput.messages import Relation
from headrace_connect.core.values.types import Array
from headrace_connect.plugin import BadItem, Chunk
from headrace_connect.settings import Problem, invalid

_READ_XID: Final = 0


class Recorder:
    """Makes chunks; has an envelope for each table as it was last described."""

    def __init__(
        self,
        settings: SourceSettings,
        types: Types,
        tables: Mapping[int, Table],
        clock: Clock,
        notify: Notify = lambda event: None,
        known: Mapping[int, str] | None = None,
    ) -> None:
        """
        Args:
            types: grows while the stream goes on (``Assembler.types``).
            tables: by oid; may grow.
            notify: is told of tables that have other columns than before.
            known: ``Place.columns`` where reading begins.
        """
        self._settings = settings
        self._form = settings.form()
        self._modes = settings.modes
        self._types = types
        self._tables = tables
        self._clock = clock
        self._notify = notify
        self._known = known or {}
        self._columns: dict[int, Columns] = {}
        self._envelopes: dict[int, Envelope] = {}

    def wants(self, relation: Relation) -> bool:
        """Whether changes of a table are captured, or messages of a prefix."""
        if has_messages(relation):
            return self._settings.captures_messages(relation.name)
        return self._settings.captures(relation.schema, relation.name)

    def record_changes(self, group: Group, place: Place) -> Chunk:
        """
        The chunk of a group.

        Raises:
            InvalidConfig: the table has no records of this form, its topic no name, or the position is too large.
        """
        envelope = self._find(group.relation, self._types)
        return self._chunk(envelope, envelope.wrap(group.changes, group.transactions, self._clock.now_ms()), place)

    def record_rows(self, relation: Relation, types: Types, columns: Sequence[Array], lsn: int, place: Place) -> Chunk:
        """
        The chunk of rows that were read, which count as they were at ``lsn``.

        Args:
            columns: as ``Envelope.wrap_rows`` takes them.

        Raises:
            InvalidConfig: as ``record_changes``.
        """
        now_ms = self._clock.now_ms()
        read = Transaction(_READ_XID, lsn, now_ms * 1_000)
        envelope = self._find(relation, types)
        return self._chunk(envelope, envelope.wrap_rows(columns, read, now_ms), place)

    def record_nothing(self, place: Place, *, drained: bool = False) -> Chunk:
        """Only the position has moved."""
        return Chunk([], self._position(place), boundary=place.index < 0, drained=drained)

    def _find(self, relation: Relation, types: Types) -> Envelope:
        known = self._envelopes.get(relation.oid)
        if known is not None and (known.relation is relation or known.relation == relation):
            return known
        if not has_messages(relation):
            self._see(relation)
        table = self._tables.get(relation.oid)
        key: Sequence[str] | None = None
        if table is not None and relation.identity not in "di" and table.primary_key:
            names = {column.name for column in relation.columns}
            key = table.primary_key if names >= {*table.primary_key} else None
        made = self._envelopes[relation.oid] = Envelope(relation, self._form, self._modes, types, key)
        return made

    def _see(self, relation: Relation) -> None:
        """
        Raises:
            InvalidConfig: it has other columns than before, and those are not wanted.
        """
        columns = self._columns.get(relation.oid)
        if columns is None:
            known = self._known.get(relation.oid, "")
            drift = self._settings.drift
            columns = Columns(str(relation), drift, self._notify, known, shows_types=False)
            self._columns[relation.oid] = columns
        columns.see({column.name: f"{column.type_oid}/{column.type_modifier}" for column in relation.columns})

    def _position(self, place: Place) -> Mapping[str, object]:
        if self._settings.drift is SourceDrift.FAIL:
            seen = {oid: columns.digest for oid, columns in self._columns.items()}
            place = replace(place, columns={**self._known, **seen})
        elif place.columns:
            place = replace(place, columns={})
        return _position(place)

    def _chunk(self, envelope: Envelope, records: Records, place: Place) -> Chunk:
        return Chunk(
            records.values,
            self._position(place),
            topic=self._topic_of(envelope.relation),
            keys=records.keys,
            key_schema=envelope.key_schema,
            value_schema=envelope.value_schema,
            timestamps_ms=records.timestamps_ms,
            headers=records.headers,
            boundary=place.index < 0 and not place.ahead,
            bad=[BadItem(one.raw, one.reason) for one in records.refused],
        )

    def _topic_of(self, relation: Relation) -> str:
        if has_messages(relation):
            return self._settings.topic_of_messages(relation.name)
        try:
            return self._settings.topic_of(relation.schema, relation.name)
        except ValueError as error:
            raise invalid([Problem("topic.prefix", f"topic.prefix: {error}")]) from error


def _position(place: Place) -> Mapping[str, object]:
    needed = size(place)
    if needed > BYTES_MAX:
        rows = f", with the key of a row of table {place.rows.table} in it" if place.rows else ""
        rows += f", and notes the columns of {len(place.columns)} for drift=fail" if place.columns else ""
        raise invalid(
            [
                Problem(
                    "table.include.list",
                    f"the position would have {needed:,} bytes, and {BYTES_MAX:,} fit: it names {len(place.read)} "
                    f"tables that were read{rows}; share the tables among connectors, or leave those with long keys "
                    "out of snapshot.include.collection.list",
                )
            ]
        )
    return place.to_json()
