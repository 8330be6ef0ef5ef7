"""A service that does nothing but start, say that it is ready, and stop; run in place of the real ones."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from pathlib import Path

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.held_ports import shared


def run(role: str) -> None:
    """Serve until SIGTERM. ``FAKE_CRASH=NAME`` in the environment makes that process exit with code 7."""
    parser = argparse.ArgumentParser()
    for name in ("--node-id", "--listen", "--metrics-listen", "--ready-file", "--etcd", "--controllers"):
        parser.add_argument(name)
    for name in (
        "--data-dir",
        "--flush",
        "--http-listen",
        "--etcd-ca",
        "--etcd-cert",
        "--etcd-key",
        "--internal-listen",
        "--node-token-file",
        "--node-token-loopback-only",
    ):
        parser.add_argument(name)
    parser.add_argument("--set", action="append")
    args = parser.parse_args()
    name = f"{role}-{args.node_id}"
    print(json.dumps({"msg": f"{name} says hello", "set": args.set}), flush=True)
    if os.environ.get("FAKE_CRASH") == name:
        print("the fake has an unhappy day", flush=True)
        sys.exit(7)
    host, _, port = args.listen.rpartition(":")
    with shared(Endpoint(host, int(port))) as is_shared:
        listener = socket.create_server((host, int(port)), reuse_port=is_shared)
    assert listener.fileno() >= 0
    ready = {"name": name, "grpc": args.listen, "http": args.http_listen, "metrics": args.metrics_listen}
    draft = Path(args.ready_file + ".tmp")
    draft.write_text(json.dumps(ready | {"pid": os.getpid()}))
    draft.replace(args.ready_file)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        signal.pause()
