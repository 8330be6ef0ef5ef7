"""
One operation that a caller asks for again and again: streams hold these and ask for each batch.

Each name is decided once for a generation of the rules. So a right that is taken away counts from the next request, and
a request costs a look into a dictionary.
"""

from __future__ import annotations

from typing import Final

from headrace_common.core.access.control import Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.errors import Denied

NAMES_MAX: Final = 10_000
"""Remembered by one ``Right``; then it begins anew."""
EXPLAINED_MAX: Final = 20
"""Refusals of one generation that say what would allow it: to find that takes long, and one request may name many."""


class Right:
    """What one caller may do by ``operation`` with the resources of a type. One event loop."""

    __slots__ = ("_control", "_explained", "_generation", "_known", "_operation", "_refusals", "_rights", "_type")

    def __init__(self, rights: Rights, operation: Operation, type: ResourceType) -> None:
        self._rights = rights
        self._control = rights.control
        self._operation = operation
        self._type = type
        self._known: dict[str, bool] = {}
        self._refusals: dict[str, Denied] = {}
        self._explained = 0
        self._generation = self._control.generation

    def may(self, name: str) -> bool:
        """See ``Control.may``."""
        if self._generation != self._control.generation:
            self._forget()
        known = self._known.get(name)
        return self._decide(name) if known is None else known

    def check(self, name: str) -> None:
        """
        Raises:
            Denied: it may not.
        """
        if not self.may(name):
            raise self.refusal(name)

    def refusal(self, name: str) -> Denied:
        """See ``Control.refusal``; only the first ``EXPLAINED_MAX`` names are told more than that it may not."""
        if self._generation != self._control.generation:
            self._forget()
        known = self._refusals.get(name)
        if known is None:
            explained = self._explained < EXPLAINED_MAX
            self._explained += explained
            known = self._rights.refusal(self._operation, self._type, name, explained=explained)
            if explained:
                self._refusals[name] = known
        return type(known)(str(known))  # one that is raised again and again would hold all frames that it went through

    def _decide(self, name: str) -> bool:
        if len(self._known) >= NAMES_MAX:
            self._known.clear()
        decision = self._known[name] = self._rights.may(self._operation, self._type, name)
        return decision

    def _forget(self) -> None:
        self._generation = self._control.generation
        self._explained = 0
        self._known.clear()
        self._refusals.clear()
