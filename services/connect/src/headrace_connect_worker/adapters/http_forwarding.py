"""
Sends requests of REST to the worker that leads.

Workers may be reached by the addresses of pods, which no certificate names. So those whose own certificate names
``connect.headrace`` ask for that name of the leader's, wherever it is; the others ask for the host that the group says.
Workers of a group have certificates of one kind.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx

from headrace_common.core.errors import NetworkFailed
from headrace_common.core.worker_address import CONNECT_HOST
from headrace_common.runtime.service_tls import ServiceTls
from headrace_connect_worker.core.refusals import NotLeader
from headrace_connect_worker.ports import Forwarded

if TYPE_CHECKING:  # only who has certificates has what reads them
    from headrace_common.runtime.tls import Bundle

ANSWER_BYTES_MAX: Final = 8 << 20
CONNECTIONS_MAX: Final = 32
_CONNECT_S: Final = 3.0


class HttpForwarding:
    """Satisfies ``Forwarding``; made by ``open``."""

    def __init__(self, client: httpx.AsyncClient, tls: ServiceTls | None) -> None:
        self._client = client
        self._tls = tls

    @staticmethod
    @asynccontextmanager
    async def open(answer_ms_max: float, tls: ServiceTls | None = None) -> AsyncIterator[HttpForwarding]:
        """
        Args:
            answer_ms_max: how long a leader may take for an answer.
            tls: has the CAs of the workers, and says what their certificates name; None: they speak plain text.
        """
        timeout = httpx.Timeout(answer_ms_max / 1_000, connect=_CONNECT_S)
        limits = httpx.Limits(max_connections=CONNECTIONS_MAX)
        with _trusting(tls) as verify:
            async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, verify=verify) as client:
                yield HttpForwarding(client, tls)

    async def send(
        self,
        url: str,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: bytes,
        authorization: str = "",
    ) -> Forwarded:
        """See ``Forwarding``."""
        headers = {"content-type": "application/json"} if body else {}
        if authorization:
            headers["authorization"] = authorization
        # To httpcore this is what is sent as the name and what the certificate has to name, both.
        named: dict[str, Any] = (
            {"sni_hostname": CONNECT_HOST} if self._tls is not None and self._tls.names(CONNECT_HOST) else {}
        )
        asked = self._client.build_request(
            method, f"{url}{path}", params=list(query), content=body, headers=headers, extensions=named
        )
        try:
            answer = await self._client.send(asked, stream=True)
            try:
                return await _read(answer)
            finally:
                await answer.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotLeader(None) from error
        except httpx.HTTPError as error:
            raise NetworkFailed(
                f"the leader at {url} did not answer: {str(error) or type(error).__name__}; it may have carried it out"
            ) from error


@contextmanager
def _trusting(tls: ServiceTls | None) -> Iterator[ssl.SSLContext | bool]:
    """What the client checks; CAs are added beneath it, and taken away by the next start."""
    if tls is None:
        yield True
        return
    from headrace_common.runtime.tls_contexts import make_client_context

    context = make_client_context(tls.ca)

    async def take(bundle: Bundle) -> None:
        context.load_verify_locations(cadata=bundle.pem.ca.decode())

    with tls.live.takes(take, tls.live.bundle):
        yield context


async def _read(answer: httpx.Response) -> Forwarded:
    parts: list[bytes] = []
    size = 0
    async for part in answer.aiter_bytes():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise NetworkFailed(f"the answer of the leader has more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return Forwarded(answer.status_code, b"".join(parts), answer.headers.get("location"))
