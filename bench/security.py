"""
What it costs to ask who calls, and to encrypt: a closed cluster and one with TLS beside an open one, in turns; and what
a process pays for decisions, rows and wrong tokens.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
from libs.common.tests.kit.closed import bearing
from libs.common.tests.kit.issuer import NOW_MS, SigningIssuer

import headrace
from bench.closed_broker import ClosedBroker
from bench.headrace_side import HeadraceSide
from bench.rows import Row, compare, interleaved, percentile
from bench.sizes import sized
from headrace import access
from headrace._transport.grpc import GrpcTransport
from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.grants import Effect, Grant
from headrace_common.core.access.principal import Grantee, Principal, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType, literal, operation_set
from headrace_common.core.access.rows import STATE, Mode, Reader, View, changed_rows, write_key, write_state
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.access.tokens import VerifiedTokens
from headrace_common.core.errors import ErrorCode, HeadraceError, NetworkFailed
from headrace_common.rpc.channels import Security, open_channel, open_sync_channel
from headrace_common.rpc.credentials import Pem
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

RECORDS = 500_000
READS = operation_set(Operation.READ)


def clusters(runs: int) -> list[Row]:
    """
    Open, closed, and closed with TLS, three copies of all: produce, consume, one record and its ack; then changes, and
    connections.
    """
    with ExitStack() as stack:
        open_, closed, tls = (
            stack.enter_context(HeadraceSide.running(brokers=3, closed=closed, tls=tls))
            for closed, tls in ((False, False), (True, False), (True, True))
        )
        sides = {"open": open_, "closed": closed, "TLS": tls}
        rows: list[Row] = []
        records, topics = sized(RECORDS, 20_000), {}
        for name, side in sides.items():
            with trusting(side):
                topics[name] = side.topic(6, replicas=3)
        for what, test, options, point, unit in (
            ("produce", "produce", {"records": records, "mode": "many"}, "rec_s", "records/s"),
            ("consume", "consume", {"records": records, "mode": "poll"}, "rec_s", "records/s"),
            ("one record, p50", "rtt", {"records": sized(2_000, 50), "mode": "aio"}, "p50_ms", "ms"),
        ):
            found = interleaved(
                runs,
                *(
                    lambda side=side, topic=topics[name], test=test, options=options: _client(
                        side, test, topic, options
                    )
                    for name, side in sides.items()
                ),
            )
            plain, asked, encrypted = ([one[point] for one in of] for of in found)
            rows.append(compare(f"{what}: closed / open", unit, asked, plain, target="≥ 0.98" if unit != "ms" else ""))
            better = "≥ 0.75" if unit != "ms" else "+ 0.15 ms"
            rows.append(compare(f"{what}: closed with TLS / open", unit, encrypted, plain, target=better))
        with trusting(tls):
            rows += _changes(tls)
            rows.append(asyncio.run(_connect(tls, sized(500, 20))))
            rows.append(asyncio.run(_reconnect(tls, sized(500, 20))))  # the last: a broker is gone
    return rows


def _client(side: HeadraceSide, test: str, topic: str, options: dict[str, Any]) -> dict[str, float]:
    with trusting(side):
        return side.client(test, topic=topic, **options)


@contextmanager
def trusting(side: HeadraceSide) -> Iterator[None]:
    """Clients within find its CA."""
    ca = side.cluster.address.ca
    if ca is not None:
        os.environ["HEADRACE_CA"] = str(ca)
    try:
        yield
    finally:
        os.environ.pop("HEADRACE_CA", None)


def _changes(side: HeadraceSide) -> list[Row]:
    """How long after the answer of a change the last of all brokers decides by it: each is asked again and again."""
    with headrace.AdminClient(side.bootstrap) as admin:
        topic = f"changes-{time.monotonic_ns()}"
        admin.create_topic(topic)
        key = admin.create_key("User:changing").key.reveal()
        rule = access.allow("User:changing", ["describe"], "topic", topic)
        late = asyncio.run(_late(side, admin, rule, topic, key))
    return [compare("a change of a rule counts at all brokers, p99", "ms", [percentile(late, 0.99)], target="≤ 1,000")]


async def _late(side: HeadraceSide, admin: headrace.AdminClient, rule: Any, topic: str, key: str) -> list[float]:
    """Of many changes, one after another, in ms; sorted."""
    security = replace(_secure(side), metadata=lambda _: [("authorization", f"Bearer {key}")])
    async with AsyncExitStack() as stack:
        stubs = []
        for address in side.cluster.bootstrap_servers:
            channel = await stack.enter_async_context(open_channel(address, security, own_connection=True))
            stubs.append(BrokerStub(channel))

        async def waits(stub: Any, wanted: bool) -> float:
            while True:
                answer = await stub.Metadata(pb.MetadataRequest(topics=[topic]), wait_for_ready=True)
                if (answer.topics[0].error == ErrorCode.NONE) == wanted:
                    return time.monotonic()

        await asyncio.gather(*(waits(stub, wanted=False) for stub in stubs))
        late = []
        for number in range(sized(40, 4)):
            allowed = number % 2 == 0
            await asyncio.to_thread(admin.alter_access, [access.Put(rule) if allowed else access.Remove(rule)])
            begun = time.monotonic()
            late.append((max(await asyncio.gather(*(waits(stub, allowed) for stub in stubs))) - begun) * 1e3)
    return sorted(late)


def _secure(side: HeadraceSide) -> Security:
    ca = side.cluster.address.ca
    return Security(pem=None if ca is None else Pem(ca=Path(ca).read_bytes()))


async def _connect(side: HeadraceSide, clients: int) -> Row:
    """So many connections by TLS at one time to one broker, each with an answer."""
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                open_channel(side.cluster.bootstrap_servers[0], _secure(side), own_connection=True)
            )
            for _ in range(clients)
        ]
        begun = time.monotonic()

        async def ask(channel: Any) -> None:
            try:
                await BrokerStub(channel).Metadata(pb.MetadataRequest(topics=["none"]), wait_for_ready=True)
            except grpc.aio.AioRpcError as refused:  # without a key, which is an answer too
                if refused.code() is not grpc.StatusCode.UNAUTHENTICATED:
                    raise

        await asyncio.gather(*map(ask, channels))
        took = time.monotonic() - begun
    return compare(f"{clients} clients connect by TLS, one process", "ms", [took * 1e3], target="≤ 2,000")


async def _reconnect(side: HeadraceSide, clients: int) -> Row:
    """
    So many clients of one process, all connected to the first broker, which is killed: until each has an answer of
    another one. They find it as clients of the SDK do, by TLS, with a key.
    """
    first, *others = side.cluster.bootstrap_servers
    request = pb.MetadataRequest(topics=["none"])

    async def ask(transport: GrpcTransport) -> pb.MetadataResponse:
        while True:
            with suppress(NetworkFailed):
                return await transport.metadata(request)

    async with asyncio.timeout(120):
        transports = [GrpcTransport(replace(side.cluster.address, servers=(first,))) for _ in range(clients)]
        try:
            answers = await asyncio.gather(*map(ask, transports))
            assert all(len(answer.nodes) > len(others) for answer in answers), "they know of the others"
            await asyncio.to_thread(side.end, "broker-1")
            begun = time.monotonic()
            await asyncio.gather(*map(ask, transports))
            took = time.monotonic() - begun
        finally:
            await asyncio.gather(*(transport.close() for transport in transports))
    name = f"{clients} clients of a broker that was killed have an answer of another by TLS, one process"
    return compare(name, "ms", [took * 1e3], target="≤ 2,000")


def starts(runs: int) -> list[Row]:
    """``headrace up``, and the import of the SDK."""

    def up(closed: bool) -> float:
        begun = time.monotonic()
        with HeadraceSide.running(closed=closed):
            return (time.monotonic() - begun) * 1e3

    closed, open_ = interleaved(runs, lambda: up(True), lambda: up(False))
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import headrace, sys; print([m for m in ('joserfc', 'cryptography', 'scramp') if m in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    imports = [
        _took_ms(lambda: subprocess.run([sys.executable, "-c", "import headrace"], check=True)) for _ in range(runs)
    ]
    bare = [_took_ms(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)) for _ in range(runs)]
    return [
        compare("up: closed / open", "ms", closed, open_, target="+ 300 ms"),
        compare("import headrace / an interpreter", "ms", imports, bare, note=f"loads {loaded} of what logins need"),
    ]


def process(runs: int) -> list[Row]:
    """Decisions, lists, rows and wrong tokens in one process: its CPU, whatever else the machine does."""
    rows = []
    names = [f"topic-{number:04}" for number in range(sized(5_000, 100))]
    alice = Principal(PrincipalType.USER, "alice")
    some = names[:: max(1, len(names) // 1_000)]
    control = Control(lambda: time.time() * 1e3)
    grants = frozenset(Grant(Effect.ALLOW, READS, ResourceType.TOPIC, literal(name)) for name in some)

    def anew() -> Rights:
        control.renew(View(Mode.CLOSED, Access(1, {alice: grants})))
        return Rights(control, Caller(alice))

    def list_all() -> None:
        rights = anew()
        assert sum(rights.shows(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names) == len(some)

    rights = anew()
    rights.may(Operation.READ, ResourceType.TOPIC, some[0])
    cold = [
        _cpu_ms(lambda: [rights.may(Operation.READ, ResourceType.TOPIC, n) for n in _fresh(anew, names)])
        for _ in range(runs)
    ]
    known = [_cpu_ms(lambda: [rights.may(Operation.READ, ResourceType.TOPIC, n) for n in names]) for _ in range(runs)]
    rows.append(_compiled(runs, alice))
    rows.append(compare("a decision, cold, with its use", "µs", [ms * 1e3 / len(names) for ms in cold], target="≤ 5"))
    rows.append(compare("a decision, known, with its use", "µs", [ms * 1e3 / len(names) for ms in known], target="≤ 2"))
    rows.append(
        compare("what 1,000 rules show of 5,000 topics", "ms", [_cpu_ms(list_all) for _ in range(runs)], target="≤ 20")
    )
    written = _many(sized(10_000, 100))
    size = sum(len(key) + len(value) for key, value in written.items()) / 2**20
    rows.append(compare("10,000 users, 100,000 rules: rows", "MiB", [size], target="≤ 40"))
    rows.append(compare("the same: in memory, rows and what is read of them", "MiB", [_held(written)], target="≤ 40"))
    read = [_cpu_ms(lambda: Reader().read(written, None)) for _ in range(runs)]
    rows.append(compare("the same: read at a start", "ms", read, target="≤ 1,000"))
    rows.append(
        compare("10,000 wrong tokens", "ms", [_wrong_tokens(sized(10_000, 50)) for _ in range(runs)], target="≤ 200")
    )
    return rows


def _compiled(runs: int, owner: Principal) -> Row:
    """The first decision for one who has so many rules, each of a name of its own."""
    rules = sized(10_000, 100)
    grants = frozenset(
        Grant(Effect.ALLOW, READS, ResourceType.TOPIC, literal(f"topic-{number:05}")) for number in range(rules)
    )
    given, caller = Access(1, {owner: grants}), Caller(owner)

    def decide() -> None:
        assert Decisions(given).decide(caller, Operation.READ, ResourceType.TOPIC, "topic-00007")

    return compare(
        f"{rules:,} rules of one principal: compiled", "ms", [_cpu_ms(decide) for _ in range(runs)], target="≤ 5"
    )


def _held(written: Mapping[str, bytes]) -> float:
    """What a process holds for these rows, in MiB: their bytes, and what was read of them."""
    gc.collect()
    tracemalloc.start()
    try:
        rows = {str(key): bytes(bytearray(row)) for key, row in written.items()}
        reader = Reader()
        reader.read(rows, None)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / 2**20
    finally:
        tracemalloc.stop()


def calls(runs: int) -> list[Row]:
    """A closed broker in a process of its own: what a caller waits for, by gRPC."""
    topics, rules = sized(5_000, 100), sized(1_000, 20)
    rows = []
    with ClosedBroker.running(topics, rules) as broker:
        everything = pb.MetadataRequest(all_topics=True)
        with open_sync_channel(broker.target, Security(lambda _: [*bearing("alice").items()])) as channel:
            stub = BrokerStub(channel)

            def ask() -> None:
                assert len(stub.Metadata(everything, timeout=30).topics) == rules

            ask()
            first, again = [], []
            for _ in range(max(runs, 5)):
                broker.change()
                first.append(_took_ms(ask))
                again.append(_took_ms(ask))
        what = f"Metadata of {topics:,} topics for a user with {rules:,} rules, by gRPC"
        rows.append(compare(f"{what}: after a change", "ms", first, target="≤ 20"))
        rows.append(compare(f"{what}: again", "ms", again, target="≤ 1"))
        rows += _beside_wrong_tokens(broker, runs)
    return rows


def _beside_wrong_tokens(broker: ClosedBroker, runs: int) -> list[Row]:
    """What they cost the broker, and others: it is one event loop, and they come as fast as a process sends them."""
    seconds = sized(10, 1)
    with broker.flooded():  # what the first one loads is no cost of others
        pass
    alone, beside, rates, wrong, good = [], [], [], [], []
    for _ in range(runs):
        alone.append(_p99_ms(broker.target, seconds))
        with broker.flooded() as told:
            beside.append(_p99_ms(broker.target, seconds))
        rates.append(told[0] / told[1])
        before = broker.cpu_ms
        with broker.flooded() as told:
            time.sleep(seconds)
        wrong.append((broker.cpu_ms - before) * 1e3 / told[0])
        before = broker.cpu_ms
        calls = len(_call_ms(broker.target, seconds))
        good.append((broker.cpu_ms - before) * 1e3 / calls)
    note = f"{statistics.median(rates):,.0f} wrong tokens/s"
    what = "CPU of the broker: a wrong token by gRPC / a call with a key"
    return [
        compare("one call, p99: beside wrong tokens / alone", "ms", beside, alone, target="≤ 2", note=note),
        compare(what, "µs", wrong, good, target="≤ 20 for 10,000/s in 20 % of a core"),
    ]


def _p99_ms(target: str, seconds: float) -> float:
    """Of calls of a caller with a key, one every 5 ms."""
    return percentile(sorted(_call_ms(target, seconds, pause_s=0.005)), 0.99)


def _call_ms(target: str, seconds: float, pause_s: float = 0) -> list[float]:
    """How long each call took, one after another for so long."""
    took = []
    request = pb.MetadataRequest(topics=["topic-0000"])
    with open_sync_channel(target, Security(lambda _: [*bearing("alice").items()])) as channel:
        stub = BrokerStub(channel)
        stub.Metadata(request, timeout=30, wait_for_ready=True)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            took.append(_took_ms(lambda: stub.Metadata(request, timeout=30)))
            time.sleep(pause_s)
    return took


def _fresh(anew: Callable[[], object], names: list[str]) -> list[str]:
    anew()
    return names


def _many(users: int) -> dict[str, bytes]:
    """Ten rules and a key for each."""
    rules: dict[Grantee, frozenset[Grant]] = {
        Principal(PrincipalType.USER, f"user-{user:05}"): frozenset(
            Grant(Effect.ALLOW, READS, ResourceType.TOPIC, literal(f"topic-{user:05}-{number}")) for number in range(10)
        )
        for user in range(users)
    }
    keys = [
        ApiKey(KeyId(f"{number:014}"), owner, bytes(32), 1)
        for number, owner in enumerate(rules)
        if isinstance(owner, Principal)
    ]
    return {
        STATE: write_state(Mode.CLOSED, 1),
        **changed_rows(Access(), Access(1, rules)),
        **dict(map(write_key, keys)),
    }


def _wrong_tokens(count: int) -> float:
    """All of them different, within one second."""
    idp = SigningIssuer()
    verified, known, body = VerifiedTokens(), idp.all, idp.token().rpartition(".")[0]
    tokens = [f"{body}.{number:0342}" for number in range(count)]

    def show() -> None:
        for token in tokens:
            try:
                verified.verify(token, known, NOW_MS)
            except HeadraceError:
                continue

    return _cpu_ms(show)


def _took_ms(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1e3


def _cpu_ms(act: Callable[[], object]) -> float:
    begun = time.process_time()
    act()
    return (time.process_time() - begun) * 1e3


def run(runs: int) -> list[Row]:
    """All of it."""
    return [*process(runs), *calls(runs), *starts(runs), *clusters(runs)]
