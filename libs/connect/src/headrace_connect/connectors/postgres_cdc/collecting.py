"""
Pieces of transactions become groups of changes, one for each table, with the position that is behind each.

Many small transactions are converted together, and a table's changes in one go. The order of a table's changes stays;
that of changes of different tables is in the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.core.changes import Change, Piece, Position, Transaction
from headrace_connect.core.pgoutput.messages import Relation

NOWHERE: Final = Place("", 0)
TABLES_MAX: Final = 16
"""Of one unit: positions between its groups name them."""


@dataclass(slots=True)
class Group:
    """Changes of one table, in order."""

    relation: Relation
    changes: list[Change] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    """Of each change."""
    base: Place = field(default=NOWHERE, compare=False)
    """Before it; set when it is given."""

    @property
    def end(self) -> Position:
        """Its last change."""
        return Position(self.transactions[-1].commit_lsn, self.changes[-1].index)


class Collector:
    """Changes that wait until they are converted. What is safe already, and what nobody wants, is left out."""

    def __init__(
        self, place: Place, wants: Callable[[Relation], bool], changes_max: int, tables_max: int = TABLES_MAX
    ) -> None:
        self.place = place
        """Behind all that ``flush`` has given; may be replaced, with the same place in the stream."""
        self._wants = wants
        self._changes_max = changes_max
        self._tables_max = tables_max
        self._groups: dict[tuple[int, int], Group] = {}
        self._open: dict[int, tuple[Group | None, Relation]] = {}
        """By oid: the group that takes its changes, None: nobody wants them; and the table as they have it."""
        self._count = 0
        self._end = place.end
        """Behind all that was added."""

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        return not self._groups

    @property
    def is_full(self) -> bool:
        """It should be flushed."""
        return self._count >= self._changes_max

    def add(self, piece: Piece) -> Iterator[tuple[Group, Place]]:
        """Take a piece; what must be converted first is given as by ``flush``. Must be read to its end."""
        transaction = piece.transaction
        is_new = not self.place.ahead and transaction.commit_lsn > self.place.lsn
        at = self._end
        for change in piece.changes:
            relation = change.relation
            group, known = self._open.get(relation.oid, (None, None))
            if known is not relation and known != relation:
                if len(self._groups) >= self._tables_max:
                    self._end = max(self._end, at)
                    yield from self.flush()
                group = self._begin(relation)
            at = Position(transaction.commit_lsn, change.index)
            if group is not None and (is_new or not self.place.has(relation.oid, at)):
                group.changes.append(change)
                group.transactions.append(transaction)
                self._count += 1
        self._end = max(self._end, at)
        if piece.end_lsn is not None:
            self._end = max(self._end, Position(piece.end_lsn, -1))

    def _begin(self, relation: Relation) -> Group | None:
        group = Group(relation) if self._wants(relation) else None
        self._open[relation.oid] = group, relation
        if group is not None:
            self._groups[relation.oid, len(self._groups)] = group
        return group

    def flush(self) -> Iterator[tuple[Group, Place]]:
        """What waits, and the place behind each group of it. ``place`` moves in any case."""
        groups = [group for group in self._groups.values() if group.changes]
        self._groups, self._open, self._count = {}, {}, 0
        for group in groups[:-1]:
            group.base = self.place
            self.place = replace(self.place, ahead={**self.place.ahead, group.relation.oid: group.end})
            yield group, self.place
        if groups:
            groups[-1].base = self.place
        self.place = self.place.moved(self._end.commit_lsn, self._end.index)
        if groups:
            yield groups[-1], self.place

    def skip_to(self, lsn: int) -> None:
        """The server has sent all transactions that committed below ``lsn``."""
        assert self.is_empty, "what waits comes first"
        self._end = max(self._end, Position(lsn, -1))
        self.place = self.place.moved(self._end.commit_lsn, self._end.index)
