"""
A closed broker in a process of its own, and who shows it wrong tokens in another: ``python -m bench.closed_broker
serve TOPICS RULES`` and ``... flood TARGET``.

It prints where it listens, makes a change of access for each line that it is told, and ends with its input.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc.aio
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.closed import user
from libs.common.tests.kit.issuer import SigningIssuer
from services.broker.tests.kit.cluster import image_of
from services.broker.tests.kit.guarded import guarded_broker

from bench.in_process import as_brokers_do
from headrace_common.core.access.resources import Operation, ResourceType, literal
from headrace_common.core.access.rows import STATE, Mode, write_issuer, write_state
from headrace_common.core.features import HIGHEST
from headrace_common.rpc.channels import Security, open_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

AT_ONE_TIME: Final = 64
"""Calls of the flood."""


class ClosedBroker:
    """One that runs; its rules are alice's."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.target = self._told()

    @staticmethod
    @contextmanager
    def running(topics: int, rules: int) -> Iterator[ClosedBroker]:
        """With so many topics of a partition, of which alice may read the first ``rules``."""
        with _process("serve", str(topics), str(rules)) as process:
            yield ClosedBroker(process)

    def change(self) -> None:
        """Another generation of access: whatever was remembered is not any more."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        self._told()

    @property
    def cpu_ms(self) -> float:
        """That its process has used, in ms."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e3

    @contextmanager
    def flooded(self) -> Iterator[list[float]]:
        """Somebody shows wrong tokens within the block; at its end it has how many came, and in how many seconds."""
        told: list[float] = []
        with _process("flood", self.target) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline(), "it has begun"
            yield told
            process.stdin.close()
            told += map(float, process.stdout.readline().split())

    def _told(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "it has ended"
        return line


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """One of this module's; it ends with the block."""
    whole = [sys.executable, "-m", "bench.closed_broker", *arguments]
    process = subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _serve(topics: int, rules: int) -> None:
    names = {f"topic-{number:04}": 1 for number in range(topics)}
    idp = SigningIssuer()
    idp.confirmed_ms = int(time.time() * 1e3)
    async with guarded_broker() as world:
        grants = [allow(ResourceType.TOPIC, literal(name), Operation.READ) for name in itertools.islice(names, rules)]
        world.rows.rules = {user("alice"): frozenset(grants)}
        image = replace(world.rows.image(image_of(names)), feature_level=HIGHEST)
        access = {**image.access, **dict([write_issuer(idp.known)])}
        for generation in itertools.count(1):
            world.cluster.show(replace(image, access={**access, STATE: write_state(Mode.CLOSED, generation)}))
            world.access.look()
            await world.broker.follower.wait_for_image(world.cluster.image.revision)
            print(world.target, flush=True)
            if not await asyncio.to_thread(sys.stdin.readline):
                return


async def _flood(target: str) -> None:
    body = SigningIssuer().token(now_ms=int(time.time() * 1e3)).rpartition(".")[0]
    numbers, over = itertools.count(), asyncio.Event()

    def shows(_: str) -> Any:
        return [("authorization", f"Bearer {body}.{next(numbers):0342}")]

    async def show(stub: Any) -> None:
        while not over.is_set():
            try:
                await stub.Metadata(pb.MetadataRequest(topics=["none"]))
            except grpc.aio.AioRpcError as error:
                if error.code() not in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}:
                    raise
            else:
                raise AssertionError("a wrong token was taken")

    async with open_channel(target, Security(shows), own_connection=True) as channel:
        print(flush=True)
        begun = time.monotonic()
        calls = asyncio.gather(*(show(BrokerStub(channel)) for _ in range(AT_ONE_TIME)))
        await asyncio.to_thread(sys.stdin.readline)
        over.set()
        await calls
        print(next(numbers), time.monotonic() - begun, flush=True)


if __name__ == "__main__":
    as_brokers_do()
    match sys.argv[1:]:
        case ["serve", topics, rules]:
            asyncio.run(_serve(int(topics), int(rules)))
        case ["flood", target]:
            asyncio.run(_flood(target))
        case _:
            sys.exit(__doc__)
