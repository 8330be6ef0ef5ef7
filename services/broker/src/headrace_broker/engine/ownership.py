"""
Whose producer ids a caller may use: in a closed cluster its own, which ``InitProducerId`` gave to the same principal.

Without that whoever may write a topic could write as another's producer: ids and sequences stand in every batch.
"""

from __future__ import annotations

from typing import Final

from headrace_broker.core.owned_ids import is_owned_by, owned_id
from headrace_common.core.access.control import Rights
from headrace_common.core.access.principal import ANONYMOUS, PrincipalType
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import ErrorCode, HeadraceError, error_for

KNOWN_MAX: Final = 10_000
"""Ids that one stream remembers to be its caller's; then it begins anew."""


class Ownership:
    """For one stream, or one call. What changes of access counts at once. One event loop."""

    __slots__ = ("_asked", "_control", "_generation", "_key", "_known", "_named", "_owner")

    def __init__(self, rights: Rights) -> None:
        caller = rights.caller.principal
        self._control = rights.control
        self._owner = str(caller)
        self._named = caller != ANONYMOUS and caller.type is not PrincipalType.NODE
        self._known: set[int] = set()
        self._key = b""
        self._look()

    @property
    def holds(self) -> bool:
        """Whether batches of this caller are held against it: the cluster is closed, and the caller is no node."""
        if self._generation != self._control.generation:
            self._look()
        return self._asked

    def refusal(self, producer_id: int) -> HeadraceError | None:
        """Why a batch of this id is none of the caller's; None: it is, or nobody asks."""
        if self._generation != self._control.generation:
            self._look()
        if not self._asked or producer_id in self._known:
            return None
        if not is_owned_by(producer_id, self._owner, self._key):
            return error_for(
                ErrorCode.UNKNOWN_PRODUCER_ID,
                f"producer id {producer_id} was not given to {self._owner}; ask for one with InitProducerId. Nothing "
                "was appended",
            )
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known.add(producer_id)
        return None

    def own(self, serial: int) -> int:
        """The id that the caller gets for a number of the counter: as it is while the cluster is open."""
        view = self._control.view
        gives = self._named and view.mode is not Mode.OPEN and bool(view.producer_key)
        return owned_id(serial, self._owner, view.producer_key) if gives else serial

    def _look(self) -> None:
        view = self._control.view
        self._generation = self._control.generation
        if view.producer_key != self._key:
            self._known.clear()
            self._key = view.producer_key
        self._asked = self._named and view.mode is Mode.CLOSED and bool(self._key)
