"""
What another Unix user of the machine gets from a cluster: a program that root starts, and that is nobody from then on.

On its standard input it is told where to ask what and which paths to open; it prints what came of it.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import grpc

NOBODY: Final = 65_534


def become_nobody() -> None:
    """For good. What is needed of Python is loaded by then: another user may not read where it is."""
    ask_grpc("127.0.0.1:1", ["none.None/None"], None)
    ask_http("127.0.0.1:1", None)
    json.dumps(ssl.create_default_context().protocol)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def ask_grpc(at: str, operations: list[str], ca: str | None) -> dict[str, str]:
    """The code that each operation comes to, over TLS where there is a CA."""
    found = {}
    options = [("grpc.enable_retries", 0)]
    trusted = None if ca is None else grpc.ssl_channel_credentials(ca.encode())
    opened = grpc.insecure_channel(at, options) if trusted is None else grpc.secure_channel(at, trusted, options)
    with opened as channel:
        for operation in operations:
            call: Any = channel.stream_stream(f"/headrace.v1.{operation}")
            try:
                next(call(iter([b""]), timeout=10), None)
                found[operation] = "OK"
            except grpc.RpcError as error:
                found[operation] = error.code().name
    return found


def ask_http(at: str, tls: ssl.SSLContext | None) -> int | None:
    """The status of something that is told to who is known; None: that is not spoken there."""
    host, _, port = at.rpartition(":")
    made = (
        http.client.HTTPConnection(host, int(port), timeout=5)
        if tls is None
        else http.client.HTTPSConnection(host, int(port), timeout=5, context=tls)
    )
    with closing(made) as connection:
        try:
            connection.request("GET", "/v1/topics")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None


def opened(paths: list[str]) -> Iterator[str]:
    """Those of the paths that it can read or list, or of which it learns whether they are there."""
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDONLY))
        except PermissionError:
            continue
        except FileNotFoundError:
            yield f"{path} could be looked for"
        else:
            yield path


def main() -> None:
    """See the module."""
    told = json.load(sys.stdin)
    become_nobody()
    transports = {"plain": None} | ({"TLS": told["ca"]} if told["ca"] else {})
    anybody = ssl._create_unverified_context()
    asked = {
        at: {
            "grpc": {
                f"{operation}, {how}": code
                for how, ca in transports.items()
                for operation, code in ask_grpc(at, operations, ca).items()
            },
            "http": ask_http(at, None),
            "https": ask_http(at, anybody),
        }
        for at, operations in told["ports"].items()
    }
    print(json.dumps({"user": os.getuid(), "asked": asked, "opened": list(opened(told["paths"]))}))


if __name__ == "__main__":
    main()
