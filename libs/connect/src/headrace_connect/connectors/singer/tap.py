"""What the source needs of a tap: a port, so that tests have one in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from headrace_connect.connectors.singer.lines import Line
from headrace_connect.plugin import RetriableError


class TapFailed(RetriableError):
    """A tap ended otherwise than well, was silent for too long, or cannot be started; says its last lines."""


class Tap(Protocol):
    """A program that is run again and again."""

    async def discover(self, config: Mapping[str, Any]) -> bytes:
        """
        What it writes with ``--discover``.

        Raises:
            InvalidConfig: there is no such program.
            TapFailed: as the class says.
        """
        ...

    def run(self, config: Mapping[str, Any], files: Mapping[str, Any]) -> AsyncGenerator[Sequence[Line], None]:
        """
        The lines of one run, as they come; it has ended well when they end. Whoever closes it early kills the tap.

        Args:
            files: further options, as ``--state``, and what is in their files as JSON.

        Raises:
            InvalidConfig, TapFailed: as ``discover``.
        """
        ...
