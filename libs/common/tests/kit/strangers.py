"""Clients that nobody asked for: connections that say nothing, or open streams and say nothing on them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from headrace_common.core.ids import Endpoint

ELSEWHERE: Final = "127.0.0.9"
"""Where strangers come from, so that they are not taken for a test's own clients."""

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS = 1, 4
_END_HEADERS: Final = 4


def _frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field as HPACK has it without any table (RFC 7541, 6.2.2)."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def _open_stream(path: str, stream: int) -> bytes:
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"stranger"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    return _frame(_HEADERS, b"".join(_literal(*field) for field in fields), _END_HEADERS, stream)


class Strangers:
    """
    Connections from ``ELSEWHERE``; of three one says nothing, one only that it speaks HTTP/2, and one opens ``streams``
    calls of ``path`` and sends nothing. Use it as a context manager: they leave at its end.
    """

    def __init__(self, path: str = "/headrace.v1.Broker/Fetch", streams: int = 1) -> None:
        self._path = path
        self._streams = streams
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            one.close()

    def come(self, addresses: Sequence[str], connections: int) -> None:
        """Connect so often to each address; a connection that is refused is one of them."""
        for number in range(connections):
            for address in addresses:
                self._connect(Endpoint.parse(address), number % 3)

    def _connect(self, to: Endpoint, kind: int) -> None:
        one = socket.socket()
        self._sockets.append(one)
        one.settimeout(30)
        with suppress(OSError):
            one.bind((ELSEWHERE, 0))
            one.connect((to.host, to.port))
            if kind > 0:
                one.sendall(_PREFACE + _frame(_SETTINGS))
            if kind > 1:
                one.sendall(b"".join(_open_stream(self._path, 2 * n + 1) for n in range(self._streams)))
