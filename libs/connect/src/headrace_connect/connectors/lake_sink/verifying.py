"""
Compares tables of a lake with the records that they were written from, by the offsets that their rows have.

A repair writes rows of records that are there, and deletes only what is twice: a row without a record may be one whose
record was compacted away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.records import TopicPartition
from headrace_connect.connectors.lake_sink.added import OFFSET, with_added, with_computed
from headrace_connect.connectors.lake_sink.fitting import Rules, fit, refit
from headrace_connect.connectors.lake_sink.lake import Lake, Span
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.core.drift import Drift
from headrace_connect.plugin import Checked, Rows, RowsRefused
from headrace_connect.settings import Problem, invalid
from headrace_streams.core import expressions

_NEEDED: Final = ("partition", "offset")


class LakeVerifier:
    """Satisfies ``Verifier``."""

    learns = False

    def __init__(
        self, settings: SinkSettings, lake: Lake, rules: Rules, computed: Mapping[str, expressions.Expr]
    ) -> None:
        """
        Raises:
            InvalidConfig: rows do not say which record they are from.
        """
        self._settings = settings
        self._lake = lake
        drift = Drift.IGNORE if settings.drift is Drift.IGNORE else Drift.STRICT
        self._rules = replace(rules, drift=drift, widens=False)
        self._computed = computed
        self._repairs = False
        lacks = [name for name in _NEEDED if name not in settings.added_columns]
        self._has_topics = "topic" in settings.added_columns
        if not self._has_topics and "${topic}" not in settings.table and len(settings.topics) != 1:
            lacks.append("topic")
        if lacks:
            raise self._invalid(
                "added.columns", f"its rows do not say their {lacks[0]}: added.columns does not have it"
            )

    def _invalid(self, key: str, reason: str) -> Exception:
        return invalid([Problem(key, f"{self._settings.name} cannot be verified: {reason}")])

    def begin(self, partitions: Sequence[TopicPartition], *, repair: bool) -> Mapping[TopicPartition, int]:
        """See ``Verifier``."""
        self._repairs = repair
        self._lake.start()
        found = {partition: self._lake.find_position(partition) for partition in partitions}
        return {partition: position for partition, position in found.items() if position is not None}

    def learn(self, rows: Rows) -> None:
        """See ``Verifier``."""

    def check(self, partition: TopicPartition, rows: Sequence[Rows], first: int, end: int) -> Checked:
        """See ``Verifier``."""
        parts: dict[str, list[pa.Table]] = {}
        refused = 0
        for some in rows:
            if some.original_topic is not None and not self._has_topics:
                raise self._invalid(
                    "added.columns", "a transform changes topics, and its rows do not say theirs: add topic"
                )
            table = self._settings.table_of(some.topic)
            fitted, wrong = self._fit(some, self._lake.schema(table))
            refused += wrong
            parts.setdefault(table, []).append(fitted)
        if not parts:
            parts[self._settings.table_of(partition.topic)] = []
        found = Checked(refused=refused)
        for table, tables in parts.items():
            found = _sum(found, self._compare(table, tables, partition, first, end))
        return found

    def _fit(self, rows: Rows, schema: pa.Schema | None) -> tuple[pa.Table, int]:
        """Rows as the table has them, and how many are none."""
        good = np.flatnonzero(rows.values.is_valid().to_numpy(zero_copy_only=False))
        while True:
            left = _chosen(rows, good)
            try:
                given = with_computed(with_added(left, self._settings.added_columns), self._computed)
            except RowsRefused as error:
                wrong = error.reasons
            else:
                fitted = fit(given, schema, self._rules)
                wrong = fitted.wrong
                if not wrong:
                    return fitted.rows if schema is None else refit(fitted.rows, schema), len(rows) - len(good)
            good = np.delete(good, sorted(wrong))

    def _compare(
        self, table: str, parts: Sequence[pa.Table], partition: TopicPartition, first: int, end: int
    ) -> Checked:
        schema = self._lake.schema(table)
        expected = pa.concat_tables(parts, promote_options="permissive") if parts else None
        count = 0 if expected is None else len(expected)
        if schema is None:
            return Checked(count, missing=tuple(_offsets(expected)))
        topic = partition.topic if self._has_topics else None
        span = Span(table, partition.topic, topic, partition.partition, first, end)
        found = self._lake.read(span)
        there, rows = np.unique(_offsets(found), return_index=True)
        wanted = _offsets(expected)
        present = np.isin(wanted, there)
        foreign = found.filter(pa.array(~np.isin(_offsets(found), wanted)))
        different: tuple[int, ...] = ()
        if expected is not None and present.any():
            both = wanted[present]
            own = expected.filter(pa.array(present))
            different = tuple(both[_differ(own, found.take(rows[np.searchsorted(there, both)]))].tolist())
        missing = tuple(wanted[~present].tolist())
        twice = len(found) - len(foreign) - int(present.sum())
        wrong = len(missing) + len(different) + twice
        if expected is not None and wrong and self._repairs:
            # Whether compaction removed their records, or they never had one, nobody knows: they stay.
            self._lake.replace(span, pa.concat_tables([expected, refit(foreign, schema)]))
        unexpected = len(foreign) + twice
        return Checked(count, 0, missing, different, unexpected, wrong if self._repairs else 0)

    def finish(self) -> None:
        """See ``Verifier``."""

    def close(self) -> None:
        """See ``Verifier``."""


def _chosen(rows: Rows, indices: Any) -> Rows:
    at = pa.array(indices)
    parts = (rows.values, rows.keys, rows.offsets, rows.timestamps_ms, rows.headers)
    values, keys, offsets, timestamps_ms, headers = (part.take(at) for part in parts)
    return replace(rows, values=values, keys=keys, offsets=offsets, timestamps_ms=timestamps_ms, headers=headers)


def _offsets(table: pa.Table | None) -> Any:
    return np.array([], np.int64) if table is None else table.column(OFFSET).to_numpy()


def _differ(own: pa.Table, found: pa.Table) -> Any:
    """Which rows of two tables have another value somewhere. A column that is not there is null."""
    differ = np.zeros(len(own), bool)
    for name in own.column_names:
        column: Any = own.column(name)
        if name not in found.column_names:
            differ |= column.is_valid().to_numpy()
            continue
        other: Any = found.column(name)
        try:
            same = column.equals(other.cast(column.type))
        except pa.ArrowException:
            same = False
        if not same:
            pairs = zip(column.to_pylist(), other.to_pylist(), strict=True)
            differ |= np.array([repr(one) != repr(two) for one, two in pairs], bool)
    return differ


def _sum(one: Checked, two: Checked) -> Checked:
    return Checked(
        one.records + two.records,
        one.refused + two.refused,
        (*one.missing, *two.missing),
        (*one.different, *two.different),
        one.unexpected + two.unexpected,
        one.repaired + two.repaired,
    )
