"""
``python -m headrace_broker.prestop``: has the broker in this container leave, and returns when it leads nothing.

For a pod's preStop hook: Kubernetes sends SIGTERM after it, and the broker then only has to flush and end. It reads the
broker's own environment (``HEADRACE_BROKER_HEALTH_LISTEN`` and the limits), and uses nothing but gRPC, so that it
starts quickly. Exit codes: 0 the broker has left, or never joined; 1 it has not within its limits, or cannot be
reached; 2 there is no health port to ask.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

import grpc

from headrace_broker.core import leaving

_WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})  # compared with, never bound to
_MARGIN_S: Final = 15.0
_RESTART_WAIT_MS: Final = 0
_SHUTDOWN_MS: Final = 10_000


def main(env: Mapping[str, str]) -> int:
    """Ask, and wait for the answer; the exit code."""
    target = _target(env.get("HEADRACE_BROKER_HEALTH_LISTEN", ""))
    if target is None:
        return _say("HEADRACE_BROKER_HEALTH_LISTEN is not set: the broker has no port where it could be asked", 2)
    channel = grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0)])
    try:
        leave: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(leaving.PATH)
        answer = leave(b"", timeout=_timeout_s(env))
    except grpc.RpcError as error:
        return _say(f"the broker at {target} did not leave: {error.code().name}: {error.details()}", 1)
    if answer != leaving.LEFT:
        return _say("the broker's time to leave is over, and others may still count on it; its log says for what", 1)
    return _say("the broker has left", 0)


def _target(listen: str) -> str | None:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) == 0:
        return None
    return f"127.0.0.1:{port}" if host.strip("[]") in _WILDCARDS else listen


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
