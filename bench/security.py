"""
What it costs to ask who calls, and to encrypt: a closed cluster and one with TLS beside an open one, in turns; and what
a process pays for decisions, rows and wrong tokens.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
from libs.common.tests.kit.issuer import NOW_MS, SigningIssuer

import headrace
from bench.headrace_side import HeadraceSide
from bench.rows import Row, compare, interleaved, percentile
from bench.sizes import sized
from headrace import access
from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.grants import Effect, Grant
from headrace_common.core.access.principal import Grantee, Principal, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType, literal, operation_set
from headrace_common.core.access.rows import STATE, Mode, Reader, View, changed_rows, write_key, write_state
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.access.tokens import VerifiedTokens
from headrace_common.core.errors import HeadraceError
from headrace_common.rpc.channels import Security, open_channel
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
    """How long after the answer of a change the broker decides by it: asked of it again and again."""
    late = []
    with headrace.AdminClient(side.bootstrap) as admin:
        topic = f"changes-{time.monotonic_ns()}"
        admin.create_topic(topic)
        key = admin.create_key("User:changing").key.reveal()
        with headrace.AdminClient(side.bootstrap, api_key=key) as theirs:
            for number in range(sized(40, 4)):
                rule = access.allow("User:changing", ["describe"], "topic", topic)
                admin.alter_access([access.Put(rule) if number % 2 == 0 else access.Remove(rule)])
                begun = time.monotonic()
                while bool(_sees(theirs, topic)) != (number % 2 == 0):
                    time.sleep(0.001)
                late.append((time.monotonic() - begun) * 1e3)
    late.sort()
    return [compare("a change of a rule counts, p99", "ms", [percentile(late, 0.99)], target="≤ 1,000")]


def _sees(admin: headrace.AdminClient, topic: str) -> bool:
    try:
        return bool(admin.describe_topic(topic))
    except HeadraceError:
        return False


async def _connect(side: HeadraceSide, clients: int) -> Row:
    """So many connections by TLS at one time, as after another broker's death, each with an answer."""
    ca = side.cluster.address.ca
    assert ca is not None, "it has TLS"
    security = Security(pem=Pem(ca=Path(ca).read_bytes()))
    async with asyncio.timeout(120):
        channels = [
            open_channel(side.cluster.bootstrap_servers[0], security, own_connection=True) for _ in range(clients)
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
        await asyncio.gather(*(channel.close() for channel in channels))
    return compare(f"{clients} clients connect by TLS, one process", "ms", [took * 1e3], target="≤ 2,000")


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
    rows.append(compare("a decision, cold, with its use", "µs", [ms * 1e3 / len(names) for ms in cold], target="≤ 5"))
    rows.append(compare("a decision, known, with its use", "µs", [ms * 1e3 / len(names) for ms in known], target="≤ 2"))
    rows.append(
        compare("what 1,000 rules show of 5,000 topics", "ms", [_cpu_ms(list_all) for _ in range(runs)], target="≤ 20")
    )
    written = _many(sized(10_000, 100))
    size = sum(len(key) + len(value) for key, value in written.items()) / 2**20
    rows.append(compare("10,000 users, 100,000 rules: rows", "MiB", [size], target="≤ 40"))
    read = [_cpu_ms(lambda: Reader().read(written, None)) for _ in range(runs)]
    rows.append(compare("the same: read at a start", "ms", read, target="≤ 1,000"))
    rows.append(
        compare("10,000 wrong tokens", "ms", [_wrong_tokens(sized(10_000, 50)) for _ in range(runs)], target="≤ 200")
    )
    return rows


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
    return [*process(runs), *starts(runs), *clusters(runs)]
