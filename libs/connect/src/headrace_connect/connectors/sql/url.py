"""Where a database is: ``connection.url`` of both connectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SCHEMES: Final = ("sqlite", "postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """One that there is a driver for."""

    text: str
    """Without ``jdbc:``."""

    @classmethod
    def parse(cls, given: str) -> DatabaseUrl:
        """
        Raises:
            ValueError: says what it should be.
        """
        url = cls(given.removeprefix("jdbc:"))
        if url.scheme not in _SCHEMES:
            raise ValueError(
                "connection.url is sqlite:///PATH or postgresql://HOST:PORT/DATABASE; other databases need a connector "
                "of their own"
            )
        if url.scheme == "sqlite" and not url.path:
            raise ValueError("connection.url has no path; it is sqlite:///PATH, four slashes for an absolute one")
        return url

    @property
    def scheme(self) -> str:
        """Which database: sqlite, postgresql, postgres."""
        return self.text.partition(":")[0]

    @property
    def path(self) -> str:
        """Of SQLite."""
        rest = self.text.partition(":")[2]
        if rest.startswith("//"):
            return rest[3:] if rest.startswith("///") else ""
        return rest
