"""
Decides which controller to ask next.

Only the active controller takes writes. Where it is comes from three sources: hints in NOT_CONTROLLER errors, the
cluster image, and the bootstrap list, which is tried in turn while neither is known. Used by the controller client's
calls and by its heartbeat thread at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock

from headrace_common.core.ids import Endpoint


class ControllerRoute:
    """Where the active controller probably is. Safe to use from several threads."""

    def __init__(self, bootstrap: Sequence[Endpoint]) -> None:
        if not bootstrap:
            raise ValueError("no controller is named; give at least one as host:port")
        self._lock = Lock()
        self._bootstrap = tuple(bootstrap)
        self._others: tuple[Endpoint, ...] = ()
        self._turn = 0
        self._active: Endpoint | None = None
        self._epoch = -1

    @property
    def size(self) -> int:
        """How many controllers are known."""
        with self._lock:
            return len(self._list_endpoints())

    @property
    def addresses(self) -> frozenset[Endpoint]:
        """All that may be asked: those of the bootstrap list, of the newest image, and who was said to be active."""
        with self._lock:
            return frozenset(self._list_endpoints()) | ({self._active} if self._active is not None else frozenset())

    def target(self) -> Endpoint:
        """Whom to ask now."""
        with self._lock:
            known = self._list_endpoints()
            return self._active or known[self._turn % len(known)]

    def moved(self, asked: Endpoint, hint: str | None) -> bool:
        """``asked`` is not active and says who is; True when that is worth asking at once."""
        named = _parse_hint(hint)
        with self._lock:
            if named is not None and named != asked:
                self._active = named
                return True
            self._forget(asked)
            return False

    def failed(self, asked: Endpoint) -> None:
        """``asked`` did not answer."""
        with self._lock:
            self._forget(asked)

    def learned(self, active: Endpoint | None, epoch: int, controllers: Iterable[Endpoint] = ()) -> None:
        """What an image says. An epoch that is known already brings nothing new: hints may be newer."""
        with self._lock:
            self._others = tuple(e for e in controllers if e not in self._bootstrap)
            if epoch > self._epoch:
                self._epoch = epoch
                self._active = active

    def _list_endpoints(self) -> tuple[Endpoint, ...]:
        return self._bootstrap + self._others

    def _forget(self, asked: Endpoint) -> None:
        if self._active is not None and asked != self._active:
            return  # somebody else has learned better meanwhile
        self._active = None
        known = self._list_endpoints()
        self._turn = (known.index(asked) + 1) % len(known) if asked in known else self._turn


def _parse_hint(hint: str | None) -> Endpoint | None:
    if not hint:
        return None
    try:
        return Endpoint.parse(hint)
    except ValueError:
        return None
