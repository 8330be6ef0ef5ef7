"""
The load inside of a cluster: it runs in a pod, from a ConfigMap, with whatever SDK the pod's image has.

``python load.py all PLAN`` starts one process for each part, makes the file ``ready`` when all have begun, and ends
them when somebody makes the file ``stop``: producers first, readers when they are at the ends; then everything is read
from the beginning once more, and ``done`` says how the parts ended. PLAN is JSON: bootstrap_servers, brokers (address
of each), topics, partitions, replicas, group, rate (records a second in all), bytes (of a value), out (a directory),
stay (true: do not end, so that the directory of the pod can be fetched).

What it writes down, one line an event, with the monotonic clock of the node, which all parts share (KEY is
topic-partition):

- ``C monotonic_ns wall_ns``: how the two clocks stand to each other;
- ``S process KEY value count outcome offset began_ns ended_ns``: sends of consecutive values with one outcome;
- ``P process ended_ns KEY:offset:value:count ...``: a poll, as runs of consecutive offsets and values;
- ``A process``: what the process reads next has no tie to what it read before;
- ``G process``: the process is a member of the group;
- ``I at_ns topic partition leader in_sync replicas``: a partition as brokers have it, where that changed;
- ``L at_ns seconds``: the producer's own loop was so late: the machine is too busy, whatever the cluster does;
- ``E process at_ns text``: an error that an application sees.

Values of one process are ``n * STEP + process`` with n from 1, whatever partition they go to.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from written import FINAL, MEMBERS, PRODUCER, READER, STEP, Writer, outcomes, runs

TICK_S, LATE_S = 0.025, 0.3
KEYS_MAX = 1_000
AT_END_S = 90.0
BEGIN_S = 120.0
WATCH_S = 0.2
QUIET_POLLS = 5


# --- the parts --------------------------------------------------------------------------------------------------


async def told_to_end() -> None:
    """Return when whoever started us closes our standard input, or is gone."""
    await asyncio.to_thread(sys.stdin.buffer.read)


def begun() -> None:
    """Say that the work has begun."""
    print("ready", flush=True)


class Sender:
    """Sends to every partition of every topic, by keys of which one each belongs to a partition."""

    def __init__(self, producer: Any, plan: dict[str, Any], out: Writer) -> None:
        self._producer = producer
        self._plan = plan
        self._out = out
        self._number = 0
        self._sure = surely_failed()
        self.places: list[tuple[str, str, bytes]] = []
        """Key of the history, topic, key of the records."""

    async def find_keys(self) -> None:
        """Send with one key after the other until each partition has one."""
        for topic in self._plan["topics"]:
            found: dict[int, bytes] = {}
            for number in range(KEYS_MAX):
                if len(found) == self._plan["partitions"]:
                    break
                key, began = b"key-%d" % number, time.monotonic_ns()
                value = self._next(1)
                delivery = await self._producer.send(topic, self._bytes(value), key)
                metadata = await delivery
                place = f"{topic}-{metadata.partition}"
                self._out.sent(place, value, 1, "ok", metadata.offset, began)
                found.setdefault(metadata.partition, key)
            self.places += [(f"{topic}-{partition}", topic, key) for partition, key in sorted(found.items())]

    async def send(self, place: tuple[str, str, bytes], count: int) -> asyncio.Task[None] | None:
        """Hand them to the producer; the task ends when their fate is known. None: they were not accepted."""
        key, topic, record_key = place
        first, began = self._next(count), time.monotonic_ns()
        values = [self._bytes(first + n * STEP) for n in range(count)]
        try:
            deliveries = await self._producer.send_many(topic, values, keys=[record_key] * count)
        except errors() as error:
            self._out.sent(key, first, count, "info", -1, began)
            self._out.failed(PRODUCER, f"send of {count} to {key}: {error!r}")
            return None
        return asyncio.ensure_future(self._note(key, first, deliveries, began))

    async def _note(self, key: str, first: int, deliveries: Iterable[Any], began: int) -> None:
        found = []
        for number, delivery in enumerate(deliveries):
            value = first + number * STEP
            try:
                metadata = await delivery
            except errors() as error:
                found.append(("fail" if error.code in self._sure else "info", -1, value))
                self._out.failed(PRODUCER, f"send of {value} to {key}: {error!r}")
                continue
            found.append(("ok", metadata.offset, value))
            if f"{metadata.topic}-{metadata.partition}" != key:
                self._out.failed(PRODUCER, f"{value} of {key} is in {metadata.topic}-{metadata.partition}")
        for outcome, offset, value, count in outcomes(found):
            self._out.sent(key, value, count, outcome, offset, began)

    def _next(self, count: int) -> int:
        first = (self._number + 1) * STEP + PRODUCER
        self._number += count
        return first

    def _bytes(self, value: int) -> bytes:
        return (b"%d" % value).ljust(self._plan["bytes"])


async def produce(plan: dict[str, Any], out: Writer) -> None:
    """``rate`` records a second over all partitions until told to end, then until the fate of each is known."""
    from headrace import aio

    stop = asyncio.ensure_future(told_to_end())
    notes: set[asyncio.Task[None]] = set()
    async with aio.Producer(
        plan["bootstrap_servers"], acks="all", buffer_memory=64 << 20, client_id="load"
    ) as producer:
        sender = Sender(producer, plan, out)
        await sender.find_keys()
        begun()
        owed, turn, due = 0.0, 0, time.monotonic()
        while not stop.done():
            owed += plan["rate"] * TICK_S
            each = max(round(owed / len(sender.places)), 1)
            while owed >= each and not stop.done():
                task = await sender.send(sender.places[turn % len(sender.places)], each)
                if task is not None:
                    notes.add(task)
                    task.add_done_callback(notes.discard)
                owed, turn = owed - each, turn + 1
            late = time.monotonic() - due
            if late > LATE_S:
                out.line(f"L {time.monotonic_ns()} {late:.3f}")
            due = max(due + TICK_S, time.monotonic() - 1)
            await asyncio.sleep(max(due - time.monotonic(), 0))
        await asyncio.gather(*notes)


def points(records: Iterable[Any]) -> Iterator[tuple[str, int, int]]:
    """What the history says of records."""
    for record in records:
        yield f"{record.topic}-{record.partition}", record.offset, int(record.value)


async def poll_once(consumer: Any, process: int, out: Writer) -> int:
    """How many records it gave; an error is written down."""
    try:
        records = await consumer.poll(timeout_ms=200, max_records=5_000)
    except errors() as error:
        out.failed(process, f"poll: {error!r}")
        await asyncio.sleep(0.1)
        return 0
    if records:
        out.polled(process, runs(points(records)))
    return len(records)


async def read(plan: dict[str, Any], out: Writer, process: int = READER) -> None:
    """Follow all partitions from the beginning; told to end, go on to the ends that are there then."""
    from headrace import TopicPartition, aio

    stop = asyncio.ensure_future(told_to_end())
    places = [TopicPartition(topic, number) for topic in plan["topics"] for number in range(plan["partitions"])]
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100}
    async with aio.Consumer(bootstrap_servers=plan["bootstrap_servers"], **settings) as consumer:
        out.line(f"A {process}")
        await consumer.assign(places)
        begun()
        while not stop.done():
            await poll_once(consumer, process, out)
        ends = await consumer.end_offsets(places)
        left, deadline = set(places), time.monotonic() + AT_END_S
        while left and time.monotonic() < deadline:
            if await poll_once(consumer, process, out):
                deadline = time.monotonic() + AT_END_S  # one that stands still is looked for
            left = {one for one in left if await consumer.position(one) < ends[one]}
        if left:
            out.failed(process, f"did not reach the end of {len(left)} partitions: nothing came for {AT_END_S:.0f} s")


async def member(plan: dict[str, Any], out: Writer, process: int, stop: asyncio.Future[None]) -> None:
    """One of the group, until told to end and the group is at the ends, or ``AT_END_S`` have passed."""
    from headrace import aio

    def changed(_partitions: object) -> None:
        out.line(f"A {process}")

    out.line(f"G {process}")
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, "auto_commit_interval_ms": 1_000}
    async with aio.Consumer(
        bootstrap_servers=plan["bootstrap_servers"], group_id=plan["group"], **settings
    ) as consumer:
        await consumer.subscribe(plan["topics"], on_assign=changed, on_revoke=changed, on_lost=changed)
        while not stop.done():
            await poll_once(consumer, process, out)
        deadline, quiet = time.monotonic() + AT_END_S, 0
        while quiet < QUIET_POLLS and time.monotonic() < deadline:
            if await poll_once(consumer, process, out) or await behind(consumer, process, out):
                quiet = 0
            quiet += 1


async def behind(consumer: Any, process: int, out: Writer) -> bool:
    """Whether a partition that the member has now has more to read."""
    try:
        return any((await consumer.lag()).values())
    except errors() as error:
        out.failed(process, f"lag: {error!r}")
        return True


async def join(plan: dict[str, Any], out: Writer) -> None:
    """The members of the group."""
    stop = asyncio.ensure_future(told_to_end())
    begun()
    await asyncio.gather(*(member(plan, out, process, stop) for process in MEMBERS))


async def watch(plan: dict[str, Any], out: Writer) -> None:
    """Leaders and in-sync replicas as the newest image of any broker has them, every ``WATCH_S``."""
    import grpc

    from headrace_proto.v1 import broker_pb2 as pb
    from headrace_proto.v1.broker_pb2_grpc import BrokerStub

    async def ask(stub: BrokerStub) -> pb.MetadataResponse | None:
        try:
            return await stub.Metadata(pb.MetadataRequest(all_topics=True), timeout=1, metadata=shown())
        except grpc.RpcError:
            return None

    stop = asyncio.ensure_future(told_to_end())
    begun()
    newest, seen, wanted = -1, {}, set(plan["topics"])
    trusted: bytes | None = None
    stubs: list[BrokerStub] = []
    while not stop.done():
        if not stubs or trusted != cas():
            trusted = cas()
            stubs = [BrokerStub(open_to(address, trusted)) for address in plan["brokers"]]
        answers = [one for one in await asyncio.gather(*map(ask, stubs)) if one is not None]
        best = max(answers, key=lambda one: one.revision, default=None)
        if best is not None:
            tell_state(plan, best, len(answers))
        if best is not None and (best.revision > newest or wanted - {topic for topic, _ in seen}):
            newest, now = best.revision, time.monotonic_ns()
            for topic in best.topics:
                for one in topic.partitions:
                    row = (one.leader, len(one.isr), len(one.replicas))
                    if seen.get((topic.name, one.partition)) != row:
                        seen[topic.name, one.partition] = row
                        out.line(f"I {now} {topic.name} {one.partition} {row[0]} {row[1]} {row[2]}")
        await asyncio.wait([stop], timeout=WATCH_S)


def shown() -> tuple[tuple[str, str], ...]:
    """Who this is, as the file of its token says now; nothing: nobody asks."""
    path = os.environ.get("HEADRACE_TOKEN_FILE")
    return () if path is None else (("authorization", f"Bearer {Path(path).read_text().strip()}"),)


def cas() -> bytes | None:
    """The CAs of the cluster as they are now; None: it speaks plain text."""
    path = os.environ.get("HEADRACE_CA")
    return None if path is None else Path(path).read_bytes()


def open_to(address: str, trusted: bytes | None) -> Any:
    """A channel to a broker."""
    from headrace_common.rpc.channels import open_channel

    if trusted is None:
        return open_channel(address)
    from headrace_common.rpc.channels import Security
    from headrace_common.rpc.credentials import Pem

    security = Security(pem=Pem(trusted), server_name=lambda _: "broker.headrace")
    return open_channel(address, security, own_connection=True)


def tell_state(plan: dict[str, Any], answer: Any, answered: int) -> None:
    """How the cluster is now, as a file for whoever waits for something."""
    partitions = [one for topic in answer.topics for one in topic.partitions]
    state = {
        "at_ns": time.time_ns(),
        "brokers": answered,
        "active_controller": answer.active_controller.id if answer.HasField("active_controller") else -1,
        "leaderless": sum(one.leader < 0 for one in partitions),
        "not_in_sync": sum(set(one.isr) != set(one.replicas) for one in partitions),
        "leaders": {f"{t.name}-{p.partition}": p.leader for t in answer.topics for p in t.partitions if not t.internal},
    }
    path = Path(plan["out"]) / "state"
    path.with_suffix(".part").write_text(json.dumps(state))
    path.with_suffix(".part").rename(path)


async def final(plan: dict[str, Any], out: Writer) -> None:
    """Everything from the beginning to the ends, as one more process."""
    await read(plan, out, FINAL)


PARTS = {"produce": produce, "read": read, "join": join, "watch": watch, "final": final}


def errors() -> type[Exception]:
    """What the SDK raises; imported late, so that the parts that need none start without it."""
    from headrace.errors import HeadraceError

    return HeadraceError


def surely_failed() -> frozenset[Any]:
    """Codes of errors after which a value is in no log."""
    from headrace.errors import ErrorCode

    names = ("INVALID_PRODUCER_EPOCH", "OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_TOPIC_OR_PARTITION")
    return frozenset(ErrorCode[name] for name in names)


# --- all together -----------------------------------------------------------------------------------------------


def make_topics(plan: dict[str, Any]) -> None:
    """The topics, where they are not there yet; a cluster that is just starting is waited for."""
    import headrace

    deadline = time.monotonic() + BEGIN_S
    for topic in plan["topics"]:
        while True:
            try:
                with headrace.AdminClient(plan["bootstrap_servers"]) as admin:
                    admin.create_topic(topic, plan["partitions"], plan["replicas"])
            except headrace.errors.TopicAlreadyExists:
                break
            except headrace.HeadraceError as error:
                print(f"{topic} cannot be made yet: {error}", file=sys.stderr, flush=True)
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                break


def start(name: str, plan: dict[str, Any]) -> subprocess.Popen[bytes]:
    """One part; it writes ``name.history`` and complains in ``name.err``."""
    out = Path(plan["out"])
    with (out / f"{name}.err").open("ab") as complaints:
        return subprocess.Popen(
            [sys.executable, __file__, name, json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )


def wait_begun(name: str, process: subprocess.Popen[bytes]) -> None:
    """Until the part says so; its own limits end it otherwise."""
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"{name} did not begin; see {name}.err")


def end(processes: dict[str, subprocess.Popen[bytes]], seconds: float) -> dict[str, int]:
    """Tell them to end and wait; those that do not are killed. How each ended."""
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.close()
    deadline, codes = time.monotonic() + seconds, {}
    for name, process in processes.items():
        try:
            codes[name] = process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            codes[name] = process.wait()
    return codes


def run_all(plan: dict[str, Any]) -> None:
    """The supervisor."""
    out = Path(plan["out"])
    out.mkdir(parents=True, exist_ok=True)
    make_topics(plan)
    processes = {name: start(name, plan) for name in ("watch", "produce", "read", "join")}
    try:
        for name, process in processes.items():
            wait_begun(name, process)
        (out / "ready").touch()
        while not (out / "stop").exists():
            dead = {name: p.returncode for name, p in processes.items() if p.poll() is not None}
            if dead:
                raise RuntimeError(f"parts of the load have ended: {dead}")
            time.sleep(0.2)
        codes = end({"produce": processes.pop("produce")}, 150)
        codes |= end({name: processes.pop(name) for name in ("read", "join", "watch")}, AT_END_S + 60)
        processes["final"] = start("final", plan)
        wait_begun("final", processes["final"])
        codes |= end({"final": processes.pop("final")}, AT_END_S + 60)
        (out / "done.part").write_text(json.dumps(codes))
        (out / "done.part").rename(out / "done")
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def main() -> None:
    """See the top."""
    what, plan = sys.argv[1], json.loads(sys.argv[2])
    if what == "all":
        # The first process of a container dies of no signal that it does not handle.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        try:
            run_all(plan)
        except Exception:  # noqa: BLE001  # whoever waits for us is told, whatever it was
            traceback.print_exc()
            (Path(plan["out"]) / "failed").write_text(traceback.format_exc())
        while plan.get("stay"):  # so that what was written down can be fetched
            time.sleep(1)
        return
    out = Writer(Path(plan["out"]) / f"{what}.history")
    try:
        asyncio.run(PARTS[what](plan, out))
    finally:
        out.close()


if __name__ == "__main__":
    main()
