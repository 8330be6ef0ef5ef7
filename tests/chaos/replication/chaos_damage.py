"""
Harm to what a broker has on disk: bits flipped, files cut short, everything gone, no room left.

Each acts on a broker that is down (or, for the full disk, running), starts it, and watches until it is whole again: a
log that is damaged must be seen as such, must not lead while it is, and must be like the others' in the end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
from chaos_cluster import LOOK_SECONDS, RACKS, Chaos
from chaos_faults import DOWN_SECONDS, Act
from chaos_replicas import Unreadable, read_all

from headrace_proto.v1 import broker_pb2 as pb

WHOLE_SECONDS = 40.0
STOP_SECONDS = 10.0
READS_MAX = 5


def flip_bit(chaos: Chaos, path: Path) -> None:
    """One bit of the file, anywhere but in its last tenth, which may be unused."""
    data = bytearray(path.read_bytes())
    at = chaos.chance.randrange(len(data) * 9 // 10)
    data[at] ^= 1 << chaos.chance.randrange(8)
    path.write_bytes(data)
    chaos.say(f"flipped a bit at {at} of {len(data)} bytes of {path.name}")


def cut_short(chaos: Chaos, path: Path) -> None:
    """The second half of the file is gone."""
    size = path.stat().st_size
    os.truncate(path, size // 2)
    chaos.say(f"cut {path.name} from {size} to {size // 2} bytes")


def damage(pattern: str, harm: Callable[[Chaos, Path], None], *, clean: bool = False, finds: bool = True) -> Act:
    """
    The largest file of the broker that leads most is harmed while it is down.

    Args:
        clean: it was stopped in order, so all it has is in sealed files; else it was killed.
        finds: it must say so when it starts.
    """

    async def act(chaos: Chaos) -> None:
        broker = (await chaos.by_leaderships())[0]
        name = f"broker-{broker}"
        await chaos.kill(name, number=signal.SIGTERM if clean else signal.SIGKILL)
        files = (chaos.cluster.directory.path / name / "db").glob(pattern)
        harm(chaos, max(files, key=lambda one: one.stat().st_size))
        await asyncio.sleep(DOWN_SECONDS)
        log = chaos.cluster.directory.logs / f"{name}.log"
        said = log.stat().st_size
        await chaos.start(name)
        seen = await _watch(chaos, broker)
        words = log.read_bytes()[said:].decode()
        # Harm behind what the evidence covers looks like a torn write: then the broker says where it cut, and why.
        found = words.count("a log lost acknowledged records") + words.count("a record's checksum is wrong")
        chaos.say(f"{name} found damage {found} times, {seen} logs were seen as damaged from outside")
        if finds and not found:
            chaos.problems.append(f"{name} did not find the damage: its log says nothing of it")
        if not finds:
            await _read_until_sound(chaos, broker)

    return act


async def _read_until_sound(chaos: Chaos, broker: int) -> None:
    """What a start does not look at is found when it is read: the broker stops over it, and copies that log anew."""
    name = f"broker-{broker}"
    for _ in range(READS_MAX):
        lost = await _lost(chaos, broker)
        if lost is None:
            return
        chaos.say(f"{name} found it when it was read: {lost}")
        deadline = time.monotonic() + STOP_SECONDS
        while chaos.cluster.process(name).alive() and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
        if chaos.cluster.process(name).alive():
            chaos.problems.append(f"{name} goes on with a batch that it cannot read")
            return
        await chaos.start(name)
        await _watch(chaos, broker)
    chaos.problems.append(f"{name} is not sound after {READS_MAX} starts")


async def _lost(chaos: Chaos, broker: int) -> str | None:
    """What the broker says when all its copies are read; None: nothing is wrong with them."""
    topic = (await chaos.newest()).topics[0]
    holders = {p.partition: list(p.replicas) for p in topic.partitions}
    try:
        await read_all({broker: chaos.addresses[broker]}, RACKS, topic.topic_id, holders)
    except Unreadable as error:
        return str(error)
    return None


async def wipe(chaos: Chaos) -> None:
    """The data directory of the broker that leads most is gone when it comes back."""
    broker = (await chaos.by_leaderships())[0]
    name = f"broker-{broker}"
    await chaos.kill(name)
    shutil.rmtree(chaos.cluster.directory.path / name)
    chaos.say(f"the data directory of {name} is gone")
    await asyncio.sleep(DOWN_SECONDS)
    await chaos.start(name)
    await _watch(chaos, broker)


def fill_disk(broker: int, seconds: float, *, leave: int = 0) -> Act:
    """No more than ``leave`` bytes are free on the small disk of this broker for a while."""

    async def act(chaos: Chaos) -> None:
        place = chaos.cluster.directory.path / f"broker-{broker}"
        filler = place / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while shutil.disk_usage(place).free > leave:
                file.write(bytes(256 << 10))
        chaos.say(f"{shutil.disk_usage(place).free} bytes are free on the disk of broker-{broker}")
        await asyncio.sleep(seconds)
        filler.unlink()
        chaos.say("there is room again")
        await _back(chaos, f"broker-{broker}")

    return act


async def _back(chaos: Chaos, name: str) -> None:
    """A broker whose disk was full may have ended; then somebody starts it."""
    if not chaos.cluster.process(name).alive():
        chaos.say(f"{name} has ended meanwhile")
        await chaos.start(name)
    await chaos.processes_ready()


async def _watch(chaos: Chaos, broker: int) -> int:
    """
    Until the broker has no damaged log and is in every ISR: how many were damaged. One that leads with a damaged log
    is a problem.
    """
    damaged: set[int] = set()
    led: set[int] = set()
    deadline = time.monotonic() + WHOLE_SECONDS
    while time.monotonic() < deadline:
        now = await _damaged(chaos, broker)
        topic = (await chaos.newest()).topics[0]
        if now is not None:
            damaged |= now
            still = await _damaged(chaos, broker)
            led |= {
                p.partition for p in topic.partitions if p.leader == broker and p.partition in (now & (still or set()))
            }
            if not now and all(broker in p.isr for p in topic.partitions):
                break
        await asyncio.sleep(LOOK_SECONDS)
    else:
        chaos.problems.append(f"broker-{broker} was not whole {WHOLE_SECONDS:.0f} s after its start")
    if led:
        chaos.problems.append(f"broker-{broker} led partitions {sorted(led)} with a damaged log")
    return len(damaged)


async def _damaged(chaos: Chaos, broker: int) -> set[int] | None:
    """Partitions whose log this broker calls damaged; None when it does not answer."""
    try:
        answer = await chaos.stubs[broker].DescribeLogs(pb.DescribeLogsRequest(), timeout=1.0)
    except grpc.RpcError:
        return None
    return {log.partition for log in answer.logs if log.state == pb.DAMAGED}
