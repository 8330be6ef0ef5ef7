"""
Every operation at every gRPC port of a closed cluster with TLS, asked with every kind of credential and certificate:
who is not let in is told nothing, and nothing changes. And what every port speaks, of whatever kind it is.

As ``test_matrix``, where a cluster in plain text is asked by tokens of nodes.
"""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from libs.common.tests.kit.authority import Authority
from libs.common.tests.runtime.test_tls_contexts import OLD
from libs.streams.tests.test_queries import Running
from tests.integration.access.site import OF_BILLING, SERVED, Shown, Site, opened_site
from tests.integration.access.test_fuzz import throw_bytes
from tests.integration.access.test_matrix import PUBLIC, TABLES, asks_whatever_is_sent, bearer, for_nodes

from headrace import AdminClient, Producer, access, aio
from headrace.ticket_types import AccessQuestion, TicketAudience
from headrace_cli.local.certificate_files import EtcdFiles
from headrace_cli.local.plan import CERTIFICATES
from headrace_cli.tls_probe import probe
from headrace_common.core.access.api_keys import format_key
from headrace_common.core.access.resources import EVERY_NAME, Operation, OperationSet, ResourceType, operation_set
from headrace_common.core.access.roles import BUILT_IN_ROLES
from headrace_common.core.ciphers import CIPHERS
from headrace_common.core.errors import Denied, HeadraceError, NetworkFailed, NotFound, TlsFailed, Unauthenticated
from headrace_common.core.ids import Endpoint
from headrace_common.core.node_rules import WHO_MAY_CALL
from headrace_common.rpc.access_rules import NOBODY, Asks, AsksAny, AsksAnywhere, Rule, Wants
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.certificates import Leaf, make_pair, read_pair
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import streams_pb2
from headrace_proto.v1.streams_pb2_grpc import StreamsQueryStub
from headrace_streams.adapters.grpc_queries import open_queries
from headrace_streams.main import _let_in

pytestmark = pytest.mark.integration

LISTENERS: Final = ("client", "external")
"""Where clients show keys."""
NODES: Final = ("broker", "coordinator", "controller", "admin")
READS_ORDERS: Final = access.grant(["READ"], "TOPIC", "orders")


@pytest.fixture(scope="module")
def site(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    del home
    with opened_site(tmp_path_factory.mktemp("ports")) as opened:
        yield opened
        assert all(process.restarts == 0 for process in opened.cluster.processes)


@pytest.fixture(scope="module")
def keys(site: Site) -> dict[str, str]:
    """Of ``User:X`` who has the built-in role X, for names with ``x``; and some that are worth nothing, or little."""
    with AdminClient(site.cluster.address) as admin:
        roles = [name for name in BUILT_IN_ROLES if name not in ("streams", "connect")]
        admin.alter_access(
            [
                *(access.Put(access.bind(f"User:{name}", name, _prefix(name))) for name in roles),
                access.Put(access.block("User:blocked")),
            ]
        )
        revoked = admin.create_key("User:superuser")
        admin.delete_keys([revoked.description.id])
        made = {name: admin.create_key(f"User:{name}").key.reveal() for name in (*roles, "blocked", "nobody")}
        short = admin.create_key("User:superuser", lifetime=timedelta(seconds=1))
        scoped = admin.create_key("User:superuser", scope=[READS_ORDERS])
        made |= {"revoked": revoked.key.reveal(), "expired": short.key.reveal(), "scoped": scoped.key.reveal()}
    with site.connect("client", "broker") as broker:
        until = time.monotonic() + 20
        while not isinstance(broker.ask("Broker/Metadata", bearer(made["expired"])), Unauthenticated):
            assert time.monotonic() < until
    return made


def _prefix(role: str) -> str | None:
    return "x" if BUILT_IN_ROLES[role].operations else None


# --- keys ----------------------------------------------------------------------------------------------------------

WRONG: Final[dict[str, Shown]] = {
    "nothing": (),
    "a wrong key": bearer(format_key(bytes(10), bytes(32))),
    "another scheme": (("authorization", "Basic YWRtaW46YWRtaW4="),),
    "a node's name": (("headrace-node", "admin-1"),),
}


@pytest.mark.parametrize("listener", LISTENERS)
def test_who_shows_nothing_that_is_valid_is_told_so_by_every_operation(
    site: Site, keys: dict[str, str], listener: str
) -> None:
    before = seen(site)
    shown = WRONG | {name: bearer(keys[name]) for name in ("revoked", "blocked", "expired")}
    for role in SERVED:
        with site.connect(listener, role) as connection:
            for operation, (name, what) in product(TABLES[role], shown.items()):
                error = connection.ask(operation, what)
                wanted: Any = NotFound if operation in PUBLIC else Unauthenticated
                if name == "a node's name" and for_nodes(role, operation):
                    wanted = (Unauthenticated, Denied)
                assert isinstance(error, wanted), (operation, name, error)
    assert seen(site) == before


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_key_gets_what_its_role_gives(site: Site, keys: dict[str, str], listener: str) -> None:
    """And one of a super user no more than its scope; one whom no rule names nothing."""
    before, counted = seen(site), 0
    for role in SERVED:
        guarded = {one: rule for one, rule in TABLES[role].items() if asks_whatever_is_sent(rule)}
        with site.connect(listener, role) as connection:
            for name in keys.keys() - {"revoked", "blocked", "expired"}:
                for operation, rule in TABLES[role].items():
                    if for_nodes(role, operation):
                        may: bool | None = False
                    elif operation in guarded:
                        may = allowed(name, rule)
                    else:
                        continue
                    error = connection.ask(operation, bearer(keys[name]))
                    assert not isinstance(error, Unauthenticated), (operation, name, error)
                    assert isinstance(error, Denied) is not may, (operation, name, error)
                    counted += 1
    assert counted > 400
    assert seen(site) == before


IMPLIED_BY: Final = {
    Operation.DESCRIBE: operation_set(*(Operation[one] for one in ("READ", "WRITE", "DELETE", "ALTER"))),
    Operation.DESCRIBE_CONFIGS: operation_set(Operation.ALTER_CONFIGS),
}


def allowed(who: str, rule: Rule) -> bool:
    """What the design says: whether the role gives what is asked about any request, an empty one too."""
    if who == "superuser":
        return True
    gives: dict[ResourceType, int] = {}
    if who == "scoped":
        gives = {ResourceType.TOPIC: operation_set(Operation.READ)}
    elif who != "nobody":
        role = BUILT_IN_ROLES[who]
        gives = {type: int(some) for type, some in role.operations.items()}
        for grant in role.fixed:
            if grant.pattern == EVERY_NAME or isinstance(rule, AsksAnywhere):
                gives[grant.type] = gives.get(grant.type, 0) | grant.operations

    def has(one: Wants) -> bool:
        some = OperationSet(gives.get(one.type, 0))
        wanted = operation_set(one.operation) | IMPLIED_BY.get(one.operation, 0) | operation_set(Operation.ALL)
        return bool(some & wanted)

    match rule:
        case AsksAnywhere(operation, type):
            return has(Wants(operation, type))
        case Asks(wants):
            return all(map(has, wants(None)))
        case AsksAny(wants):
            return any(map(has, wants(None)))
    raise AssertionError(rule)


def seen(site: Site) -> list[object]:
    """What somebody could have changed."""
    with AdminClient(site.cluster.address) as admin:
        rules = admin.describe_access()
        return [
            sorted(topic.name for topic in admin.list_topics()),
            sorted(key.id for key in admin.list_keys()),
            sorted(group.group_id for group in admin.list_groups().groups),
            admin.list_users(),
            rules.rules,
            rules.bindings,
        ]


# --- certificates --------------------------------------------------------------------------------------------------


def test_who_shows_no_certificate_of_the_right_ca_is_cut_off_by_every_port_that_asks_for_one(site: Site) -> None:
    files, now = site.files, datetime.now(UTC)
    ca = read_pair(files.ca, files.key(files.ca))
    assert ca is not None
    over = make_pair(ca, Leaf("admin", uri="spiffe://headrace/admin"), now, timedelta(days=-0.5))
    expired = Pem(site.ca, over.certificate_pem, over.key_pem)
    foreign = site.shows(Leaf("admin", uri="spiffe://headrace/admin"), Authority())
    for listener, shows in (
        ("internal", (site.nobody, site.shows(OF_BILLING), foreign, expired)),
        ("mtls", (site.nobody, site.of_node("admin"), foreign, expired)),
    ):
        for role, pem in product(site.at[listener], shows):
            for operation in TABLES[role] if pem is site.nobody else list(TABLES[role])[:2]:
                with site.connect(listener, role, pem) as connection:
                    error = connection.ask(operation, (("headrace-node", "admin-1"),), tries=1)
                assert isinstance(error, NetworkFailed | TlsFailed), (listener, operation, error)


def test_a_certificate_of_a_client_gets_what_a_key_would(site: Site) -> None:
    named = site.shows(Leaf("nobody"))
    nameless = site.shows(Leaf("admin", uri="spiffe://headrace/admin"))
    as_node = (("headrace-node", "admin-1"),)
    for role in SERVED:
        with site.connect("mtls", role, named) as mine, site.connect("mtls", role, nameless) as nobodys:
            for operation, rule in TABLES[role].items():
                error = nobodys.ask(operation, as_node)
                if rule is not NOBODY:
                    wanted: Any = (Unauthenticated, Denied) if for_nodes(role, operation) else Unauthenticated
                    assert isinstance(error, wanted), (operation, error)
                if operation in PUBLIC:
                    assert isinstance(error, NotFound)
                if for_nodes(role, operation) or asks_whatever_is_sent(rule):
                    error = mine.ask(operation, as_node)
                    assert isinstance(error, Denied), (operation, error)


@pytest.mark.parametrize("node", NODES)
def test_a_node_asks_what_is_for_its_role_alone(site: Site, node: str) -> None:
    """With the certificate of its role, at every port for nodes; and it is nobody who says to be of another role."""
    pem = site.of_node(node)
    for role in site.at["internal"]:
        with site.connect("internal", role, pem) as connection:
            for operation in TABLES[role]:
                may = WHO_MAY_CALL[operation]
                if may is None:
                    continue
                roles = {one.value for one in may}
                error = connection.ask(operation, (("headrace-node", f"{node}-1"),))
                if node in roles:
                    assert not isinstance(error, NetworkFailed), (operation, error)
                    assert not isinstance(error, Denied) or "may not" in str(error) or "cannot speak for" in str(error)
                    continue
                assert is_refused(error), (operation, error)
                for other in roles:
                    error = connection.ask(operation, (("headrace-node", f"{other}-1"),))
                    assert is_refused(error), (operation, other, error)


def is_refused(error: HeadraceError | None) -> bool:
    """As a node of another role, or by the rights of nodes, who have none of their own."""
    return isinstance(error, Denied) and ("is for " in str(error) or "may not " in str(error))


def test_a_node_cannot_speak_for_another_of_its_role(site: Site) -> None:
    """Claims in messages have to be those of the call."""
    with site.connect("internal", "controller", site.of_node("broker")) as controller:
        for operation in ("Heartbeat", "UnregisterNode", "RegisterNode", "AlterPartitions"):
            error = controller.ask(f"Controller/{operation}", (("headrace-node", "broker-1"),))
            assert error is not None, operation
            assert not isinstance(error, NetworkFailed), (operation, error)


# --- workers of Streams ----------------------------------------------------------------------------------------------


async def test_a_worker_of_streams_takes_tickets_for_itself_alone(site: Site, keys: dict[str, str]) -> None:
    """Whatever credential is shown, as a bearer or in place of a ticket."""
    running = Running()
    running.commit(3)
    reads = [AccessQuestion("READ", "GROUP", "billing")]
    async with (
        aio.AdminClient(site.cluster.address) as admin,
        open_queries(running.queries, Endpoint("127.0.0.1", 0), None, _let_in("billing", admin, SystemClock())) as at,
        open_channel(str(at.endpoint)) as channel,
    ):

        async def ask(ticket: bytes, shown: Shown = ()) -> HeadraceError | None:
            stub: Any = StreamsQueryStub(channel)
            asked = (
                stub.DescribeStores(streams_pb2.DescribeStoresRequest(ticket=ticket), metadata=shown),
                stub.LocateKey(
                    streams_pb2.LocateKeyRequest(ticket=ticket, store="by-user", columns=["ann"]), metadata=shown
                ),
                anext(
                    aiter(
                        stub.QueryStore(streams_pb2.QueryStoreRequest(ticket=ticket, store="by-user"), metadata=shown)
                    ),
                    None,
                ),
            )
            found: list[HeadraceError | None] = []
            for one in asked:
                try:
                    await one
                    found.append(None)
                except grpc.aio.AioRpcError as error:
                    found.append(error_from_rpc(error))
            refused = [one for one in found if isinstance(one, Unauthenticated | Denied)]
            return next(iter(refused), None) if len(refused) > 1 else next((one for one in found if one is None), None)

        for name, shown in (WRONG | {name: bearer(key) for name, key in keys.items()}).items():
            for ticket in (b"", keys.get(name, name).encode()):
                assert isinstance(await ask(ticket, shown), Unauthenticated), name
        elsewhere = await admin.issue_ticket(TicketAudience("billing", "127.0.0.1:1", ""), reads)
        another = await admin.issue_ticket(TicketAudience("other", str(at), ""), reads)
        for made in (elsewhere, another):
            assert isinstance(await ask(made.text), Unauthenticated)
        assert running.reads == 0
        good = await admin.issue_ticket(TicketAudience("billing", str(at), "by-user"), reads)
        assert await ask(good.text) is None
        for name in ("nobody", "scoped", "viewer"):
            async with aio.AdminClient(site.cluster.address, api_key=keys[name]) as other:
                with pytest.raises(Denied):
                    await other.issue_ticket(TicketAudience("billing", str(at), ""), reads)


# --- what every port speaks ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_every_port_speaks_tls_of_today_and_shows_whose_it_is(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(Authority().ca.certificate_pem)
    asked: set[int] = set()
    for what, at, name, ca, pair in tls_ports(site):
        asked.add(at.port)
        found = probe(at, name, ca)
        assert not found.plain, what
        if what.startswith("etcd"):  # before 3.6 it speaks 1.2 alone, which cuts off at once who has no certificate
            assert (found.tls, found.demands) == (None, None) or found.demands, what
            check_agreed(what, at, name, ca, pair)
            continue
        assert (found.tls or "").startswith("TLSv1.3 TLS_"), (what, found)
        assert found.verified == "", (what, found)
        assert found.demands is (pair is not None), what
        assert probe(at, "another.headrace", ca).verified, f"{what} has any name"
        assert "unable to get local issuer" in (probe(at, name, other).verified or ""), what
        check_agreed(what, at, name, ca, pair)
    for what, at in plain_ports(site):
        asked.add(at.port)
        with socket.create_connection((at.host, at.port), timeout=10) as line:
            line.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1"), what
    listening = {Endpoint.parse(text).port for roles in site.at.values() for text in roles.values()}
    assert asked == listening | set(site.cluster.state.ports.values()), "each port of each process"


def test_rubbish_at_any_port_harms_nobody(site: Site) -> None:
    """In place of a handshake, and behind one. As ``test_fuzz``, where it is asked in plain text."""
    rng, before = random.Random(29), [process.pid for process in site.cluster.processes]
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    trusting.set_alpn_protocols(["h2"])
    for _, at, _, _, pair in tls_ports(site):
        for _ in range(10):
            throw_bytes(at.port, rng)
        if pair is not None:
            trusting.load_cert_chain(*pair)
        for begun in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n") * 3:
            with (
                suppress(OSError),
                socket.create_connection((at.host, at.port), timeout=2) as line,
                trusting.wrap_socket(line) as secure,
            ):
                secure.sendall(begun + rng.randbytes(rng.choice([0, 9, 300, 20_000])))
                secure.settimeout(0.02)
                secure.recv(1_000)
    assert [process.pid for process in site.cluster.processes] == before
    with Producer(site.address()) as producer:
        producer.send("orders", b"x").result(30)


def tls_ports(site: Site) -> Iterator[tuple[str, Endpoint, str, Path, tuple[Path, Path] | None]]:
    """What it is, where, the name that it has to show, under which CA, and the certificate that it asks for, if any."""
    nodes = site.files.ca
    of_client = site.address().certificate
    assert of_client is not None
    shown = {
        "internal": (site.files.of("broker"), site.files.key(site.files.of("broker"))),
        "mtls": (Path(of_client.cert), Path(of_client.key)),
    }
    for listener, roles in site.at.items():
        for role, at in roles.items():
            yield f"{listener} of {role}", Endpoint.parse(at), f"{role}.headrace", nodes, shown.get(listener)
    ports, etcd = site.cluster.state.ports, EtcdFiles(site.cluster.directory.path / CERTIFICATES)
    yield "REST", Endpoint("127.0.0.1", ports["admin-1.http"]), "admin.headrace", nodes, None
    for slot, pair in (("etcd-1", etcd.controller), ("etcd-1.peer", etcd.member)):
        yield slot, Endpoint("127.0.0.1", ports[slot]), "127.0.0.1", etcd.ca, (pair, etcd.key(pair))


def plain_ports(site: Site) -> Iterator[tuple[str, Endpoint]]:
    """They tell health and figures alone."""
    for process in site.cluster.processes:
        yield f"metrics of {process.name}", Endpoint.parse(process.metrics)


def check_agreed(what: str, at: Endpoint, name: str, ca: Path, pair: tuple[Path, Path] | None) -> None:
    """It agrees on each version and cipher that is of today, and on no other."""
    offered = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    offered.set_ciphers("ALL:@SECLEVEL=0")
    old = [one["name"] for one in offered.get_ciphers() if not one["name"].startswith("TLS_")]
    weak = ":".join(name for name in old if name not in CIPHERS)
    for version in OLD:
        assert agree(at, name, ca, pair, version, "ALL") is None, what
    assert agree(at, name, ca, pair, ssl.TLSVersion.TLSv1_2, weak) is None, what
    for cipher in (one for one in CIPHERS if "ECDSA" in one):
        assert agree(at, name, ca, pair, ssl.TLSVersion.TLSv1_2, cipher) == cipher, what


def agree(
    at: Endpoint, name: str, ca: Path, pair: tuple[Path, Path] | None, version: ssl.TLSVersion, ciphers: str
) -> str | None:
    """The cipher that both take; None: there is none."""
    context = ssl.create_default_context(cafile=ca)
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    if pair is not None:
        context.load_cert_chain(*pair)
    with ExitStack() as stack:
        line = stack.enter_context(socket.create_connection((at.host, at.port), timeout=10))
        try:
            secure = stack.enter_context(context.wrap_socket(line, server_hostname=name))
        except OSError:
            return None
        agreed = secure.cipher()
        return None if agreed is None else agreed[0]
