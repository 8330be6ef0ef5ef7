"""What a process says of its certificates, and when somebody has to be told that one nears its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DAY_MS: Final = 86_400_000
WARN_MS: Final = 14 * _DAY_MS
"""Before the end of a certificate of a node."""
WARN_CA_MS: Final = 180 * _DAY_MS
"""Before the end of a CA: to change it takes clients, too."""
WARN_LEFT: Final = 1 / 4
"""Of its life, where that is less: those that live for a day are renewed by then, whoever keeps them."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What one says, of a node or of a CA. Times are in Unix ms."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """Hosts and addresses."""
    uris: tuple[str, ...]
    serial: str
    """Hexadecimal."""
    fingerprint: str
    """SHA-256, hexadecimal."""
    not_before_ms: int
    not_after_ms: int

    def warns_from_ms(self, warn_ms: int = WARN_MS) -> float:
        """From when on its end is near."""
        return warns_from_ms(self.not_before_ms, self.not_after_ms, warn_ms)


def warns_from_ms(not_before_ms: int, not_after_ms: int, warn_ms: int = WARN_MS) -> float:
    """``warn_ms`` before its end; of one with a short life, when a quarter of that is left."""
    return not_after_ms - min(warn_ms, (not_after_ms - not_before_ms) * WARN_LEFT)


@dataclass(frozen=True, slots=True)
class Served:
    """What a process uses for some of its listeners."""

    name: str
    """As ``service`` or ``mtls``."""
    certificate: Certificate
    not_after_ms: int
    """When the first of those ends that are shown."""
    issuer: Certificate
    """The CA of ``certificate``."""
    trusted: tuple[Certificate, ...]
    """Of nodes, or of clients with certificates."""
    trusted_more: int = 0
    """There are so many besides."""
    refused: str = ""
    """Why the files were not taken when they were looked at last. Empty: they were."""
    behind: bool = False
    """A listener still shows those of before."""
