"""
The cluster's node token: what a node shows to other nodes, and what it takes from them.

It is in a file of one or two lines. The first token is shown, both are taken, so that the token can be changed without
a pause: the new one second on all nodes, then first, then alone. Kubernetes swaps the file beneath a running process,
so it is looked at again from time to time; a file that has become unreadable or wrong changes nothing, and is told.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path
from typing import Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.service import ServerConfig
from headrace_common.runtime.token_file import read_tokens

LOOK_EVERY_MS: Final = 10_000.0

_log = logging.getLogger(__name__)


class NodeTokens:
    """The tokens of a file, as it was when it was last sound. Safe to use from several threads; shows no token."""

    def __init__(self, path: Path, clock: Clock, *, demanded: bool = True, loopback_only: bool = False) -> None:
        """
        Raises:
            InvalidConfig: the file cannot be read, or holds anything but one or two tokens.
        """
        self.demanded = demanded
        self.loopback_only = loopback_only
        self._path = path
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()
        self._tokens = read_tokens(path)
        self._wrong: str | None = None

    @property
    def shown(self) -> str:
        """What this process shows."""
        return self.read()[0].decode()

    def takes(self, token: str) -> bool:
        """Whether a caller that shows ``token`` is a node; the answer takes the same time for every wrong one."""
        given = token.encode()
        matches = [hmac.compare_digest(given, one) for one in self.read()]
        return True in matches

    def read(self) -> tuple[bytes, ...]:
        """All of them, the one that is shown first."""
        now = self._clock.monotonic_ms()
        if now - self._looked_ms >= LOOK_EVERY_MS:
            self._looked_ms = now
            self._look()
        return self._tokens

    def _look(self) -> None:
        try:
            tokens = read_tokens(self._path)
        except InvalidConfig as error:
            if str(error) != self._wrong:
                self._wrong = str(error)
                _log.error("the node token stays what it was: %s", error)
            return
        self._wrong = None
        if tokens != self._tokens:
            self._tokens = tokens
            _log.info("the node token file has changed", extra={"path": str(self._path), "tokens": len(tokens)})


def open_tokens(config: ServerConfig, clock: Clock) -> NodeTokens | None:
    """
    The tokens of the process's settings; None where nothing is done in plain text, and, with a warning, where no file
    is named.

    Raises:
        InvalidConfig: the file cannot be read, or holds something else.
    """
    if config.tls.only:
        return None
    if config.node_token_file is not None:
        return NodeTokens(
            config.node_token_file,
            clock,
            demanded=config.node_token_demanded,
            loopback_only=config.node_token_loopback_only,
        )
    _log.warning(
        "no node token and no TLS: anyone who reaches a port of a node can pass for a node; give all nodes the same "
        "--node-token-file, made with python -m headrace_common.runtime.token_file FILE"
    )
    return None
