"""
An OIDC provider of a test, on this machine: people log in at once, as ``subject``. It is strict where providers are:
codes and refresh tokens are good once, and PKCE and the redirect are compared.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from libs.common.tests.kit.issuer import SigningIssuer, jwk, key_set

from headrace_common.core.access.issuers import Issuer
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tls_config import TlsFiles

CLIENT = "headrace-cli"


@dataclass
class Provider:
    """What it does, as a test says."""

    iss: str = ""
    subject: str = "alice"
    lifetime_s: int = 300
    gives_refresh: bool = True
    claims: dict[str, Any] = field(default_factory=dict)
    """More of each token, or other ones; None takes one away."""
    kid: str | None = None
    """What its tokens say of their key; None: the truth."""
    says: dict[str, Any] = field(default_factory=dict)
    """More of its configuration, or other."""
    sent_back: dict[str, str] = field(default_factory=dict)
    """More of what a browser is sent back with, or other."""
    refusal: str | None = None
    """Of the token endpoint."""
    device_says: list[str] = field(default_factory=list)
    """Errors before a device code is good."""
    asked: list[str] = field(default_factory=list)
    """Paths, and at the token endpoint grants."""
    revoked: list[str] = field(default_factory=list)
    ca_file: Path | None = None
    """Of what it shows; None: it speaks plain text."""
    signer: SigningIssuer = field(default_factory=SigningIssuer)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _refresh: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def keys(self) -> bytes:
        return key_set(*map(jwk, self.signer.keys.values()))

    def configuration(self) -> dict[str, Any]:
        places = {
            "authorization_endpoint": "authorize",
            "token_endpoint": "token",
            "device_authorization_endpoint": "device",
            "revocation_endpoint": "revoke",
            "jwks_uri": "keys",
        }
        return {"issuer": self.iss, **{name: f"{self.iss}/{path}" for name, path in places.items()}, **self.says}

    def authorize(self, said: dict[str, str]) -> str:
        """Where the browser is sent back to."""
        code = f"code-{next(self._numbers)}"
        self._codes[code] = said
        back = {"code": code, "state": said["state"], "iss": self.iss, **self.sent_back}
        return f"{said['redirect_uri']}?{urlencode({name: text for name, text in back.items() if text})}"

    def token(self, said: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(said.get("grant_type", ""))
        if self.refusal is not None:
            return 400, {"error": self.refusal, "error_description": "the test says so"}
        nonce = None
        match said:
            case {"grant_type": "authorization_code", "code": code, "client_id": client}:
                begun = self._codes.pop(code, None)
                if begun is None or client != CLIENT or said.get("redirect_uri") != begun["redirect_uri"]:
                    return 400, {"error": "invalid_grant"}
                digest = hashlib.sha256(said.get("code_verifier", "").encode()).digest()
                if urlsafe_b64encode(digest).rstrip(b"=").decode() != begun["code_challenge"]:
                    return 400, {"error": "invalid_grant", "error_description": "PKCE"}
                nonce = begun["nonce"]
            case {"grant_type": "refresh_token", "refresh_token": refresh}:
                if refresh not in self._refresh:
                    return 400, {"error": "invalid_grant"}
                self._refresh.discard(refresh)
            case {"device_code": "device-1"}:
                if self.device_says:
                    return 400, {"error": self.device_says.pop(0)}
            case _:
                return 400, {"error": "unsupported_grant_type"}
        return 200, self._tokens(nonce)

    def _tokens(self, nonce: str | None) -> dict[str, Any]:
        now_ms = SystemClock().now_ms()
        claims = {
            "sub": self.subject,
            "aud": CLIENT,
            "iss": self.iss,
            "nonce": nonce,
            "jti": str(next(self._numbers)),
            "exp": now_ms // 1_000 + self.lifetime_s,
        }
        head = {} if self.kid is None else {"kid": self.kid}
        algorithm = next(iter(self.signer.keys))
        token = self.signer.token(header=head, algorithm=algorithm, now_ms=now_ms, **{**claims, **self.claims})
        answer = {"token_type": "Bearer", "access_token": "opaque", "id_token": token}
        if self.gives_refresh:
            refresh = f"refresh-{next(self._numbers)}"
            self._refresh.add(refresh)
            answer["refresh_token"] = refresh
        return answer

    def device(self) -> dict[str, Any]:
        return {
            "device_code": "device-1",
            "user_code": "ABCD-EFGH",
            "verification_uri": f"{self.iss}/activate",
            "expires_in": 60,
            "interval": 1,
        }


@contextmanager
def serving(provider: Provider | None = None, tls: TlsFiles | None = None) -> Iterator[Provider]:
    """A provider on loopback."""
    made = provider or Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            made.asked.append(parts.path)
            match parts.path:
                case "/.well-known/openid-configuration":
                    self._answer(200, json.dumps(made.configuration()).encode())
                case "/keys":
                    self._answer(200, made.keys)
                case "/authorize":
                    self._answer(302, b"", Location=made.authorize(_fields(parts.query)))
                case _:
                    self._answer(404, b"{}")

        def do_POST(self) -> None:
            made.asked.append(self.path)
            said = _fields(self.rfile.read(int(self.headers["Content-Length"])).decode())
            match self.path:
                case "/token":
                    status, answer = made.token(said)
                    self._answer(status, json.dumps(answer).encode())
                case "/device":
                    self._answer(200, json.dumps(made.device()).encode())
                case "/revoke":
                    made.revoked.append(said["token"])
                    self._answer(200, b"{}")
                case _:
                    self._answer(404, b"{}")

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert, tls.key)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            made.ca_file = tls.ca
        made.iss = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        made.signer.issuer = Issuer("idp", made.iss, frozenset({CLIENT}))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def _fields(text: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text).items()}
