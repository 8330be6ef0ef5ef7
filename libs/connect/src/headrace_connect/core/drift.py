"""
Fields and columns that change: what becomes of a field that the table of a sink does not have, or not so, and of
columns that a table of a source has, or has no more. Both are the setting ``drift``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.events import DRIFT, Event, Notify

_DIGEST_BYTES = 4


class Drift(StrEnum):
    """See the settings of each sink."""

    ADD = "add"
    STRICT = "strict"
    FAIL = "fail"
    IGNORE = "ignore"


class SourceDrift(StrEnum):
    """
    Of a source. What is read is what there is: to leave columns out would need those that were there first, for ever,
    and a row with a new column is no bad row.
    """

    ADD = "add"
    FAIL = "fail"


class Columns:
    """The columns of a table of a source: notices when they change."""

    def __init__(
        self, table: str, drift: SourceDrift, notify: Notify, known: str = "", *, shows_types: bool = True
    ) -> None:
        """
        Args:
            known: ``digest`` of the rows that were read before this start; empty: that is not known.
            shows_types: whether they say something to people.
        """
        self._table = table
        self._drift = drift
        self._notify = notify
        self._digest = known
        self._shows_types = shows_types
        self._seen: Mapping[str, str] | None = None

    @property
    def digest(self) -> str:
        """What a position has of the columns that were read last, where ``drift`` is ``fail``; else it is empty."""
        return self._digest if self._drift is SourceDrift.FAIL else ""

    def see(self, columns: Mapping[str, str]) -> None:
        """
        Before rows are given on that have these columns, with these types. Changes are told.

        Raises:
            InvalidConfig: they have changed, and ``drift`` is ``fail``.
        """
        if columns == self._seen:
            return
        changes = self._find_changes(columns)
        for text, names in changes:
            self._notify(Event(DRIFT, f"the table {self._table} {text}", {"table": self._table, "columns": names}))
        if changes and self._drift is SourceDrift.FAIL:
            raise InvalidConfig(
                f"drift: the table {self._table} {'; '.join(text for text, _ in changes)}. With drift=fail nothing is "
                "read on: tell those who read the topic, and set drift=add, which takes the columns as they are. It "
                "may be fail again when the connector has read on"
            )
        self._seen, self._digest = dict(columns), _digest(columns)

    def _find_changes(self, now: Mapping[str, str]) -> list[tuple[str, str]]:
        """For people, and the names of the columns."""
        before = self._seen
        if before is None:
            if self._digest in ("", _digest(now)):
                return []
            names = ", ".join(sorted(now))
            return [(f"has other columns than those that were read before: now {names}", names)]
        other = sorted(name for name in now.keys() & before.keys() if now[name] != before[name])
        shown = [f"{name} ({now[name]} now, and was {before[name]})" if self._shows_types else name for name in other]
        new, gone = sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys())
        found = (("has more", new, new), ("has no more", gone, gone), ("has changed", shown, other))
        return [(f"{what}: {', '.join(said)}", ", ".join(names)) for what, said, names in found if names]


def _digest(columns: Mapping[str, str]) -> str:
    """Short, as a position has room for little."""
    text = "\0".join(f"{name}\0{columns[name]}" for name in sorted(columns))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
