"""Sends requests and reads answers, both bounded in size and time. The only place that knows httpx."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headrace_common.runtime.clock import limit_ms
from headrace_connect.connectors.http.addresses import show_url
from headrace_connect.plugin import RetriableError
from headrace_connect.settings import Problem, Secret, invalid

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a server."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""
    whole: bool = True
    """Whether ``body`` is all of it."""


class Asking(Protocol):
    """What settings say of requests."""

    @property
    def authorization(self) -> Secret | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def tls_ca(self) -> str: ...


@contextmanager
def needs_http() -> Iterator[None]:
    """
    Around an import of what the extra ``http`` brings.

    Raises:
        InvalidConfig: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        message = f"HTTP needs its libraries: pip install 'headrace-connect[http]' ({error})"
        raise invalid([Problem("connector.class", message)]) from error


class HttpClient:
    """Connections to servers; opened by the first request, closed by ``close``. Follows no redirects."""

    def __init__(self, settings: Asking, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """
        Args:
            transport: what is asked instead of the network; for tests.

        Raises:
            InvalidConfig: httpx is not installed, or ``tls_ca`` has no certificates.
        """
        with needs_http():
            import httpx
        self._httpx: Any = httpx
        self._timeout_ms = settings.timeout_ms
        wire = logging.getLogger("httpx")  # it logs each request with its query
        if wire.level == logging.NOTSET:
            wire.setLevel(logging.WARNING)
        secret = settings.authorization
        own = {"authorization": secret.reveal()} if secret is not None else {}
        self._client = httpx.AsyncClient(
            headers={"user-agent": "headrace-connect", **settings.headers, **own},
            timeout=settings.timeout_ms / 1_000,
            verify=_trust(settings.tls_ca),
            transport=transport,
            trust_env=False,
            follow_redirects=False,
        )

    async def send(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, bytes_max: int
    ) -> Answer:
        """
        Args:
            bytes_max: so much of the answer's body is read.

        Raises:
            RetriableError: there is no answer; whether the request was carried out is not known.
        """
        httpx = self._httpx
        try:
            async with (
                limit_ms(self._timeout_ms),
                self._client.stream(method, url, content=body, headers=headers) as answer,
            ):
                parts: list[bytes] = []
                size = 0
                async for part in answer.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > bytes_max:
                        break
        except TimeoutError:
            raise RetriableError(f"{show_url(url)} has not answered within {self._timeout_ms} ms") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            why = str(error) or type(error).__name__
            raise RetriableError(f"{show_url(url)} does not answer: {why}") from error
        return Answer(answer.status_code, answer.headers, b"".join(parts)[:bytes_max], size <= bytes_max)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _trust(tls_ca: str) -> ssl.SSLContext | bool:
    if not tls_ca:
        return True
    try:
        return ssl.create_default_context(cadata=tls_ca)
    except (ssl.SSLError, ValueError) as error:
        raise invalid([Problem("tls.ca", f"tls.ca has no certificates as PEM: {error}")]) from error
