"""
Decides what names in paths are: percent-decoded once, behind the routes, so that a name may have a slash (``a%2Fb``).
"""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import unquote_to_bytes

from fastapi import Depends, HTTPException, Path
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_connect_worker.core.refusals import BadCommand

_TASK: Final = re.compile(r"[0-9]{1,9}")
_DESCRIPTION: Final = "Percent-encoded, a slash too."


class RawPaths:
    """ASGI middleware: routes are found by the path as it came, and decoding is up to them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = raw_path(scope)
        await self._app(scope, receive, send)


def raw_path(scope: Scope) -> str:
    """The path of a request as it came."""
    raw: bytes = scope["raw_path"]
    return raw.decode("ascii", "replace")


def decode(segment: str) -> str:
    """
    Raises:
        BadCommand: it is not UTF-8 when it is decoded.
    """
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadCommand(f"{segment[:80]!r} in the path is not UTF-8, percent-encoded") from None


def _connector(name: Annotated[str, Path(description=_DESCRIPTION)]) -> str:
    return decode(name)


def _plugin(plugin: Annotated[str, Path(description="As `connector.class` has it, percent-encoded.")]) -> str:
    return decode(plugin)


def _task(task: Annotated[str, Path(description="Its number, from 0.")]) -> int:
    if not _TASK.fullmatch(task):
        raise HTTPException(404)
    return int(task)


def _logger(logger: Annotated[str, Path(description="`root`, or a logger's name.")]) -> str:
    return decode(logger)


ConnectorName = Annotated[str, Depends(_connector)]
PluginName = Annotated[str, Depends(_plugin)]
TaskNumber = Annotated[int, Depends(_task)]
VerificationId = Annotated[str, Path(description="As the answer that began it has it.")]
LoggerName = Annotated[str, Depends(_logger)]
