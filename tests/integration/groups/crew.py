"""
Members of groups as processes, the load that they read, what they tell, and what is measured of that.

Tests start a ``Crew``, wait for things to come true with ``until``, and judge with the functions at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import headrace
from headrace import TopicPartition
from headrace.delivery import Delivery
from headrace.testing import TestCluster, started_cluster

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": ["range"]},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": ["cooperative-sticky"]},
    "server-side": {"group_protocol": "consumer"},
}
PARTITIONS = 12
PATIENCE_S = 60.0
LOOK_S = 0.02
SCRIPT = Path(__file__).parent / "group_member.py"


def until(true: Callable[[], bool], why: str, seconds: float = PATIENCE_S) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {why}"
        time.sleep(LOOK_S)


@dataclass(slots=True)
class Run:
    """Records of a partition that one poll returned, without a gap."""

    at_ns: int
    first: int
    last: int


@dataclass(slots=True)
class Span:
    """From when to when a member had a partition, and what it handled meanwhile."""

    member: str
    begin_ns: int
    end_ns: int | None = None
    runs: list[Run] = field(default_factory=list)
    lost: bool = False


class Member:
    """One process and its diary."""

    def __init__(self, name: str, diary: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process
        self.lines: list[str] = []
        self.spans: dict[TopicPartition, list[Span]] = defaultdict(list)
        self.runs: dict[TopicPartition, list[Run]] = defaultdict(list)
        self.errors: list[str] = []
        self.rebalances: list[tuple[str, set[TopicPartition]]] = []
        self.closing_ns = self.killed_ns = 0
        self.leaving = self.closed = False
        self._diary = diary
        self._at = 0

    def look(self) -> Member:
        """Read on in the diary; a last line that is not whole yet is left for later."""
        if self._diary.exists():
            with self._diary.open("rb") as file:
                file.seek(self._at)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._at += len(whole)
            for line in whole.decode().splitlines():
                at, sign, *rest = line.split(" ")
                self._take(int(at), sign, rest)
        return self

    def _take(self, at_ns: int, sign: str, rest: list[str]) -> None:
        if sign == "r":
            tp, run = TopicPartition(rest[0], int(rest[1])), Run(at_ns, int(rest[2]), int(rest[3]))
            self.runs[tp].append(run)
            if self.spans[tp]:
                self.spans[tp][-1].runs.append(run)
        elif sign in "+-!":
            named = [text.rpartition(":") for text in rest[0].split(",") if text]
            partitions = {TopicPartition(topic, int(number)) for topic, _, number in named}
            self.rebalances.append((sign, partitions))
            for tp in partitions:
                if sign == "+":
                    self.spans[tp].append(Span(self.name, at_ns))
                else:
                    self.spans[tp][-1].end_ns, self.spans[tp][-1].lost = at_ns, sign == "!"
        elif sign == "x":
            self.errors.append(" ".join(rest))
        elif sign == "closing":
            self.closing_ns = at_ns
        elif sign == "closed":
            self.closed = True

    @property
    def held(self) -> set[TopicPartition]:
        """What it has now."""
        return {tp for tp, spans in self.spans.items() if spans and spans[-1].end_ns is None} if self.lives else set()

    @property
    def lives(self) -> bool:
        return not self.closed and not self.killed_ns and self.process.poll() is None


class Crew:
    """Members of one group on one topic (or of none: who reads everything)."""

    def __init__(self, cluster: TestCluster, folder: Path, group: str | None, topic: str, **settings: Any) -> None:
        self.group = group
        self.topic = topic
        self.members: list[Member] = []
        self._cluster = cluster
        self._folder = folder
        self._settings = settings | ({} if group is None else {"group_id": group})
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, *, pattern: str | None = None, work_s: float = 0.0, **settings: Any) -> Member:
        """One more."""
        name = f"{self.group or 'reader'}-{len(self.members) + 1}"
        diary = self._folder / f"{name}.diary"
        argv = [sys.executable, str(SCRIPT), "--bootstrap", ",".join(self._cluster.bootstrap_servers)]
        argv += ["--diary", str(diary), "--topics", self.topic, "--settings", json.dumps(self._settings | settings)]
        argv += ["--work-s", str(work_s), *(["--pattern", pattern] if pattern else [])]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log)
        member = Member(name, diary, process)
        self.members.append(member)
        return member

    @property
    def living(self) -> list[Member]:
        """Those that have not been ended."""
        return [member.look() for member in self.members if member.lives]

    def kill(self, member: Member) -> None:
        """kill -9; its spans end then."""
        member.process.kill()
        member.killed_ns = time.monotonic_ns()
        member.process.wait()
        member.look()

    def ask_to_close(self, member: Member) -> None:
        """It closes its consumer and ends."""
        assert member.process.stdin is not None
        member.process.stdin.close()
        member.leaving = True

    def close(self, *members: Member) -> None:
        """Ask these (or all that live) to close, and wait until they have ended well."""
        ending = members or [member for member in self.members if member.lives]
        for member in ending:
            self.ask_to_close(member)
        for member in ending:
            code = member.process.wait(PATIENCE_S)
            member.look()
            assert code == 0, self.log(member)
            assert member.closed, self.log(member)

    def log(self, member: Member) -> str:
        """What its process wrote: warnings and tracebacks."""
        return f"{member.name}\n" + (self._folder / f"{member.name}.log").read_text(errors="replace")[-3000:]

    def shared(self, partitions: int = PARTITIONS) -> bool:
        """Whether every partition has one owner, shares are balanced within one, and nobody else is expected."""
        shares = [len(member.held) for member in self.living]
        crashed = [m for m in self.members if m.process.poll() not in (None, 0) and not m.killed_ns]
        assert not crashed, self.log(crashed[0])
        return bool(shares) and sum(shares) == partitions and max(shares) - min(shares) <= 1

    def settle(self, partitions: int = PARTITIONS) -> None:
        """Wait until the partitions are shared."""
        until(lambda: self.shared(partitions), f"{partitions} partitions of {self.group} shared evenly")

    def end(self) -> None:
        """Whatever still runs."""
        for member in self.members:
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()


class Load:
    """A record to every partition, every few ms, until it is ended."""

    def __init__(self, cluster: TestCluster, topic: str, every_s: float = 0.02, partitions: int = PARTITIONS) -> None:
        self.ends: dict[TopicPartition, int] = {}
        self._topic, self._every_s, self._partitions = topic, every_s, partitions
        self._producer = cluster.producer(linger_ms=0)
        self._last: dict[int, Delivery] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            for number in range(self._partitions):
                self._last[number] = self._producer.send(self._topic, b"x" * 100, partition=number)

    def end(self) -> None:
        """Stop, and wait until all is acknowledged; then ``ends`` says where the partitions end."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            for number, delivery in self._last.items():
                self.ends[TopicPartition(self._topic, number)] = delivery.result(timeout=60).offset + 1
            self._producer.close()


class Watch:
    """Looks again and again at what a group has committed, from outside."""

    def __init__(self, cluster: TestCluster, group: str, topic: str, partitions: int = PARTITIONS) -> None:
        self.seen: list[tuple[int, dict[TopicPartition, int]]] = []
        self.trouble: list[str] = []
        self._wanted = [TopicPartition(topic, number) for number in range(partitions)]
        self._consumer = cluster.consumer(group_id=group)
        self._over = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self.now()

    def now(self) -> dict[TopicPartition, int]:
        """Look once; one thread after the other, so that what is seen later was answered later."""
        with self._looking:
            try:
                found = self._consumer.committed(self._wanted)
            except headrace.HeadraceError as error:
                self.trouble.append(str(error))
                return {}
            offsets = {tp: at.offset for tp, at in found.items() if at is not None}
            self.seen.append((time.monotonic_ns(), offsets))
            return offsets

    def end(self) -> None:
        """No more looks."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._consumer.close()


@contextmanager
def two_coordinators(directory: Path, *, brokers: int = 1, **options: Any) -> Iterator[TestCluster]:
    """What is killed comes back."""
    with started_cluster(
        directory, brokers=brokers, coordinators=2, restart=True, restart_delay_ms=200, **options
    ) as started:
        yield started


@contextmanager
def ending(*these: Any) -> Iterator[None]:
    """End loads, watches and crews, whatever happens."""
    try:
        yield
    finally:
        for one in these:
            one.end()


def lag_of(admin: headrace.AdminClient, group: str) -> int | None:
    """Of all partitions; None: not known now."""
    try:
        lags = [one.lag for one in admin.group_lag(group, ages=False).values()]
    except headrace.HeadraceError:
        return None
    known = [lag for lag in lags if lag is not None]
    return sum(known) if lags and len(known) == len(lags) else None


# --- judgements ---------------------------------------------------------------------------------------------------


def spans_of(crews: Iterable[Member]) -> dict[TopicPartition, list[Span]]:
    """By partition, in the order in which they began; a kill ends those of the member."""
    spans: dict[TopicPartition, list[Span]] = defaultdict(list)
    for member in crews:
        for tp, own in member.look().spans.items():
            for span in own:
                if span.end_ns is None:
                    span.end_ns = member.killed_ns or None
                spans[tp].append(span)
    for own in spans.values():
        own.sort(key=lambda span: span.begin_ns)
    return spans


def assert_handled(crew: Crew, ends: dict[TopicPartition, int]) -> int:
    """Each record was handled at least once; returns how many were handled again."""
    again = 0
    for tp, end in ends.items():
        seen = bytearray(end)
        for member in crew.members:
            for run in member.look().runs[tp]:
                again += sum(seen[run.first : run.last + 1])
                seen[run.first : run.last + 1] = b"\1" * (run.last + 1 - run.first)
        missing = [offset for offset in range(end) if not seen[offset]]
        assert not missing, f"{tp}: {len(missing)} of {end} records were never handled, from {missing[0]} on"
    return again


def assert_committed(crew: Crew, watch: Watch) -> None:
    """Whatever was seen as committed had been handled before, without a gap, and no commit was taken back."""
    assert len(watch.seen) > 1, watch.trouble
    for tp in sorted({tp for _, offsets in watch.seen for tp in offsets}):
        runs = sorted((run.at_ns, run.first, run.last) for member in crew.members for run in member.runs[tp])
        handled, at, before = set[int](), 0, 0
        covered = 0
        for seen_ns, offsets in watch.seen:
            while at < len(runs) and runs[at][0] <= seen_ns:
                handled.update(range(runs[at][1], runs[at][2] + 1))
                at += 1
            while covered in handled:
                covered += 1
            committed = offsets.get(tp, 0)
            assert committed <= covered, f"{tp}: {committed} was committed when {covered} was not handled yet"
            assert committed >= before, f"{tp}: {committed} was committed after {before}"
            before = committed


def assert_one_owner(members: Iterable[Member]) -> None:
    """Nobody got a partition before the one that had it gave it up, was killed, or heard that it was out."""
    for tp, spans in spans_of(members).items():
        for i, span in enumerate(spans):
            for later in spans[i + 1 :]:
                over = span.lost or (span.end_ns is not None and span.end_ns <= later.begin_ns)
                assert over, f"{tp}: {later.member} got it while {span.member} had it"


def pauses_ms(members: Iterable[Member], reader: Member, since_ns: int, until_ns: int) -> list[float]:
    """
    How long records of partitions that did not move between two times waited for their member, in ms, the longest
    first. A record waits from when a reader without a group had it, so that brokers and the load do not count.
    """
    waits: list[float] = []
    for tp, span in stayed(members, since_ns, until_ns).items():
        known = reader.look().runs[tp]
        lasts = [run.last for run in known]
        for before, run in pairwise(span.runs):
            at = bisect_left(lasts, run.first)
            if since_ns <= run.at_ns <= until_ns and at < len(known):
                waits.append((run.at_ns - max(before.at_ns, known[at].at_ns)) / 1e6)
    return sorted(waits, reverse=True)


def stayed(members: Iterable[Member], since_ns: int, until_ns: int) -> dict[TopicPartition, Span]:
    """What one member had all the time between two times, and nobody took from it even for a moment."""
    return {
        tp: span
        for tp, spans in spans_of(members).items()
        for span in spans
        if span.begin_ns <= since_ns and (span.end_ns is None or span.end_ns >= until_ns)
    }


def read_again_s(left: Member, others: Iterable[Member], had: set[TopicPartition], since_ns: int) -> float | None:
    """Seconds until the last of a member's partitions was read by another; None: one is not yet."""
    firsts: list[int] = []
    for tp in had:
        times = [run.at_ns for m in others if m is not left for run in m.look().runs[tp] if run.at_ns > since_ns]
        if not times:
            return None
        firsts.append(min(times))
    return (max(firsts) - since_ns) / 1e9
