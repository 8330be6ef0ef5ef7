"""
One run: a cluster whose logs are compacted and deleted in a hurry, a load, faults one after the other, and the verdict.

``run`` is what the tests and the long form call. It fails on anomalies, and where nothing was compacted or deleted,
or nobody read a deletion: then it would prove nothing. A run that finds something keeps its directory and says where.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import compaction_load
from chaos_cluster import RACKS, Chaos
from chaos_faults import Fault
from compaction_copies import Copy, Unreadable, as_read, described, read_copy, uncompacted
from compaction_topics import DELETE_RETENTION_MS, PARTITIONS, POLICIES, SEGMENT_MS, SETTINGS, TOPICS
from grpc import RpcError
from tests.chaos.guard import GUARDED, guarded

from headrace import aio
from headrace_cli.local import LocalCluster
from headrace_common.runtime.failpoints import DIRECTORY_VARIABLE
from headrace_proto.v1 import broker_pb2 as pb
from headrace_verify.availability import SECOND, Gap, longest_gap
from headrace_verify.checker import Outcome
from headrace_verify.checker_compaction import Aged, check_compacted
from headrace_verify.compaction_history import Event, Write, from_lines

LOAD_FILE = Path(__file__).with_name("compaction_load.py")
ROLES = {"write": 1, "read": 20, "group": 40}
"""And the first of their processes in the history; those of the final phase follow."""
FILLER, FINAL, REPLICA = 60, 80, 900
RATE = 40.0
"""Records a second of each of the four producers."""
IN_SYNC_SECONDS = 30.0
STEADY_SECONDS = 2.0
READ_SECONDS = 60.0
SETTLE_SECONDS = 20.0
LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    name: str
    faults: Sequence[Fault]
    steady_seconds: float = STEADY_SECONDS
    """Before the first fault, and after each."""
    restart: bool = True
    """True: the supervisor starts the dead again by itself."""
    rate: float = RATE
    settings: Mapping[str, str] = field(default_factory=dict)
    launchers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What brokers are started with: mutants."""
    failpoints: bool = False
    """True: its faults arm failpoints."""


@dataclass(slots=True)
class Report:
    """One run as it went."""

    plan: Plan
    seed: int
    commit: str
    directory: Path
    problems: list[str] = field(default_factory=list)
    verdict: Aged = field(default_factory=Aged)
    history: list[Event] = field(default_factory=list)
    disturbed: list[tuple[int, int]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    passes: int = 0
    """Compactions that brokers have ended, as seen from outside: moves of ``cleaned_to`` between two looks."""
    compacted_logs: int = 0
    """Replicas that are compacted up to somewhere."""
    gap: Gap | None = None
    replica_records: int = 0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Nothing was found."""
        return not self.problems and not self.verdict.anomalies

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        verdict = self.verdict
        return {
            "run": self.plan.name,
            "seed": self.seed,
            "commit": self.commit,
            "seconds": round(self.seconds, 1),
            "sound": self.sound,
            "faults": dict(self.faults),
            "acknowledged": verdict.sends_ok,
            "unknown": verdict.sends_unknown,
            "read": verdict.read,
            "deletions_read": verdict.tombstones,
            "ranges_told_lost": verdict.told,
            "passes": self.passes,
            "compacted_logs": self.compacted_logs,
            "compacted_records": verdict.compacted,
            "expired_records": verdict.expired,
            "longest_gap_s": None if self.gap is None else round(self.gap.seconds, 2),
            "anomalies": verdict.counts,
            "allowed": {name: len(found) for name, found in verdict.allowed.items()},
            "problems": self.problems,
        }

    def text(self) -> str:
        """For people."""
        lines = [json.dumps(self.as_json())]
        lines += [f"  PROBLEM: {text}" for text in self.problems]
        if self.verdict.anomalies:
            lines.append(self.verdict.describe())
        if not self.sound:
            lines.append(f"data, logs and histories are kept in {self.directory}")
        return "\n".join(lines)


@dataclass(slots=True)
class Watch:
    """Looks at the brokers again and again: what is compacted while the load runs."""

    chaos: Chaos
    names: Mapping[bytes, str]
    passes: int = 0
    last: dict[tuple[int, str], pb.LogDescription] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)

    async def look(self) -> None:
        """Once."""
        found = await described(self.chaos.stubs, self.names)
        for place, log in found.items():
            before = self.last.get(place)
            if before is not None:
                self.passes += log.compaction.cleaned_to > before.compaction.cleaned_to
            if log.compaction.stuck:
                self.stuck.add(f"broker {place[0]}, {place[1]}: {log.compaction.waits_for}")
        self.last.update(found)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)


async def run(plan: Plan, directory: Path, seed: int) -> Report:
    """The whole of it. ``directory`` is made and left."""
    directory.mkdir(parents=True, exist_ok=True)
    report, began = Report(plan, seed, _commit(), directory), time.monotonic()
    cluster = LocalCluster(
        directory / "cluster",
        brokers=3,
        coordinators=2,
        restart=plan.restart,
        restart_delay_ms=200,
        tls=GUARDED,
        settings={**SETTINGS, **plan.settings},
        racks=[RACKS[1], RACKS[2], RACKS[3]],
        launchers=plan.launchers,
    )
    print(f"{plan.name}: seed {seed}, commit {report.commit}, {directory}", file=sys.stderr, flush=True)
    first = next(iter(TOPICS))
    with failpoints(directory / "points", plan.failpoints), cluster, guarded(cluster, *TOPICS, compaction_load.GROUP):
        async with Chaos.open(cluster, first, TOPICS[first].partitions, seed) as chaos:
            report.problems = chaos.problems
            await _run(plan, report, chaos, ",".join(cluster.bootstrap_servers))
    judge(report)
    report.seconds = time.monotonic() - began
    (directory / "report.json").write_text(json.dumps(report.as_json(), indent=1))
    return report


@contextmanager
def failpoints(directory: Path, wanted: bool) -> Iterator[None]:
    """Processes that are started in this block look there."""
    if not wanted:
        yield
        return
    directory.mkdir()
    os.environ[DIRECTORY_VARIABLE] = str(directory)
    try:
        yield
    finally:
        del os.environ[DIRECTORY_VARIABLE]


async def _run(plan: Plan, report: Report, chaos: Chaos, bootstrap: str) -> None:
    directory = report.directory
    names = await make_topics(bootstrap, chaos)
    watch = Watch(chaos, names)
    watching = asyncio.ensure_future(watch.run())
    try:
        async with loaded(directory, bootstrap, chaos, report.seed, plan.rate):
            await asyncio.sleep(plan.steady_seconds)
            for fault in plan.faults:
                await _one(chaos, fault, report)
                await asyncio.sleep(plan.steady_seconds)
        await settle(directory, bootstrap, chaos, watch)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    if not watching.cancelled() and (error := watching.exception()) is not None:
        raise error
    report.passes = watch.passes
    report.compacted_logs = sum(log.compaction.cleaned_to > 0 for log in watch.last.values())
    chaos.problems += [f"compaction is stuck: {text}" for text in sorted(watch.stuck)]
    await read_everything(directory, bootstrap, chaos)
    report.replica_records = await read_replicas(directory, chaos, names)
    lines = [f"{(line.at_ns - chaos.began_ns) / 1e9:9.3f} {line.text}" for line in chaos.lines]
    (directory / "faults.log").write_text("\n".join(lines) + "\n")


async def make_topics(bootstrap: str, chaos: Chaos) -> dict[bytes, str]:
    """All of them; topic id → name."""
    async with aio.AdminClient(bootstrap) as admin:
        for name, topic in TOPICS.items():
            await admin.create_topic(name, topic.partitions, 3, configs=topic.settings)
    names: dict[bytes, str] = {}
    while len(names) < len(TOPICS):
        for broker in chaos.stubs:
            answer = await chaos.stubs[broker].Metadata(pb.MetadataRequest(topics=list(TOPICS)), timeout=5)
            names |= {one.topic_id: one.name for one in answer.topics if one.topic_id}
        await asyncio.sleep(LOOK_SECONDS)
    if await in_sync(chaos, 30) is None:
        chaos.problems.append("new topics were not in sync in 30 s")
    return names


async def in_sync(chaos: Chaos, timeout_seconds: float) -> float | None:
    """Seconds until all partitions of all topics have all replicas in the ISR and a leader; None: not in time."""
    began = time.monotonic()
    while time.monotonic() - began < timeout_seconds:
        answers = [await _described(chaos, broker) for broker in chaos.stubs]
        newest = max((a for a in answers if a is not None), key=lambda a: a.revision, default=None)
        if newest is not None:
            every = [p for topic in newest.topics for p in topic.partitions]
            whole = [p for p in every if p.leader >= 0 and set(p.isr) == set(p.replicas)]
            if len(whole) == len(PARTITIONS) and all(answers):
                return time.monotonic() - began
        await asyncio.sleep(LOOK_SECONDS / 2)
    await _say_who_is_not(chaos)
    return None


async def _say_who_is_not(chaos: Chaos) -> None:
    """What brokers answer of partitions that are not whole, into the fault log."""
    for broker in chaos.stubs:
        answer = await _described(chaos, broker)
        if answer is None:
            chaos.say(f"broker {broker} does not answer")
            continue
        ends = {(log.topic_id, log.partition): log for log in (await _logs(chaos, broker))}
        for topic in answer.topics:
            for one in topic.partitions:
                if one.leader < 0 or set(one.isr) != set(one.replicas):
                    log = ends.get((topic.topic_id, one.partition))
                    here = "no log" if log is None else f"{log.log_start_offset} to {log.log_end_offset}, {log.note}"
                    text = f"leader {one.leader}, replicas {list(one.replicas)}, ISR {list(one.isr)}, here {here}"
                    chaos.say(f"broker {broker}, revision {answer.revision}: {topic.name}-{one.partition}: {text}")


async def _logs(chaos: Chaos, broker: int) -> list[pb.LogDescription]:
    try:
        return list((await chaos.stubs[broker].DescribeLogs(pb.DescribeLogsRequest(), timeout=5)).logs)
    except RpcError:
        return []


async def _described(chaos: Chaos, broker: int) -> pb.MetadataResponse | None:
    try:
        return await chaos.stubs[broker].Metadata(pb.MetadataRequest(topics=list(TOPICS)), timeout=1)
    except RpcError:
        return None


async def _one(chaos: Chaos, fault: Fault, report: Report) -> None:
    chaos.say(f"--- {fault.name}")
    report.faults[fault.name] += 1
    began = time.monotonic_ns()
    await fault.act(chaos)
    seconds = await in_sync(chaos, 2 * IN_SYNC_SECONDS)
    if seconds is None or seconds > IN_SYNC_SECONDS:
        chaos.problems.append(f"{fault.name}: not in sync {IN_SYNC_SECONDS:.0f} s after healing")
    else:
        chaos.say(f"in sync after {seconds:.1f} s")
    report.disturbed.append((began, time.monotonic_ns() + SECOND))


# --- the load ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def loaded(directory: Path, bootstrap: str, chaos: Chaos, seed: int, rate: float) -> AsyncIterator[None]:
    """Writers, readers and the group run until the end of the block; they end one after the other."""
    running: dict[str, asyncio.subprocess.Process] = {}
    try:
        for role, number in ROLES.items():
            more = [str(rate)] if role == "write" else []
            running[role] = await _spawn(
                directory, role, bootstrap, str(number), f"{directory}/{role}.history", f"{seed}", *more
            )
        for role, process in running.items():
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            assert line == b"ready\n", f"{role} did not begin; see its .err in {directory}"
        chaos.say("the load runs")
        yield
        chaos.say("the load ends")
        for role in ("write", "group", "read"):  # the group reads to the end of what was written
            process = running[role]
            assert process.stdin is not None
            process.stdin.close()
            code = await asyncio.wait_for(process.wait(), 150)
            if code:
                chaos.problems.append(f"{role} ended with {code}; see its .err")
    finally:
        for process in running.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _spawn(directory: Path, role: str, *arguments: str) -> asyncio.subprocess.Process:
    own = directory / role
    with Path(f"{own}.err").open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            str(LOAD_FILE),
            role,
            *arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )


# --- the end ----------------------------------------------------------------------------------------------------


async def settle(directory: Path, bootstrap: str, chaos: Chaos, watch: Watch) -> None:
    """
    Segments are sealed, by one more record in each partition, compacted everywhere, and again when deletions may go.
    """
    await chaos.processes_ready()
    if await in_sync(chaos, 2 * IN_SYNC_SECONDS) is None:
        chaos.problems.append("not in sync at the end")
    out = compaction_load.Out(directory / "filler.history")
    compaction_load.WHO.set(FILLER)
    for turn in range(2):
        await asyncio.sleep((SEGMENT_MS + 200 if turn == 0 else DELETE_RETENTION_MS) / 1000)
        await _fill(out, bootstrap, turn)
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            await asyncio.sleep(2 * LOOK_SECONDS)
            await watch.look()
            left = uncompacted(watch.last.values())
            if not left:
                break
            if time.monotonic() > deadline:
                told = "; ".join(f"{log.partition}: {log.compaction}" for log in left[:3])
                chaos.problems.append(f"{len(left)} logs are not compacted {SETTLE_SECONDS:.0f} s later: {told}")
                break
    out.flush()
    chaos.say("all is compacted")


async def _fill(out: compaction_load.Out, bootstrap: str, turn: int) -> None:
    now = time.monotonic_ns()
    async with aio.Producer(bootstrap, acks="all", linger_ms=0) as producer:
        waiting = []
        for place, log in enumerate(POLICIES):
            number = FILLER * compaction_load.NUMBERS + turn * len(POLICIES) + place
            write = Write(FILLER, log, f"filler-{turn}", number, False, Outcome.INFO, None, now, now)
            delivery = await compaction_load.send(producer, write, b"last")
            waiting.append(compaction_load.settle(out, write, delivery))
        await asyncio.gather(*waiting)


async def read_everything(directory: Path, bootstrap: str, chaos: Chaos) -> None:
    """From the first offsets to the ends, from leaders and from followers."""
    out = compaction_load.Out(directory / "final.history")
    for number, rack in enumerate(("", RACKS[2])):
        left = await asyncio.create_task(
            compaction_load.read_all(out, bootstrap, FINAL + number, rack, READ_SECONDS), name=f"final reader {number}"
        )
        if left:
            chaos.problems.append(f"final reader {number} did not reach the end of {left}")
    out.flush()
    chaos.say("read all")


async def read_replicas(directory: Path, chaos: Chaos, names: Mapping[bytes, str]) -> int:
    """Each replica of each partition, as its broker shows it; how many records there are in all."""
    out, records = compaction_load.Out(directory / "replicas.history"), 0
    compaction_load.WHO.set(REPLICA)
    for topic_id, name in names.items():
        for partition in range(TOPICS[name].partitions):
            for broker, stub in chaos.stubs.items():
                try:
                    copy: Copy = await read_copy(stub, broker, RACKS[broker], topic_id, partition)
                except Unreadable as error:
                    chaos.problems.append(f"{name}: {error}")
                    continue
                out.note(*as_read(REPLICA + broker, f"{name}-{partition}", copy))
                records += copy.records
    out.flush()
    chaos.say(f"read all replicas, {records} records")
    return records


def read_history(paths: Iterable[Path]) -> list[Event]:
    """All files; the last line of one may be cut short by its end."""
    events: list[Event] = []
    for path in sorted(paths):
        lines = path.read_bytes().splitlines(keepends=True)
        events += from_lines(line for line in lines if line.endswith(b"\n"))
    return events


def judge(report: Report) -> None:
    """What the checker says, and whether there was enough for it to say something."""
    report.history = read_history(report.directory.glob("*.history"))
    report.verdict = verdict = check_compacted(report.history, POLICIES, report.disturbed)
    for path in sorted(report.directory.glob("*.errors")):
        report.problems += [f"a client saw: {line}" for line in path.read_text().splitlines()[:20]]
    acks: dict[int, list[int]] = {}
    for event in report.history:
        if isinstance(event, Write) and event.outcome is Outcome.OK and event.process != FILLER:
            acks.setdefault(list(POLICIES).index(event.log), []).append(event.ended_ns)
    for times in acks.values():
        times.sort()
    if acks:
        begin, end = max(times[0] for times in acks.values()), min(times[-1] for times in acks.values())
        report.gap = longest_gap(acks, begin, end)
    for what, count in (
        ("nothing was compacted", report.passes),
        ("no record went by compaction", verdict.compacted),
        ("no log start moved", verdict.expired),
        ("no reader got a deletion", verdict.tombstones),
        ("no reader lost a range", verdict.told),
    ):
        if not count:
            report.problems.append(f"this run proves nothing: {what}")


def _commit() -> str:
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return told.stdout.strip() or os.environ.get("GIT_COMMIT", "unknown")
