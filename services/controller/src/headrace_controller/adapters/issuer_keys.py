"""
Fetches keys of issuers: by HTTPS, from a file, or from the API server of the pod.

Nothing that an issuer answers makes this process call another address, wait longer than it says, or keep more than it
may: no redirect is followed, no proxy asked, no encoding undone, and what the answer says of its type does not count.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from typing_extensions import override

from headrace_common.core.access.key_sets import KEY_SET_BYTES_MAX, PublicKey, read_key_set
from headrace_common.core.errors import HeadraceError, InvalidConfig, Rejected
from headrace_common.runtime.clock import Clock, limit_s
from headrace_common.runtime.kubernetes import ACCOUNT, ApiServer, refusal
from headrace_common.runtime.threads import run_in_thread
from headrace_common.runtime.tls_contexts import keep_policy, make_client_context
from headrace_controller.core.issuing import Address, ApiServerOfPod, Fetched, InFile, WantedIssuer
from headrace_controller.ports import KeysUnavailable

FETCH_S_MAX: Final = 10.0
_HEADERS: Final = {
    "Accept": "application/jwk-set+json, application/json",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": "headrace-controller",
}
_DISCOVERY: Final = "/.well-known/openid-configuration"
_KEYS: Final = "/openid/v1/jwks"


class IssuerKeySource:
    """Implements the port ``IssuerSource``."""

    def __init__(self, clock: Clock, env: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> None:
        """
        Args:
            env, account: what the kubelet tells a pod.
        """
        self._clock = clock
        self._env = env
        self._account = account

    async def fetch(self, wanted: WantedIssuer) -> Fetched:
        """See ``IssuerSource.fetch``."""
        source = wanted.source
        try:
            async with limit_s(FETCH_S_MAX):
                match source:
                    case Address():
                        keys = await self._from_address(source)
                        return Fetched(keys, self._clock.now_ms())
                    case InFile(path):
                        return Fetched(await run_in_thread(_from_file, path), self._clock.now_ms())
                    case ApiServerOfPod():
                        iss, keys = await run_in_thread(_from_api_server, self._env, self._account)
                        return Fetched(keys, self._clock.now_ms(), iss)
        except TimeoutError:
            raise KeysUnavailable(f"there was no whole answer within {FETCH_S_MAX:.0f} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise KeysUnavailable(f"{type(error).__name__}: {error}") from error
        except HeadraceError as error:
            raise KeysUnavailable(str(error)) from error

    async def _from_address(self, address: Address) -> tuple[PublicKey, ...]:
        connection = _Connection(address)
        try:
            return await run_in_thread(connection.fetch_keys)
        finally:
            connection.hang_up()


class _Connection(http.client.HTTPSConnection):
    """One answer; another thread may end it at any moment, whatever it waits for but the name's address."""

    def __init__(self, address: Address) -> None:
        super().__init__(address.host, address.port, timeout=FETCH_S_MAX)
        self._address = address
        self._line: socket.socket | None = None
        self._over = False

    @override
    def connect(self) -> None:
        ca_file = self._address.ca_file
        trusted = keep_policy(ssl.create_default_context()) if ca_file is None else make_client_context(Path(ca_file))
        http.client.HTTPConnection.connect(self)
        plain: socket.socket = self.sock
        self._line = plain.dup()
        if self._over:
            self.hang_up()
        self.sock = trusted.wrap_socket(plain, server_hostname=self._address.host)

    def hang_up(self) -> None:
        """What waits for it in another thread fails soon."""
        self._over = True
        line, self._line = self._line, None
        if line is not None:
            with line, suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def fetch_keys(self) -> tuple[PublicKey, ...]:
        """Ask, once. Blocks."""
        try:
            self.request("GET", self._address.target, headers=_HEADERS)
            answer = self.getresponse()
            _check_head(answer)
            return _read(answer.read(KEY_SET_BYTES_MAX + 1))
        finally:
            self.close()


def _check_head(answer: http.client.HTTPResponse) -> None:
    if 300 <= answer.status < 400:
        place = ascii(answer.getheader("Location", ""))[:200]
        raise KeysUnavailable(f"it answers {answer.status}, see {place}; if that is right, name it in jwks")
    if answer.status != http.HTTPStatus.OK:
        raise KeysUnavailable(f"it answers {answer.status}")
    encoding = answer.getheader("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise KeysUnavailable(f"it answers in the encoding {ascii(encoding)[:40]}, which it was not asked for")


def _read(raw: bytes) -> tuple[PublicKey, ...]:
    if len(raw) > KEY_SET_BYTES_MAX:
        raise KeysUnavailable(f"it answers with more than {KEY_SET_BYTES_MAX} bytes")
    try:
        return read_key_set(raw)
    except Rejected as error:
        raise KeysUnavailable(f"what it answers is no set of keys: {error}") from None


def _from_file(path: str) -> tuple[PublicKey, ...]:
    with Path(path).open("rb") as file:
        return _read(file.read(KEY_SET_BYTES_MAX + 1))


def _from_api_server(env: Mapping[str, str], account: Path) -> tuple[str, tuple[PublicKey, ...]]:
    server = ApiServer.of_pod(env, account, timeout_s=FETCH_S_MAX / 2)
    found = []
    for path in (_DISCOVERY, _KEYS):
        status, answer = server.ask("GET", path)
        if status != http.HTTPStatus.OK:
            instead = "the ClusterRole system:service-account-issuer-discovery lets accounts read it"
            raise refusal(f"say {path}", status, answer, instead)
        found.append(answer)
    iss = found[0].get("issuer")
    if not isinstance(iss, str):
        raise InvalidConfig(f"the API server's {_DISCOVERY} names no issuer")
    return iss, _read(json.dumps(found[1]).encode())
