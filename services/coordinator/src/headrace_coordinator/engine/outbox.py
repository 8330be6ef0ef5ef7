"""
Decides when an effect may be seen: not before everything that its group had to persist until then is committed.

Appends of a shard go one at a time. What gathers while one is under way is one append again: of each key the last
value, of each group its record as it is when the append is built. Effects wait for the append under way or for the
one that gathers, never longer; so there are two lists and no search.

A **proof** is the same without a record: what is read from memory may be shown after an append that began later has
succeeded under the shard's token, because until then nobody else had taken the shard over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from headrace_coordinator.core.effects import Answer, CloseStream, Persist, PersistGroup, Row, Send

Visible = Send | CloseStream | Answer
"""What follows from events of groups, besides records."""


class Keyed(Protocol):
    """Any effect that is to be seen outside."""

    @property
    def group_id(self) -> str:
        """What its order and its waiting belong to: the group, or the transactional id."""
        ...


V = TypeVar("V", bound=Keyed)


class Outbox(Generic[V]):
    """Of one shard. The host calls ``take`` after each event; the writer ``begin`` and ``done`` around each append."""

    def __init__(self, group_rows: Callable[[str], list[Row]], show: Callable[[V], None]) -> None:
        self._group_rows = group_rows
        self._show = show
        self._rows: dict[bytes, bytes | None] = {}
        self._groups: dict[str, None] = {}
        self._proof_wanted = False
        self._gathering = 1
        """Number of the append that gathers."""
        self._done = 0
        """Number of the last append that is committed."""
        self._waits: dict[str, int] = {}
        """The append that effects of a group wait for."""
        self._behind_gathering: list[V] = []
        self._behind_under_way: list[V] = []

    @property
    def append_wanted(self) -> bool:
        """Whether there is something to write, or somebody waits for a proof."""
        return bool(self._rows or self._groups or self._proof_wanted)

    @property
    def held(self) -> int:
        return len(self._behind_gathering) + len(self._behind_under_way)

    @property
    def rows(self) -> int:
        return len(self._rows) + len(self._groups)

    def take(self, effects: Iterable[Persist | PersistGroup | V], *, proof: bool) -> None:
        """
        The effects of one event, in order.

        Args:
            proof: show nothing of them before an append that begins after now has succeeded.
        """
        for effect in effects:
            match effect:
                case Persist(group_id, rows):
                    for key, value in rows:
                        self._rows.pop(
                            key, None
                        )  # at its new place: what is cut off an append is then the newest of it
                        self._rows[key] = value
                    self._waits[group_id] = self._gathering
                case PersistGroup(group_id):
                    self._groups[group_id] = None
                    self._waits[group_id] = self._gathering
                case _:
                    if proof:
                        self._waits[effect.group_id] = self._gathering
                        self._proof_wanted = True
                    self._hold_or_show(effect)

    def _hold_or_show(self, effect: V) -> None:
        waits_for = self._waits.get(effect.group_id, 0)
        if waits_for <= self._done:
            self._show(effect)
        elif waits_for == self._gathering:
            self._behind_gathering.append(effect)
        else:
            self._behind_under_way.append(effect)

    def begin(self) -> list[Row]:
        """The next append, each key once; empty: only a proof is wanted."""
        assert self._done == self._gathering - 1, "one append at a time"
        rows = self._rows
        for group_id in self._groups:
            rows.update(self._group_rows(group_id))
        self._rows, self._groups, self._proof_wanted = {}, {}, False
        self._behind_under_way, self._behind_gathering = self._behind_gathering, []
        self._gathering += 1
        return list(rows.items())

    def done(self) -> None:
        """The append is committed: show what waited for it."""
        self._done = self._gathering - 1
        self._waits = {group_id: number for group_id, number in self._waits.items() if number > self._done}
        shown, self._behind_under_way = self._behind_under_way, []
        for effect in shown:
            self._show(effect)
