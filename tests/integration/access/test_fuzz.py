"""
Somebody without a credential at every port of a closed cluster: random bytes, messages, JSON, tokens and headers, and
wrong ones as fast as they go. Nobody gets anything, no process dies or grows, and others are answered meanwhile.

At the end the secrets of all credentials that were used are searched for in what the cluster has written and says.
``FUZZ_SEED`` repeats a run; ``FUZZ_LONG`` lasts a minute.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from libs.common.tests.kit.issuer import SigningIssuer
from tests.integration.access.canaries import everything_said, plant
from tests.integration.access.issuing import trusting

from headrace import AdminClient, Producer
from headrace_admin.rpc.access_table import ACCESS as ADMIN
from headrace_broker.rpc.access_table import ACCESS as BROKER
from headrace_cli.local import LocalCluster
from headrace_common.core.access.api_keys import format_key
from headrace_common.core.errors import Denied, NetworkFailed, Overloaded, Rejected, RequestTimedOut, Unauthenticated
from headrace_common.rpc.access_rules import NOBODY
from headrace_common.rpc.channels import open_sync_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_controller.rpc.access_table import ACCESS as CONTROLLER
from headrace_coordinator.rpc.access_table import ACCESS as COORDINATOR

pytestmark = pytest.mark.integration

SEED: Final = int(os.environ.get("FUZZ_SEED", "21"))
SECONDS: Final = 60.0 if "FUZZ_LONG" in os.environ else 4.0
OPERATIONS: Final = {
    "broker-1": [*BROKER],
    "coordinator-1": [*COORDINATOR],
    "admin-1": [*ADMIN],
    "controller-1": [*CONTROLLER],
}
OF_ANYBODY: Final = {
    name for table in (BROKER, COORDINATOR, ADMIN, CONTROLLER) for name, rule in table.items() if rule is NOBODY
}
"""Those that nobody needs a credential for, as logging in: what is no message of theirs is said so."""
GROWS_BYTES_MAX: Final = 64 << 20
"""Of one process: what gRPC and RocksDB take in the first minutes of a cluster, and no more."""
ANSWERED_S_MAX: Final = 5.0
"""How long a writer waits at most meanwhile, on a machine where other tests run."""


@pytest.fixture(scope="module")
def idp() -> SigningIssuer:
    return SigningIssuer()


@pytest.fixture(scope="module")
def cluster(home: Path, idp: SigningIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    del home
    directory = tmp_path_factory.mktemp("fuzz")
    with trusting(idp, directory), LocalCluster(directory / "data", brokers=1, closed=True, restart=False) as made:
        yield made


def test_somebody_without_a_credential_gets_nothing_and_harms_nobody(
    cluster: LocalCluster, idp: SigningIssuer, tmp_path: Path
) -> None:
    print(f"FUZZ_SEED={SEED}")
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.create_topic("orders")
        secrets = plant(cluster, admin, idp)
    before = {one.name: (one.pid, memory(one.pid)) for one in cluster.processes if one.pid}
    with writing(cluster) as waits:
        attacks: list[Callable[[random.Random], None]] = [
            *(lambda rng, port=port: throw_bytes(port, rng) for port in ports(cluster)),
            *(lambda rng, at=at, names=OPERATIONS[node]: ask(at, names, rng) for node, at in grpc_addresses(cluster)),
            lambda rng: ask_rest(cluster.admin_url, rng),
        ]
        rng, until = random.Random(SEED), time.monotonic() + SECONDS
        while time.monotonic() < until:
            for attack in rng.sample(attacks, len(attacks)):
                attack(rng)
        with open_sync_channel(cluster.process("broker-1").grpc) as channel:
            send_wrong_keys(channel, rng)
    assert max(waits) < ANSWERED_S_MAX, f"a writer waited for {max(waits):.2f} s"
    after = {one.name: (one.pid, memory(one.pid)) for one in cluster.processes if one.pid}
    for name, (pid, bytes_before) in before.items():
        assert after[name][0] == pid, f"{name} has died"
        grown = after[name][1] - bytes_before
        print(f"{name} has grown by {grown >> 20} MiB; the longest wait of a writer was {max(waits):.3f} s")
        assert grown < GROWS_BYTES_MAX, f"{name} has grown by {grown >> 20} MiB"
    for where, text in everything_said(cluster, tmp_path):
        for what, secret in secrets.items():
            assert secret not in text, f"{what} stands in {where}"


def ports(cluster: LocalCluster) -> list[int]:
    """Of every process, for other nodes too."""
    found = [*cluster.state.ports.values()]
    assert len(found) >= 13
    return found


def grpc_addresses(cluster: LocalCluster) -> list[tuple[str, str]]:
    """Of every listener of services, with the name of the process."""
    internal = [(name, cluster.state.ports.get(f"{name}.internal")) for name in OPERATIONS]
    return [
        *((name, cluster.process(name).grpc) for name in OPERATIONS),
        *((name, f"127.0.0.1:{port}") for name, port in internal if port),
    ]


def memory(pid: int) -> int:
    """Bytes that are resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class writing:
    """A program with a key writes meanwhile; how long each record took."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self._waits: list[float] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> list[float]:
        self._thread.start()
        return self._waits

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert self._failure is None, self._failure

    def _run(self) -> None:
        try:
            with Producer(self._cluster.bootstrap_servers) as producer:
                while not self._over.is_set():
                    begun = time.monotonic()
                    producer.send("orders", b"x").result(30)
                    self._waits.append(time.monotonic() - begun)
                    time.sleep(0.005)
        except BaseException as error:  # noqa: BLE001 - told by the test
            self._failure = error


def throw_bytes(port: int, rng: random.Random) -> None:
    """Anything at all, or the beginning of HTTP/2, of HTTP/1, of TLS."""
    begun = rng.choice(
        [
            b"",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n",
            b"\x16\x03\x01\x02\x00",
        ]
    )
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(begun + rng.randbytes(rng.choice([0, 9, 300, 20_000])))
        connection.settimeout(0.02)
        connection.recv(1_000)


def credential(rng: random.Random) -> str:
    """No valid one."""
    parts = [urlsafe_b64encode(rng.choice(JSON)(rng)).decode().rstrip("=") for _ in range(3)]
    return rng.choice(
        [
            "",
            format_key(rng.randbytes(10), rng.randbytes(32)),
            f"hrk_{rng.randbytes(30).hex()}",
            ".".join(parts),
            "eyJ" + "A" * rng.choice([1, 8_000, 1 << 20]),
            f"eyJ{parts[0]}.{parts[1]}.",
        ]
    )


JSON: Final[list[Callable[[random.Random], bytes]]] = [
    lambda rng: rng.randbytes(rng.randrange(1, 200)),
    lambda rng: b'{"alg":"none","typ":"JWT"}',
    lambda rng: b'{"iss":"https://login.example.com","aud":"headrace","sub":"User:admin","exp":99999999999}',
    lambda rng: b"[" * rng.choice([1, 1_000]),
    lambda rng: b'{"a":1,"a":2}',
]


def ask(at: str, operations: list[str], rng: random.Random) -> None:
    """Random messages to some operation, shown something that is nobody's."""
    headers: list[tuple[str, str]] = [("authorization", f"Bearer {credential(rng)}")][: rng.randrange(2)]
    headers += [(f"x-{number}", "y" * rng.choice([1, 4_000])) for number in range(rng.choice([0, 0, 30]))]
    headers += [("headrace-node", "broker-1"), ("headrace-node-token", rng.randbytes(20).hex())][: rng.randrange(3)]
    with open_sync_channel(at, own_connection=True) as channel:
        operation = rng.choice(operations)
        call: Any = channel.stream_stream(f"/headrace.v1.{operation}")
        try:
            answer = next(call(iter([rng.randbytes(rng.randrange(64))]), timeout=10, metadata=headers), None)
        except grpc.RpcError as error:
            refused = error_from_rpc(error)
        else:
            raise AssertionError(f"it was answered {answer!r}")
    # Headers above the limit are answered by gRPC itself, as RESOURCE_EXHAUSTED or by the end of the connection.
    known = (Unauthenticated, Denied, NetworkFailed, Overloaded, RequestTimedOut)
    taken = (*known, Rejected) if operation in OF_ANYBODY else known
    assert isinstance(refused, taken), (operation, refused)


def ask_rest(url: str, rng: random.Random) -> None:
    """Some route, with a body of anything."""
    route = rng.choice(
        ["/v1/topics", "/v1/access/changes", "/v1/keys", "/v1/brokers/1/drain", "/docs", f"/{rng.random()}"]
    )
    body = rng.choice([None, rng.randbytes(500), b'{"a":' * 1_000, b'{"name":"x","name":"y"}'])
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {credential(rng)[:60_000]}"}
    request = urllib.request.Request(url + route, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            raise AssertionError(f"{route} was answered {answer.status}")
    except urllib.error.HTTPError as error:
        code = error.code
    except OSError:  # it hung up on what is too long
        return
    assert 400 <= code < 500, (route, code)


def send_wrong_keys(channel: grpc.Channel, rng: random.Random) -> None:
    """As fast as one connection takes them, for a second."""
    call: Any = channel.unary_unary("/headrace.v1.Broker/Metadata")
    until, sent = time.monotonic() + 1, 0
    while time.monotonic() < until:
        flight = [
            call.future(b"", timeout=10, metadata=(("authorization", f"Bearer {credential(rng)[:7_000]}"),))
            for _ in range(32)
        ]
        for one in flight:
            assert one.exception() is not None
        sent += len(flight)
    print(f"{sent} wrong credentials in a second")
