"""Access to the metadata store for the programs beside the controller: arguments, and waiting until etcd answers."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.private_files import keep_private
from headrace_controller.adapters.etcd_channels import read_pem
from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_controller.ports import StoreUnavailable

_LOOK_EVERY_MS: Final = 500


def arguments(program: str, text: str) -> argparse.ArgumentParser:
    """A parser with what all such programs take."""
    parser = argparse.ArgumentParser(prog=f"python -m headrace_controller.{program}", description=text)
    parser.add_argument("--etcd", default="127.0.0.1:2379", help="client addresses of etcd, with commas")
    parser.add_argument(
        "--cluster", default="headrace", help="name of the cluster: its keys start with /headrace/NAME/"
    )
    parser.add_argument("--wait", type=int, default=120, metavar="S", help="seconds to wait for etcd (default 120)")
    parser.add_argument("--etcd-timeout-ms", type=int, default=5_000, help="the longest one request may take, in ms")
    parser.add_argument("--etcd-ca", type=Path, metavar="FILE", help="CA of etcd's certificates; without it plain text")
    parser.add_argument("--etcd-cert", type=Path, metavar="FILE", help="client certificate that is shown to etcd")
    parser.add_argument("--etcd-key", type=Path, metavar="FILE", help="key of that certificate")
    return parser


@asynccontextmanager
async def open_store(given: argparse.Namespace) -> AsyncIterator[EtcdStore]:
    endpoints = [
        Endpoint.parse(part.strip().removeprefix("http://").removeprefix("https://")) for part in given.etcd.split(",")
    ]
    prefix = f"/headrace/{given.cluster}/"
    tls = read_pem(given.etcd_ca, given.etcd_cert, given.etcd_key)
    async with EtcdStore.open(endpoints, prefix, request_timeout_ms=given.etcd_timeout_ms, tls=tls) as store:
        yield store


async def once_it_answers(store: EtcdStore, clock: Clock, wait_s: int) -> None:
    """
    Return when etcd answers.

    Raises:
        StoreUnavailable: not within ``wait_s``.
    """
    until_ms = clock.monotonic_ms() + wait_s * 1_000
    while True:
        try:
            await store.get("format")
            return
        except StoreUnavailable:
            if clock.monotonic_ms() >= until_ms:
                raise
        await clock.sleep_ms(_LOOK_EVERY_MS)


def run(work: Coroutine[Any, Any, int]) -> int:
    """Run a program to its exit code; what it refuses is a sentence on stderr and 1."""
    keep_private()
    try:
        return asyncio.run(work)
    except (HeadraceError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
