"""
Decides how long a browser stays logged in, by what its cookie says: the caller's own credential, when it logged in, and
when it was heard of last. Nothing of it is kept here; the rest of REST sees the credential alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headrace_common.core.errors import CredentialsExpired
from headrace_common.core.secret import Secret

LASTS_MS: Final = 8 * 3_600_000
IDLE_MS: Final = 3_600_000
"""A session that is not used for so long is over."""
RENEW_MS: Final = 60_000
"""So often a cookie says anew that it was used."""
_VERSION: Final = "1"


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """What a cookie says, sealed. Times are Unix time, in ms."""

    bearer: Secret
    began_ms: int
    used_ms: int

    @staticmethod
    def begin(bearer: Secret, now_ms: int) -> BrowserSession:
        """Of who has just logged in."""
        return BrowserSession(bearer, now_ms, now_ms)

    @property
    def ends_ms(self) -> int:
        """However much it is used."""
        return self.began_ms + LASTS_MS

    @property
    def idle_ends_ms(self) -> int:
        """Unless it is used again."""
        return min(self.ends_ms, self.used_ms + IDLE_MS)

    def check(self, now_ms: int) -> None:
        """
        Raises:
            CredentialsExpired: it is over.
        """
        if now_ms >= self.ends_ms:
            raise CredentialsExpired(f"the session began {LASTS_MS // 3_600_000} hours ago, and is over; log in again")
        if now_ms >= self.idle_ends_ms:
            raise CredentialsExpired("the session was not used for an hour, and is over; log in again")

    def use(self, now_ms: int, *, anew: bool = False) -> BrowserSession | None:
        """
        The session as its cookie has to say it from now on; None: the cookie may stay as it is.

        Args:
            anew: it may not, whatever it says.
        """
        return replace(self, used_ms=now_ms) if anew or now_ms - self.used_ms >= RENEW_MS else None

    def to_text(self) -> str:
        """To be sealed: it has the credential."""
        return f"{_VERSION} {self.began_ms} {self.used_ms} {self.bearer.reveal()}"

    @staticmethod
    def of_text(text: str) -> BrowserSession | None:
        """None: another version has written it."""
        version, *parts = text.split(" ", 3)
        if version != _VERSION or len(parts) != 3:
            return None
        began, used, bearer = parts
        return BrowserSession(Secret(bearer), int(began), int(used))
