"""
How members see each other before etcd runs: HTTP on the address that etcd's peers use later, by TLS where they do.

``Doorplate`` answers ``GET /headrace/member`` with this member's report and everything else with 404; ``HttpLookout``
asks others for it, and where an etcd answers instead, that for its members. HTTP/1.0, a request per connection, every
size and wait bounded: a few lines that load faster than any library. With TLS both sides show certificates of etcd's
CA, which are read for each connection, as etcd does: who waits for days takes those that were renewed meanwhile.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import limit_s
from headrace_common.runtime.tls_config import TlsFiles
from headrace_common.runtime.tls_contexts import make_mutual_context
from headrace_controller.etcd_member.core.roster import Peer
from headrace_controller.etcd_member.core.sights import (
    Report,
    Running,
    Sight,
    Silent,
    decode_members,
    decode_report,
    encode_report,
)

PATH: Final = "/headrace/member"
_ANSWER_BYTES_MAX: Final = 1 << 20
_HEAD_BYTES_MAX: Final = 8 << 10
_REQUEST_S_MAX: Final = 5.0
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""What OpenSSL calls an answer that is none of TLS, by its version."""


class Doorplate:
    """Tells whoever asks what ``report`` returns now; with ``tls`` those alone who show a certificate."""

    def __init__(self, report: Callable[[], Report], tls: TlsFiles | None = None) -> None:
        self._report = report
        self._tls = tls

    @asynccontextmanager
    async def serve_at(self, host: str, port: int) -> AsyncIterator[None]:
        """Answer until the block ends. Raises: OSError when the address is taken."""
        server = await asyncio.start_server(self._answer, host, port, limit=_HEAD_BYTES_MAX)
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with limit_s(_REQUEST_S_MAX):
                if self._tls is not None:
                    await writer.start_tls(make_mutual_context(self._tls, ssl.Purpose.CLIENT_AUTH))
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(head))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, InvalidConfig):
            pass  # a visitor that does not ask, or left: nothing is owed to it. Of files here says what looks at others
        finally:
            writer.close()

    def _response(self, head: bytes) -> bytes:
        asked = head.split(b" ", 2)[:2]
        if asked != [b"GET", PATH.encode()]:
            return b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        body = encode_report(self._report())
        return b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class HttpLookout:
    """See the port."""

    def __init__(self, cluster: str, tls: TlsFiles | None = None, *, timeout_ms: int = 1_500) -> None:
        self._cluster = cluster
        self._tls = tls
        self._timeout_s = timeout_ms / 1_000

    async def look(self, peer: Peer) -> Sight:
        try:
            async with limit_s(self._timeout_s):
                status, _, body = await self._get(peer, PATH)
                if status == 200:
                    return self._check_report(peer, decode_report(body))
                status, headers, body = await self._get(peer, "/members")
                return _judge_etcd(peer, status, headers, body)
        except TimeoutError:
            return Silent("it does not answer")
        except ssl.SSLError as error:
            return Silent("it speaks without TLS" if error.reason in _NO_TLS else error.strerror or str(error))
        except OSError as error:
            return Silent(error.strerror or str(error))
        except InvalidConfig as error:
            return Silent(f"not asked: {error}")
        except ValueError as error:
            return Silent(f"it answers with something unknown: {error}")

    async def _get(self, peer: Peer, path: str) -> tuple[int, dict[str, str], bytes]:
        """See ``_get``. Raises: InvalidConfig too: the certificates here cannot be used."""
        if not peer.tls:
            return await _get(peer.url, path, None)
        if self._tls is None:
            raise InvalidConfig("there are no certificates here")
        return await _get(peer.url, path, make_mutual_context(self._tls, ssl.Purpose.SERVER_AUTH))

    def _check_report(self, peer: Peer, report: Report) -> Sight:
        if (report.cluster, report.member) != (self._cluster, peer.name):
            return Silent(f"{report.member} of {report.cluster} answers at its address")
        return report


def _judge_etcd(peer: Peer, status: int, headers: dict[str, str], body: bytes) -> Sight:
    if status != 200 or "x-etcd-cluster-id" not in headers:
        return Silent(f"what answers at its address is no etcd ({status})")
    members = decode_members(body)
    if not any(member.name == peer.name or peer.url in member.peer_urls for member in members):
        return Silent("its etcd has only just started, or is one of another cluster")
    return Running(int(headers["x-etcd-cluster-id"], 16), members)


async def _get(url: str, path: str, context: ssl.SSLContext | None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body. Raises: OSError; ValueError when the answer is no HTTP, too long or cut off."""
    parts = urlsplit(url)
    assert parts.hostname is not None, "checked at start"
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_HEAD_BYTES_MAX, ssl=context)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
        await writer.drain()
        status, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        # etcd closes the connection long after it has answered: the length says where the body ends
        length = int(headers.get("content-length", -1))
        if length > _ANSWER_BYTES_MAX:
            raise ValueError("more than a list of members can be")
        body = await (reader.readexactly(length) if length >= 0 else reader.read(_ANSWER_BYTES_MAX))
    except (EOFError, asyncio.LimitOverrunError) as error:
        raise ValueError(f"no whole HTTP answer ({error})") from error
    finally:
        writer.close()
    return status, headers, body


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/"):
        raise ValueError(f"{first[:60]!r} begins no HTTP answer")
    pairs = (line.partition(":") for line in rest)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}
