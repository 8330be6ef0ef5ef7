"""
One run: a cluster, a load, faults one after the other with figures for each, then the final read and the verdict.

``run`` is what the tests and the long form call. A run that finds something keeps its directory and says where.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_cluster import RACKS, Chaos
from chaos_faults import Fault
from chaos_history import History, Writer, read_histories
from chaos_network import HERE, Network, network
from chaos_replicas import differences, read_all
from tests.chaos.guard import GUARDED, guarded

from headrace import TopicPartition, aio
from headrace_cli.local import LocalCluster
from headrace_verify.availability import SECOND, Gap, longest_gap, per_second, strip
from headrace_verify.checker import Verdict, check

TOPIC = "chaos"
PARTITIONS = 24
PRODUCERS = (1, 2)
CONSUMERS: Mapping[int, str] = {11: "", 12: "rack-2"}
"""Process → rack: the second reads from followers where it can."""
READER = 15
RATE = 10.0
"""Records a second to each partition from each producer."""
SMALL_DISK_BYTES = 256 << 20
IN_SYNC_SECONDS = 30.0
STEADY_SECONDS = 2.0
READ_SECONDS = 120.0
LOAD_FILE = Path(__file__).with_name("chaos_load.py")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    name: str
    faults: Sequence[Fault]
    restart: bool = False
    """True: the supervisor starts the dead again by itself."""
    controllers: int = 3
    session_ms: int = 9_000
    settings: Mapping[str, str] = field(default_factory=dict)
    cuts: bool = False
    """True: each process has a network of its own, so that it can be cut off (needs root)."""
    value_bytes: int = 20
    """Size of values; those of some kilobytes are stored apart (blob files)."""
    small_disk: int | None = None
    """The broker whose data directory is a disk of ``SMALL_DISK_BYTES`` (needs root)."""


@dataclass(slots=True)
class Figures:
    """One fault as it went."""

    fault: Fault
    began_ns: int
    healed_ns: int = 0
    in_sync_seconds: float | None = None
    ended_ns: int = 0
    gap: Gap | None = None
    availability: str = ""


@dataclass(slots=True)
class Report:
    """One run as it went."""

    plan: Plan
    seed: int
    commit: str
    directory: Path
    figures: list[Figures] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    steady_gap: Gap | None = None

    @property
    def sound(self) -> bool:
        """Nothing was found."""
        return not self.problems and not self.verdict.anomalies

    def text(self) -> str:
        """For people."""
        verdict = self.verdict
        lines = [
            f"{self.plan.name}: seed {self.seed}, commit {self.commit}, {verdict.sends_ok} writes acknowledged, "
            f"{verdict.sends_unknown} unknown, {verdict.read} read"
        ]
        if self.steady_gap is not None:
            lines.append(f"  without faults   gap {self.steady_gap.seconds:6.2f} s")
        for one in self.figures:
            target = "" if one.fault.target_seconds is None else f" (target {one.fault.target_seconds:g})"
            recovered = "not in sync" if one.in_sync_seconds is None else f"in sync {one.in_sync_seconds:.1f} s"
            gap = one.gap.seconds if one.gap else 0.0
            lines.append(f"  {one.fault.name:<24} gap {gap:6.2f} s{target}, {recovered} after healing")
            lines.append(f"    {one.availability}")
        lines += [f"  PROBLEM: {text}" for text in self.problems]
        if verdict.anomalies:
            lines.append(verdict.describe())
        if not self.sound:
            lines.append(f"data, logs and histories are kept in {self.directory}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "run": self.plan.name,
            "seed": self.seed,
            "commit": self.commit,
            "acknowledged": self.verdict.sends_ok,
            "unknown": self.verdict.sends_unknown,
            "read": self.verdict.read,
            "anomalies": self.verdict.counts,
            "problems": self.problems,
            "steady_gap_s": None if self.steady_gap is None else round(self.steady_gap.seconds, 3),
            "faults": [
                {
                    "fault": one.fault.name,
                    "gap_s": None if one.gap is None else round(one.gap.seconds, 3),
                    "target_s": one.fault.target_seconds,
                    "in_sync_s": None if one.in_sync_seconds is None else round(one.in_sync_seconds, 2),
                    "availability": one.availability,
                }
                for one in self.figures
            ],
        }


async def run(plan: Plan, directory: Path, seed: int) -> Report:
    """The whole of it. ``directory`` is made and left."""
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        made: Network | None = None
        if plan.cuts:
            names = [f"broker-{n}" for n in RACKS] + [f"controller-{n + 1}" for n in range(plan.controllers)]
            made = stack.enter_context(network(names))
        if plan.small_disk is not None:
            stack.enter_context(_small_disk(directory / "cluster" / f"broker-{plan.small_disk}"))
        return await _run(plan, directory, seed, made)


@contextmanager
def _small_disk(path: Path) -> Iterator[None]:
    path.mkdir(parents=True)
    (path.parent / "logs").mkdir(exist_ok=True)  # so that the directory counts as a cluster's
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "small", str(path)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


async def _run(plan: Plan, directory: Path, seed: int, made: Network | None) -> Report:
    report = Report(plan, seed, _commit(), directory)
    settings = {"broker.session.timeout.ms": str(plan.session_ms), **plan.settings}
    if plan.session_ms < 9_000:
        settings["broker.heartbeat.interval.ms"] = str(plan.session_ms // 5)
    cluster = LocalCluster(
        directory / "cluster",
        brokers=3,
        controllers=plan.controllers,
        restart=plan.restart,
        tls=GUARDED,
        closed=GUARDED or made is None,  # no key goes in plain text to another address than loopback
        settings=settings,
        racks=[RACKS[1], RACKS[2], RACKS[3]],
        hosts=_hosts(made),
        launchers=made.launchers if made else None,
    )
    print(f"{plan.name}: seed {seed}, commit {report.commit}, {directory}", file=sys.stderr, flush=True)
    with cluster, guarded(cluster, TOPIC):
        async with Chaos.open(cluster, TOPIC, PARTITIONS, seed) as chaos:
            report.problems, chaos.network = chaos.problems, made
            bootstrap = ",".join(cluster.bootstrap_servers)
            async with aio.AdminClient(bootstrap) as admin:
                await admin.create_topic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": "2"})
            if await chaos.in_sync(30) is None:
                chaos.problems.append("a new topic was not in sync in 30 s")
            steady_ns = time.monotonic_ns()
            async with loaded(plan, directory, bootstrap, chaos):
                steady_ns = time.monotonic_ns() + SECOND // 2
                await asyncio.sleep(STEADY_SECONDS)
                steady_end = time.monotonic_ns() - SECOND // 2
                for fault in plan.faults:
                    report.figures.append(await _one(chaos, fault))
            await read_everything(directory, bootstrap, chaos)
            await compare(chaos)
            _write_log(directory, chaos)
    history = read_histories(sorted(directory.glob("*.history")), TOPIC)
    report.verdict = check(history.operations)
    report.problems += [f"a client saw an error: {text}" for text in history.errors[:20]]
    report.steady_gap = longest_gap(history.acks, steady_ns, steady_end)
    _measure(report, history)
    (directory / "report.json").write_text(json.dumps(report.as_json(), indent=1))
    return report


def _hosts(made: Network | None) -> dict[str, str] | None:
    if made is None:
        return None
    here = made.hosts[HERE]
    return {"etcd-1": here, "admin-1": here, **{name: at for name, at in made.hosts.items() if name != HERE}}


async def _one(chaos: Chaos, fault: Fault) -> Figures:
    chaos.say(f"--- {fault.name}")
    figures = Figures(fault, time.monotonic_ns())
    await fault.act(chaos)
    figures.healed_ns = time.monotonic_ns()
    chaos.say("healed")
    figures.in_sync_seconds = await chaos.in_sync(2 * IN_SYNC_SECONDS)
    if figures.in_sync_seconds is None or figures.in_sync_seconds > IN_SYNC_SECONDS:
        chaos.problems.append(f"{fault.name}: not in sync {IN_SYNC_SECONDS:.0f} s after healing")
    else:
        chaos.say(f"in sync after {figures.in_sync_seconds:.1f} s")
    await asyncio.sleep(STEADY_SECONDS)
    # What begins at the very end belongs to the next fault.
    figures.ended_ns = time.monotonic_ns() - SECOND // 2
    return figures


def _measure(report: Report, history: History) -> None:
    for one in report.figures:
        one.gap = longest_gap(history.acks, one.began_ns, one.ended_ns)
        rows = per_second(history.acks, one.began_ns, one.ended_ns - SECOND // 2)
        one.availability = strip(rows, PARTITIONS)


@asynccontextmanager
async def loaded(plan: Plan, directory: Path, bootstrap: str, chaos: Chaos) -> AsyncIterator[None]:
    """Producers and consumers run until the end of the block; producers then end what they have begun."""
    more = (str(RATE), str(plan.value_bytes))
    producers = [await _spawn(directory, bootstrap, "produce", n, *more) for n in PRODUCERS]
    consumers = [await _spawn(directory, bootstrap, "consume", n, rack) for n, rack in CONSUMERS.items()]
    every = [*producers, *consumers]
    try:
        for process in every:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            assert line == b"ready\n", f"a process of the load did not begin; see its .err in {directory}"
        chaos.say("the load runs")
        yield
        chaos.say("the load ends")
        for group, seconds in ((producers, 150), (consumers, 30)):
            for process in group:
                assert process.stdin is not None
                process.stdin.close()
            codes = [await asyncio.wait_for(process.wait(), seconds) for process in group]
            if any(codes):
                chaos.problems.append(f"processes of the load ended with {codes}; see their .err")
    finally:
        for process in every:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _spawn(directory: Path, bootstrap: str, what: str, number: int, *more: str) -> asyncio.subprocess.Process:
    own = directory / f"{what}-{number}"
    argv = [str(LOAD_FILE), what, bootstrap, TOPIC, str(PARTITIONS), str(number), f"{own}.history", *more]
    with Path(f"{own}.err").open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )


async def read_everything(directory: Path, bootstrap: str, chaos: Chaos) -> None:
    """The final phase: from the beginning to the end of each partition, written down as one more process."""
    out = Writer(directory / "final.history", READER)
    out.assigned()
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + READ_SECONDS
    async with aio.Consumer(TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets(partitions)
        left = set(partitions)
        while left and time.monotonic() < deadline:
            records = await consumer.poll(timeout_ms=300, max_records=5_000)
            if records:
                out.polled((r.partition, r.offset, int(r.value)) for r in records)
            left = {one for one in left if await consumer.position(one) < ends[one]}
    out.close()
    if left:
        chaos.problems.append(f"the final read did not reach the end of {len(left)} partitions")
    chaos.say(f"read all, {sum(ends.values())} records")


async def compare(chaos: Chaos) -> None:
    """Replicas byte for byte; high watermarks of followers may need a moment."""
    topic = (await chaos.newest()).topics[0]
    replicas = {one.partition: list(one.replicas) for one in topic.partitions}
    deadline = time.monotonic() + 10
    while True:
        found = differences(await read_all(chaos.addresses, RACKS, topic.topic_id, replicas))
        if not found or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.5)
    chaos.problems += [f"replicas differ: {text}" for text in found]
    chaos.say("replicas compared")


def _write_log(directory: Path, chaos: Chaos) -> None:
    lines = [f"{(line.at_ns - chaos.began_ns) / 1e9:9.3f} {line.text}" for line in chaos.lines]
    (directory / "faults.log").write_text("\n".join(lines) + "\n")


def _commit() -> str:
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return told.stdout.strip() or os.environ.get("GIT_COMMIT", "unknown")
