"""
``python -m headrace_broker.prestop``: has the broker in this container leave, and returns when it leads nothing.

For a pod's preStop hook: Kubernetes sends SIGTERM after it, and the broker then only has to flush and end. It reads the
broker's own environment (``HEADRACE_BROKER_LEAVE_SOCKET`` and the limits), and uses nothing but gRPC, so that it
starts quickly. Exit codes: 0 the broker has left, or never joined; 1 it has not within its limits, or cannot be
reached; 2 there is no socket to ask at.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

import grpc

from headrace_broker.core import leaving
from headrace_common.rpc.channels import open_sync_channel

_MARGIN_S: Final = 15.0
_RESTART_WAIT_MS: Final = 0
_SHUTDOWN_MS: Final = 10_000


def main(env: Mapping[str, str]) -> int:
    """Ask, and wait for the answer; the exit code."""
    path = env.get("HEADRACE_BROKER_LEAVE_SOCKET", "")
    if not path:
        return _say("HEADRACE_BROKER_LEAVE_SOCKET is not set: the broker has no socket where it could be asked", 2)
    channel = open_sync_channel(f"unix:{path}")
    try:
        leave: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(leaving.PATH)
        answer = leave(b"", timeout=_timeout_s(env))
    except grpc.RpcError as error:
        return _say(f"the broker at {path} did not leave: {error.code().name}: {error.details()}", 1)
    if answer != leaving.LEFT:
        return _say("the broker's time to leave is over, and others may still count on it; its log says for what", 1)
    return _say("the broker has left", 0)


def _timeout_s(env: Mapping[str, str]) -> float:
    """Longer than the broker takes by its own limits: it is the one that gives up."""
    limits = (("RESTART_WAIT_MS_MAX", _RESTART_WAIT_MS), ("SHUTDOWN_MS_MAX", _SHUTDOWN_MS))
    texts = ((env.get(f"HEADRACE_BROKER_{name}", ""), default) for name, default in limits)
    return _MARGIN_S + sum(int(text) if text.strip().isdecimal() else default for text, default in texts) / 1_000


def _say(text: str, code: int) -> int:
    (sys.stderr if code else sys.stdout).write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(os.environ))
