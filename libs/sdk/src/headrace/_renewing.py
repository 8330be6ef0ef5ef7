"""
What ``headrace login --oidc`` has got: a token of an issuer, in a file that all programs of the user read, and another
one for it when most of its life is over. Providers take a refresh token once, so one program at a time renews.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

from headrace._issuer_calls import post_form
from headrace._sign_on import LEEWAY_MS, SignOn, Tokens, again, read_tokens, renewal
from headrace.local_keys import write_local_key
from headrace_common.core.errors import CredentialsExpired, InvalidConfig, NetworkFailed
from headrace_common.core.secret import Secret
from headrace_common.runtime.clock import SystemClock

RENEWED_AFTER: Final = 0.8
"""Of a token's life."""
LOCK_MS_MAX: Final = 15_000.0
"""How long one program waits for another that renews."""
_LOCK_LOOKS_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Issued:
    """A login by an issuer."""

    addresses: tuple[str, ...]
    """Of the cluster."""
    sign_on: SignOn
    tokens: Tokens
    renew_ms: int
    """Unix time from which on another token is wanted."""
    token_endpoint: str
    revocation_endpoint: str | None = None

    def is_due(self, now_ms: float) -> bool:
        """Whether it is time for another token."""
        return now_ms >= self.renew_ms

    def is_over(self, now_ms: float) -> bool:
        """Whether the cluster takes the token no more."""
        return now_ms >= self.tokens.expires_ms + LEEWAY_MS


def issue(
    addresses: tuple[str, ...], sign_on: SignOn, tokens: Tokens, token_endpoint: str, revocation_endpoint: str | None
) -> Issued:
    """A login of now."""
    now_ms = SystemClock().now_ms()
    renew_ms = now_ms + int((tokens.expires_ms - now_ms) * RENEWED_AFTER)
    return Issued(addresses, sign_on, tokens, renew_ms, token_endpoint, revocation_endpoint)


def write_issued(directory: Path, name: str, login: Issued) -> Path:
    """Have programs of this user find it; see ``write_local_key``. Raises: OSError: it cannot be written."""
    more: dict[str, str | int | list[str]] = {
        "issuer": login.sign_on.alias,
        "iss": login.sign_on.iss,
        "client_id": login.sign_on.client_id,
        "scopes": list(login.sign_on.scopes),
        "token": login.sign_on.token,
        "expires_ms": login.tokens.expires_ms,
        "renew_ms": login.renew_ms,
        "token_endpoint": login.token_endpoint,
    }
    if login.revocation_endpoint is not None:
        more["revocation_endpoint"] = login.revocation_endpoint
    if login.tokens.refresh is not None:
        more["refresh_token"] = login.tokens.refresh.reveal()
    return write_local_key(directory, name, login.addresses, login.tokens.bearer, more=more)


def read_issued(file: Path) -> Issued | None:
    """
    The login in a file; None: it is one by password.

    Raises:
        OSError, ValueError, KeyError, TypeError: it cannot be read.
    """
    import tomllib

    said: dict[str, Any] = tomllib.loads(file.read_text())
    if "issuer" not in said:
        return None
    refresh = said.get("refresh_token")
    sign_on = SignOn(said["issuer"], said["iss"], said["client_id"], tuple(said["scopes"]), said["token"])
    tokens = Tokens(Secret(said["api_key"]), int(said["expires_ms"]), None if refresh is None else Secret(refresh))
    return Issued(
        tuple(said["addresses"]),
        sign_on,
        tokens,
        int(said["renew_ms"]),
        said["token_endpoint"],
        said.get("revocation_endpoint"),
    )


def renew(file: Path, shown: Secret) -> None:
    """
    Get another token than ``shown``, and write it, unless another program has done so meanwhile. Blocks, for half a
    minute at most.

    Raises:
        CredentialsExpired: only a person can go on; the text says how.
        HeadraceError: there is none now; what there is stays.
    """
    try:
        with _alone(file):
            login = read_issued(file)
            if login is None or login.tokens.bearer != shown:
                return
            write_issued(file.parent, file.stem, _renewed(login))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidConfig(f"the login {file} cannot be renewed there: {type(error).__name__}") from None


def _renewed(login: Issued) -> Issued:
    sign_on, refresh = login.sign_on, login.tokens.refresh
    if refresh is None:
        raise CredentialsExpired(f"{sign_on.alias} gave nothing to renew the login with; {again(sign_on.alias)}")
    status, said = post_form(login.token_endpoint, renewal(sign_on, refresh))
    tokens = read_tokens(status, said, sign_on, SystemClock().now_ms())
    kept = Tokens(tokens.bearer, tokens.expires_ms, tokens.refresh or refresh)
    return issue(login.addresses, sign_on, kept, login.token_endpoint, login.revocation_endpoint)


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Raises: NetworkFailed: another program renews it, and does not get ready."""
    import fcntl

    clock, wait = SystemClock(), Event()
    until_ms = clock.monotonic_ms() + LOCK_MS_MAX
    with open(os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic_ms() >= until_ms:
                    raise NetworkFailed(f"another program renews {file}, and does not get ready") from None
                wait.wait(_LOCK_LOOKS_S)
        yield
