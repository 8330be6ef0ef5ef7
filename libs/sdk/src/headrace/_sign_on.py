"""
Decides how a person logs in at an OIDC provider from a program without a secret: what is asked, and what is believed of
the answers. Authorization code with PKCE (RFC 7636, 8252), device code (RFC 8628), refresh (RFC 6749). Pure.

The signature of a token is not looked at here: it came from the provider itself, by TLS, and the cluster verifies it.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from headrace_common.core.access.issuers import ACCESS_TOKEN, is_loopback_url
from headrace_common.core.access.tokens import split_token
from headrace_common.core.errors import CredentialsExpired, Rejected, Unauthenticated
from headrace_common.core.secret import Secret

TEXT_CHARS_MAX: Final = 8_192
LEEWAY_MS: Final = 30_000
DEVICE_S_MAX: Final = 900
"""How long a person may take with a device code, whatever the provider says."""
OFFLINE: Final = "offline_access"
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(frozen=True, slots=True)
class SignOn:
    """What the cluster tells of an issuer."""

    alias: str
    iss: str
    client_id: str
    scopes: tuple[str, ...]
    token: str
    """The one that the cluster takes: ``id_token`` or ``access_token``."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Where an issuer is asked for what."""

    iss: str
    authorization: str
    token: str
    device: str | None = None
    revocation: str | None = None
    says_iss: bool = False
    """It names itself where it sends a browser back (RFC 9207)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a person got by logging in."""

    bearer: Secret
    """What the cluster is shown."""
    expires_ms: int
    """Unix time."""
    refresh: Secret | None = None


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a person types elsewhere."""

    user_code: str
    place: str
    """Where to type it."""
    place_with_code: str | None
    device_code: Secret
    expires_s: float
    interval_s: float


def discovery_url(iss: str) -> str:
    """Raises: Rejected: that is no address that a provider may be asked at."""
    _check_url("iss", iss, iss)
    return f"{iss.rstrip('/')}/.well-known/openid-configuration"


def read_provider(said: Mapping[str, Any], iss: str) -> Provider:
    """
    From its OpenID configuration.

    Raises:
        Rejected: it is of another issuer, or names no places that may be asked.
    """
    if said.get("issuer") != iss:
        raise Rejected(
            f"what is published at {iss} is of issuer {_shown(said.get('issuer'))}; iss has to be the same to the "
            "letter: tell the operator of the cluster"
        )
    device, revocation = said.get("device_authorization_endpoint"), said.get("revocation_endpoint")
    return Provider(
        iss,
        _check_url("authorization_endpoint", said.get("authorization_endpoint"), iss),
        _check_url("token_endpoint", said.get("token_endpoint"), iss),
        None if device is None else _check_url("device_authorization_endpoint", device, iss),
        None if revocation is None else _check_url("revocation_endpoint", revocation, iss),
        said.get("authorization_response_iss_parameter_supported") is True,
    )


def _check_url(name: str, url: object, iss: str) -> str:
    """Plain text only to this machine, and only from an issuer that is there itself."""
    text = url if isinstance(url, str) and len(url) <= TEXT_CHARS_MAX and url.isascii() and url.isprintable() else ""
    try:
        parts = urlsplit(text)
        whole = bool(parts.hostname) and "@" not in parts.netloc and not parts.fragment
    except ValueError:
        whole = False
    safe = text.startswith("https://") or (is_loopback_url(text) and is_loopback_url(iss))
    if not whole or not safe:
        raise Rejected(f"{name} of issuer {_shown(iss)} is {_shown(url)}; it has to be https://HOST/PATH")
    return text


# --- with a browser on this machine ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempt:
    """One login by browser; its three secrets are drawn for it alone."""

    provider: Provider
    sign_on: SignOn
    redirect_uri: str
    state: str
    nonce: str
    verifier: Secret

    def url(self) -> str:
        """Where the person's browser goes."""
        asked = {
            "response_type": "code",
            "client_id": self.sign_on.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": " ".join(self.sign_on.scopes),
            "state": self.state,
            "nonce": self.nonce,
            "code_challenge": challenge_of(self.verifier),
            "code_challenge_method": "S256",
        }
        if OFFLINE in self.sign_on.scopes:  # without it providers leave this scope out (OpenID Connect Core, 11)
            asked["prompt"] = "consent"
        parts = urlsplit(self.provider.authorization)
        query = "&".join(filter(None, (parts.query, urlencode(asked))))
        return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))

    def is_mine(self, target: str) -> bool:
        """Whether what a browser asks for is the end of this login, and not something that another page has made up."""
        parts = urlsplit(target)
        state = _only(parse_qs(parts.query, keep_blank_values=True), "state") or ""
        here = parts.path == urlsplit(self.redirect_uri).path
        return here and hmac.compare_digest(state.encode(), self.state.encode())

    def code(self, target: str) -> Secret:
        """
        What the provider sent the browser back with.

        Raises:
            Unauthenticated: it refused, or it is another one.
        """
        said = parse_qs(urlsplit(target).query, keep_blank_values=True)
        iss = _only(said, "iss")
        if iss != self.provider.iss and (iss is not None or "iss" in said or self.provider.says_iss):
            raise Unauthenticated(f"the login was ended by {_shown(iss)} and not by {self.provider.iss}; begin again")
        if "error" in said:
            raise Unauthenticated(f"{self.provider.iss} refused: {_refusal({k: v[0] for k, v in said.items()})}")
        code = _only(said, "code")
        if not code:
            raise Unauthenticated(f"{self.provider.iss} has sent no code; begin again")
        return Secret(code)

    def exchange(self, code: Secret) -> dict[str, str]:
        """What the token endpoint is asked."""
        return {
            "grant_type": "authorization_code",
            "code": code.reveal(),
            "redirect_uri": self.redirect_uri,
            "client_id": self.sign_on.client_id,
            "code_verifier": self.verifier.reveal(),
        }


def challenge_of(verifier: Secret) -> str:
    """S256 of RFC 7636."""
    return urlsafe_b64encode(hashlib.sha256(verifier.reveal().encode()).digest()).rstrip(b"=").decode()


def _only(said: Mapping[str, list[str]], name: str) -> str | None:
    values = said.get(name, [])
    return values[0] if len(values) == 1 else None


# --- elsewhere ------------------------------------------------------------------------------------------------


def read_device_code(said: Mapping[str, Any], iss: str) -> DeviceCode:
    """Raises: Rejected: it is none."""
    texts = [said.get(name) for name in ("user_code", "verification_uri", "device_code")]
    if not all(isinstance(text, str) and text for text in texts):
        raise Rejected(f"{iss} gave no device code: it has user_code, verification_uri and device_code")
    whole = said.get("verification_uri_complete")
    return DeviceCode(
        str(texts[0])[:64],
        _check_url("verification_uri", texts[1], iss),
        None if whole is None else _check_url("verification_uri_complete", whole, iss),
        Secret(str(texts[2])),
        min(_seconds(said.get("expires_in"), DEVICE_S_MAX), DEVICE_S_MAX),
        min(max(_seconds(said.get("interval"), 5), 1), 60),
    )


def waits_on(said: Mapping[str, Any]) -> float | None:
    """By how many seconds longer the device code is asked for; None: what is said is the last word."""
    return {"authorization_pending": 0.0, "slow_down": 5.0}.get(str(said.get("error")))


# --- tokens ---------------------------------------------------------------------------------------------------


def read_tokens(
    status: int, said: Mapping[str, Any], sign_on: SignOn, now_ms: float, nonce: str | None = None
) -> Tokens:
    """
    What the token endpoint answered.

    Args:
        nonce: of the login that this ends; None: it was another way of logging in.

    Raises:
        Unauthenticated: it refused, or the token is not of this login.
        CredentialsExpired: it refused what it gave before: only a person can go on.
    """
    if status != 200 or "error" in said:
        refused = f"{sign_on.iss} refused: {_refusal(said)}"
        if said.get("error") == "invalid_grant":
            raise CredentialsExpired(f"{refused}; {again(sign_on.alias)}")
        raise Unauthenticated(refused)
    if nonce is not None and sign_on.token != ACCESS_TOKEN:
        _check_nonce(said, nonce)
    token = said.get(sign_on.token)
    if not isinstance(token, str) or not token:
        raise Unauthenticated(f"{sign_on.iss} gave no {sign_on.token}; {again(sign_on.alias)}")
    refresh = said.get("refresh_token")
    return Tokens(
        Secret(token),
        _check_claims(token, sign_on, now_ms),
        Secret(refresh) if isinstance(refresh, str) and 0 < len(refresh) <= TEXT_CHARS_MAX else None,
    )


def renewal(sign_on: SignOn, refresh: Secret) -> dict[str, str]:
    """What the token endpoint is asked by who has logged in before."""
    return {"grant_type": "refresh_token", "refresh_token": refresh.reveal(), "client_id": sign_on.client_id}


def again(alias: str) -> str:
    """What a person does about it."""
    return f"log in again: headrace login --oidc {alias}"


def _check_nonce(said: Mapping[str, Any], nonce: str) -> None:
    token = said.get("id_token")
    found = split_token(token).claims.get("nonce") if isinstance(token, str) else None
    if not isinstance(found, str) or not hmac.compare_digest(found.encode(), nonce.encode()):
        raise Unauthenticated("the id_token is of another login (nonce); begin again")


def _check_claims(token: str, sign_on: SignOn, now_ms: float) -> int:
    """Until when it is good, as Unix time in ms."""
    claims = split_token(token).claims
    if claims.get("iss") != sign_on.iss:
        raise Unauthenticated(f"the token is of issuer {_shown(claims.get('iss'))} and not of {sign_on.iss}")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if sign_on.token != ACCESS_TOKEN and sign_on.client_id not in audiences:
        raise Unauthenticated(f"the id_token is for {_shown(audience)} and not for {sign_on.client_id}")
    expires = claims.get("exp")
    if isinstance(expires, bool) or not isinstance(expires, (int, float)) or not 0 <= expires < 253_402_300_800:
        raise Unauthenticated("the token has no end (exp)")
    if now_ms >= expires * 1_000 + LEEWAY_MS:
        raise Unauthenticated("the token is over already; one of the two clocks is wrong")
    return int(expires * 1_000)


def _seconds(said: object, otherwise: float) -> float:
    return said if isinstance(said, (int, float)) and not isinstance(said, bool) and said > 0 else otherwise


def _refusal(said: Mapping[str, Any]) -> str:
    texts = [said.get("error"), said.get("error_description")]
    return ": ".join(_shown(text) for text in texts if text) or "it says nothing"


def _shown(value: object) -> str:
    """What somebody else says, in an error: short, on one line."""
    return ascii(value)[:200] if value is None or isinstance(value, (str, int, float)) else "a list or an object"
