"""Of a store's committed state the rows of one key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace_streams.core.state.store import Cold


class OfKey:
    """Satisfies ``Cold``."""

    def __init__(self, cold: Cold, key: bytes, begins_at: int) -> None:
        """
        Args:
            begins_at: how many bytes of a row's key stand before the record's key. 0: there is one row at most.
        """
        self._cold = cold
        self._key = key
        self._begins_at = begins_at

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._cold.get(keys)

    def scan(self, prefix: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        if self._begins_at == 0:
            (value,) = self._cold.get([self._key])
            return [(self._key, value)] if value is not None and self._key.startswith(prefix) else []
        return (row for row in self._cold.scan(prefix) if row[0][self._begins_at :] == self._key)


class Between:
    """Satisfies ``Cold``: of what another one holds, the rows of keys from ``first`` to ``last``, both among them."""

    def __init__(self, cold: Cold, first: bytes | None, last: bytes | None, begins_at: int) -> None:
        """
        Args:
            begins_at: as for ``OfKey``.
        """
        self._cold = cold
        self._first = first or b""
        self._last = last
        self._begins_at = begins_at

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._cold.get(keys)

    def scan(self, prefix: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        return (row for row in self._cold.scan(prefix) if self._holds(row[0][self._begins_at :]))

    def _holds(self, key: bytes) -> bool:
        return self._first <= key and (self._last is None or key <= self._last)
