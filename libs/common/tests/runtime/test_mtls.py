"""Who is let in where clients show certificates of their own, over real connections, as whom, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.access import ALICE, allow
from libs.common.tests.kit.authority import BROKER, Authority
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.runtime.test_access_gate import (
    KEY_TEXT,
    OTHER_TEXT,
    TABLE,
    Servicer,
    Streams,
    World,
    bearer,
    key_of,
    node,
    serving,
)
from libs.common.tests.runtime.test_auditing import Written

from headrace_common.core.access.client_certificates import ClientCertificate, write_certificate
from headrace_common.core.access.control import Rights
from headrace_common.core.access.grants import scope_of
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.roles import SUPERUSER, Binding
from headrace_common.core.access.rows import CONFIGURED, Configured, Mode, write_configured
from headrace_common.core.audit.events import Method
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    CredentialsExpired,
    CredentialsRevoked,
    HeadraceError,
    InvalidConfig,
    NetworkFailed,
    TlsFailed,
    Unauthenticated,
)
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import NodeKey, Role
from headrace_common.core.node_rules import NO_CERTIFICATE
from headrace_common.rpc.channels import Certificates
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.node_gate import (
    FORWARDED_CERTIFICATE_KEY,
    FORWARDED_HOST_KEY,
    FORWARDED_KEY,
    NODE_KEY,
    KnownNodes,
    NodeGate,
    OnBehalf,
    node_security,
)
from headrace_common.runtime.access_gate import Access, current_certificate, current_shown, nobody_calls
from headrace_common.runtime.certificates import Leaf, Pair, write_private
from headrace_common.runtime.listeners import Guard, InternalListener, Listeners, MtlsListener
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.service import ServerConfig
from headrace_common.runtime.service_tls import ServiceTls, open_tls
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls_config import TlsConfig
from headrace_proto.v1 import broker_pb2_grpc

ANY = Endpoint("127.0.0.1", 0)
URI = "spiffe://example.org/billing"
BILLING = Principal(PrincipalType.CERT, URI)
OF_BILLING = Leaf("billing-7", uri=URI)
SEES = allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE)
ME = bearer(KEY_TEXT)


@dataclass
class Mtls(World):
    """A broker with a listener of each kind, and a CA of clients."""

    nodes_ca: Authority = None  # type: ignore[assignment]
    clients_ca: Authority = None  # type: ignore[assignment]
    tls: ServiceTls = None  # type: ignore[assignment]
    client_ca: Path = None  # type: ignore[assignment]
    ports: dict[str, str] | None = None
    shows_now: Pair | None = None

    def show(self, leaf: Leaf | None = OF_BILLING, by: Authority | None = None, at: str = "mtls") -> Pair | None:
        """From now on callers come to ``at`` with such a certificate; None: without."""
        assert self.ports is not None
        pair = self.shows_now = None if leaf is None else (by or self.clients_ca).make(leaf)
        ca = self.nodes_ca.ca.certificate_pem
        self.pem = Pem(ca) if pair is None else Pem(ca, pair.certificate_pem, pair.key_pem)
        self.address = self.ports[at]
        return pair

    def grant_to(self, who: Principal, *grants: Any) -> None:
        generation = self.rules.generation + 1
        self.rules = replace(self.rules, generation=generation, rules={**self.rules.rules, who: frozenset(grants)})
        self.told()

    async def refusal(self, operation: str, *metadata: tuple[str, str | bytes]) -> HeadraceError:
        error = await self.call(operation, *metadata)
        assert isinstance(error, HeadraceError)
        return error


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Mtls]:
    world = Mtls(nodes_ca=Authority("nodes"), clients_ca=Authority("clients"))
    files = world.nodes_ca.files(tmp_path / "tls")
    world.client_ca = tmp_path / "clients.crt"
    write_private(world.client_ca, world.clients_ca.ca.certificate_pem)
    world.clock = FakeClock(int(world.nodes_ca.now.timestamp() * 1_000))
    gate = NodeGate(image=lambda: world.image, trust_domain="headrace")
    world.access = Access(lambda: world.image, gate, world.clock)
    servicers = [(broker_pb2_grpc.add_BrokerServicer_to_server, Servicer(world))]
    async with AsyncExitStack() as stack:
        metrics = stack.enter_context(open_metrics("t", 1, None))
        tasks = await stack.enter_async_context(TaskRunner())
        config = TlsConfig(files.cert, files.key, files.ca)
        opened = open_tls(config, NodeKey(Role.BROKER, 1), world.clock, metrics.meter, tasks, world.client_ca)  # type: ignore[arg-type]
        tls = await stack.enter_async_context(opened)
        assert tls is not None
        world.tls = tls
        listeners = await stack.enter_async_context(
            Listeners.open(
                ServerConfig(listen=ANY, drain_ms_max=0),
                lambda _: servicers,
                mtls=MtlsListener(ANY, world.client_ca),
                internal=InternalListener(ANY),
                health_names=[],
                interceptors=[],
                guard=Guard(gate, tls, world.access, TABLE),
            )
        )
        at = [f"127.0.0.1:{port}" for port in listeners.ports]
        world.ports = dict(zip(("client", "mtls", "internal"), at, strict=True))
        assert listeners.mtls == Endpoint("127.0.0.1", listeners.ports[1], "broker.headrace")
        world.told()
        world.show()
        yield world


@pytest.fixture
async def streams(world: Mtls) -> AsyncIterator[Streams]:
    async with AsyncExitStack() as stack:
        yield Streams(world, stack)


@pytest.mark.parametrize(
    ("leaf", "who"), [(OF_BILLING, f"Cert:{URI}"), (Leaf("billing"), "Cert:billing"), (Leaf("Ä"), "Cert:Ä")]
)
async def test_who_shows_a_certificate_is_whom_it_names_and_gets_what_rules_allow(
    world: Mtls, leaf: Leaf, who: str
) -> None:
    world.show(leaf)
    assert await world.call("Metadata") is None
    assert world.seen == [("Metadata", who, None)]
    error = await world.refusal("ListOffsets")
    assert isinstance(error, ClusterAuthorizationFailed)
    assert who in str(error)
    world.grant_to(Principal(PrincipalType.CERT, who.removeprefix("Cert:")), SEES)
    assert await world.call("ListOffsets") is None


async def test_a_user_of_the_same_name_is_somebody_else(world: Mtls) -> None:
    world.grant_to(Principal(PrincipalType.USER, "billing"), SEES)
    world.show(Leaf("billing"))
    assert isinstance(await world.refusal("ListOffsets"), ClusterAuthorizationFailed)


async def test_who_shows_none_of_the_ca_of_clients_is_cut_off(world: Mtls) -> None:
    for leaf, by in ((None, None), (OF_BILLING, world.nodes_ca), (OF_BILLING, Authority()), (BROKER, world.nodes_ca)):
        world.show(leaf, by)
        assert isinstance(await world.refusal("Metadata", ME), NetworkFailed | TlsFailed)
    assert not world.seen


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        (replace(BROKER, name="b"), "of a node of the cluster"),
        (Leaf("b", uri="spiffe://headrace/controller/2"), "of a node of the cluster"),
        (Leaf("spiffe://headrace/admin"), "of a node of the cluster"),
        (Leaf("billing "), "ends with a space"),
        (Leaf("*"), "common name that names nobody"),
        (Leaf("a\nb"), "not printable"),
        (Leaf("e\u0301"), "NFC"),
    ],
)
async def test_a_certificate_that_names_nobody_is_nobody(world: Mtls, leaf: Leaf, says: str) -> None:
    world.show(leaf)
    error = await world.refusal("Metadata")
    assert isinstance(error, Unauthenticated)
    assert says in str(error)
    assert not world.seen
    for mode in (Mode.PERMISSIVE, Mode.OPEN):
        world.mode = mode
        world.told()
        assert await world.call("Metadata") is None
        assert world.seen[-1][1] == str(ANONYMOUS)


async def test_it_makes_nobody_a_node_anywhere(world: Mtls) -> None:
    as_node = (NODE_KEY, "broker-1")
    for leaf in (OF_BILLING, BROKER):
        world.show(leaf, at="internal")
        assert isinstance(await world.refusal("DescribeLogs", as_node), NetworkFailed | TlsFailed)
    world.show()
    for operation in ("DescribeLogs", "WriteTxnMarkers"):
        error = await world.refusal(operation, as_node, (FORWARDED_KEY, KEY_TEXT.encode()))
        assert isinstance(error, ClusterAuthorizationFailed)
    assert NO_CERTIFICATE in str(await world.refusal("DescribeLogs", as_node))
    world.show(BROKER)  # of the CA of clients, and yet it says that it is a broker's
    for operation in ("Metadata", "ListOffsets"):
        assert isinstance(await world.refusal(operation, as_node), Unauthenticated)
    assert not world.seen


async def test_where_clients_show_keys_nobody_is_asked_for_a_certificate(world: Mtls) -> None:
    world.show(at="client")
    assert isinstance(await world.refusal("Metadata"), Unauthenticated)
    assert await world.call("Metadata", ME) is None
    assert world.seen == [("Metadata", str(ALICE), KEY_TEXT)]


async def test_a_bearer_beside_it_has_to_be_its_owners_and_narrows(world: Mtls) -> None:
    world.show(at="client")
    assert await world.call("Metadata", ME) is None
    world.seen.clear()
    world.show()
    error = await world.refusal("Metadata", ME)
    assert isinstance(error, Unauthenticated), "though it is known where keys are shown"
    assert f"certificate is of {BILLING}, and the credential beside it of {ALICE}" in str(error)
    for wrong in (bearer(OTHER_TEXT), bearer("rubbish"), ("authorization", "Basic YTpi")):
        assert isinstance(await world.refusal("Metadata", wrong), Unauthenticated)
    assert not world.seen
    topic = allow(ResourceType.TOPIC, literal("t"), Operation.WRITE)
    world.keys = [key_of(OTHER_TEXT, owner=BILLING, scope=scope_of([topic]))]
    world.grant_to(BILLING, SEES)
    assert await world.call("ListOffsets") is None
    assert isinstance(await world.refusal("ListOffsets", bearer(OTHER_TEXT)), ClusterAuthorizationFailed)
    assert await world.call("Metadata", bearer(OTHER_TEXT)) is None
    assert world.seen[-1] == ("Metadata", str(BILLING), OTHER_TEXT)


def certificate(**fields: Any) -> ClientCertificate:
    return ClientCertificate(**{"owner": BILLING, "fault": "", "expires_ms": 10**15, "fingerprint": "ab", **fields})


async def test_it_is_vouched_for_and_so_changes_nobodys_rights_whoever_it_is(world: Mtls) -> None:
    world.rules = replace(world.rules, generation=2, bindings={BILLING: frozenset({Binding(BILLING, SUPERUSER)})})
    world.told()

    def rights(bearer: str | None = None) -> Rights:
        return world.access.rights(world.access.authenticate(bearer, "10.0.0.1", certificate()))

    assert rights().allows(Operation.DELETE, ResourceType.TOPIC, "a")
    beyond = [
        *((one, ResourceType.PRINCIPAL, str(ALICE)) for one in (Operation.ALTER, Operation.DESCRIBE)),
        (Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME),
    ]
    for asked in beyond:
        assert not rights().allows(*asked)
        assert "a certificate alone" in str(rights().refusal(*asked))
    assert isinstance(await world.refusal("WriteTxnMarkers"), ClusterAuthorizationFailed)
    world.keys.append(key_of(OTHER_TEXT, owner=BILLING))
    world.told()
    assert rights(OTHER_TEXT).allows(*beyond[0]), "its own key is proof for everybody"
    rows = {**world.image.access, CONFIGURED: write_configured(Configured(vouched_full=True))}
    world.image = replace(world.image, access=rows)
    assert all(rights().allows(*asked) for asked in beyond)


async def test_streams_end_when_the_owner_is_blocked(world: Mtls, streams: Streams) -> None:
    stream = await streams.open()
    world.show(Leaf("another"))
    other = await streams.open()
    world.rules = replace(world.rules, generation=2, blocked=frozenset({BILLING}))
    world.told()
    assert isinstance(await streams.ends(stream), CredentialsRevoked)
    await streams.goes_on(other)
    world.show()
    assert isinstance(await world.refusal("Metadata"), CredentialsRevoked)


async def test_streams_end_when_it_is_over(world: Mtls, streams: Streams) -> None:
    """The gate's clock is ahead: for TLS the certificate is good for another day."""
    pair = world.show()
    assert pair is not None
    ends_ms = pair.certificate.not_valid_after_utc.timestamp() * 1_000
    await world.clock.advance(ends_ms - world.clock.now_ms() - 50)
    stream = await streams.open()
    await world.clock.advance(50)
    assert isinstance(await streams.ends(stream), CredentialsExpired)
    error = await world.refusal("Metadata")
    assert isinstance(error, CredentialsExpired)
    assert f"certificate of {BILLING} was good until" in str(error)


async def test_who_is_known_is_not_looked_at_again_until_it_is_over(world: Mtls) -> None:
    now_ms = world.clock.now_ms()
    first, second = (certificate(expires_ms=now_ms + ms) for ms in (50, 60))
    shown = world.access.authenticate(None, "10.0.0.1", first)
    assert world.access.authenticate(None, "10.0.0.1", certificate(expires_ms=now_ms + 50)) is shown
    assert world.access.authenticate(None, "10.0.0.1", second) is not shown
    await world.clock.advance(50)
    with pytest.raises(CredentialsExpired):
        world.access.authenticate(None, "10.0.0.1", first)


async def test_a_stream_with_a_key_too_ends_with_whichever_is_over_first(world: Mtls, streams: Streams) -> None:
    now_ms = world.clock.now_ms()
    long, short = (key_of(OTHER_TEXT, owner=BILLING, expires_ms=now_ms + ms) for ms in (10**12, 50))
    both = [
        world.access.authenticate(OTHER_TEXT, "10.0.0.1", certificate(expires_ms=now_ms + 60))
        for world.keys in ([long], [short])
        if world.told() is None  # type: ignore[func-returns-value]
    ]
    assert [shown.expires_ms for shown in both] == [now_ms + 60, now_ms + 50]
    stream = await streams.open(bearer(OTHER_TEXT))
    await world.clock.advance(50)
    assert isinstance(await streams.ends(stream), CredentialsExpired)


async def test_who_shows_one_of_a_ca_that_is_taken_away_is_cut_off_and_of_a_new_one_let_in(
    world: Mtls, streams: Streams
) -> None:
    of_clients, second = world.tls.of_clients, Authority("second")
    assert of_clients is not None
    stream = await streams.open()
    both = world.clients_ca.ca.certificate_pem + second.ca.certificate_pem
    write_private(world.client_ca, both)
    await of_clients.look()
    await streams.goes_on(stream)
    for by in (world.clients_ca, second):
        world.show(by=by)
        assert await world.call("Metadata") is None
    write_private(world.client_ca, second.ca.certificate_pem)
    await of_clients.look()
    assert isinstance(await streams.ends(stream), NetworkFailed)
    world.show(by=second)
    assert await world.call("Metadata") is None
    world.show()
    assert isinstance(await world.refusal("Metadata"), NetworkFailed | TlsFailed)


async def test_a_file_of_cas_that_is_wrong_changes_nothing_and_stops_no_certificate_of_the_node(world: Mtls) -> None:
    of_clients, before = world.tls.of_clients, world.tls.live.bundle
    assert of_clients is not None
    trusted = of_clients.bundle
    for wrong in (b"rubbish", world.nodes_ca.ca.certificate_pem, world.clients_ca.make().certificate_pem):
        write_private(world.client_ca, wrong)
        await of_clients.look()
        assert of_clients.bundle is trusted
    files = TlsConfig(*(world.client_ca.parent / "tls" / name for name in ("tls.crt", "tls.key", "ca.crt")))
    pair = world.nodes_ca.make()
    assert files.cert is not None
    assert files.key is not None
    write_private(files.key, pair.key_pem)
    write_private(files.cert, pair.certificate_pem)
    await world.tls.live.look()
    assert world.tls.live.bundle is not before
    assert await world.call("Metadata") is None


# --- what an admin node forwards ------------------------------------------------------------------------------


async def test_an_admin_node_forwards_whose_certificate_it_was_and_nobody_else_does() -> None:
    async with serving(World()) as world:
        vouched = (FORWARDED_CERTIFICATE_KEY, write_certificate(certificate()))
        asked_for = ((FORWARDED_KEY, b""), vouched, (FORWARDED_HOST_KEY, "10.0.0.7"))
        assert await world.call("Metadata", *node(Role.ADMIN), *asked_for) is None
        assert world.seen == [("Metadata", str(BILLING), None)]
        assert isinstance(await world.call("ListOffsets", *node(Role.ADMIN), *asked_for), ClusterAuthorizationFailed)
        assert await world.call("Metadata", *node(Role.BROKER), *asked_for) is None
        assert world.seen[-1][1] == "Node:broker-1"
        assert isinstance(await world.call("Metadata", *asked_for), Unauthenticated)
        assert isinstance(await world.call("Metadata", ME, *asked_for), type(None))
        assert world.seen[-1][1] == str(ALICE)


@pytest.mark.parametrize(
    "forged",
    [
        write_certificate(certificate(owner=ALICE)),
        write_certificate(certificate(owner=Principal(PrincipalType.NODE, "controller-1"))),
        write_certificate(certificate(expires_ms=1)),
        write_certificate(certificate(expires_ms="never")),
        write_certificate(certificate(fingerprint="a" * 65)),
        b"[]",
        b"\xff",
        b"",
    ],
)
async def test_what_no_certificate_says_is_believed_of_no_admin_node(forged: bytes) -> None:
    async with serving(World()) as world:
        error = await world.call(
            "Metadata", *node(Role.ADMIN), (FORWARDED_KEY, b""), (FORWARDED_CERTIFICATE_KEY, forged)
        )
        assert isinstance(error, Unauthenticated)
        assert not world.seen


async def test_a_blocked_owner_is_refused_behind_an_admin_node_too() -> None:
    async with serving(World()) as world:
        world.rules = replace(world.rules, generation=2, blocked=frozenset({BILLING}))
        world.told()
        asked_for = ((FORWARDED_KEY, b""), (FORWARDED_CERTIFICATE_KEY, write_certificate(certificate())))
        assert isinstance(await world.call("Metadata", *node(Role.ADMIN), *asked_for), CredentialsRevoked)


def test_a_node_says_whose_certificate_it_is_where_it_would_pass_on_a_credential() -> None:
    at = Endpoint("10.0.0.1", 1)
    known = KnownNodes(lambda: World().image, lambda: [at])
    ca = Authority()
    pem = Pem(ca.ca.certificate_pem)
    bearers: list[str | None] = [None]
    behalf = OnBehalf(lambda: bearers[-1], lambda: b"whose")

    def metadata(role: Role, target: str) -> dict[str, Any]:
        security = node_security(
            NodeKey(role, 1),  # type: ignore[arg-type]
            None,
            known,
            Certificates(pem),
            behalf,
            closed=lambda: True,
        )
        assert security.metadata is not None
        return dict(security.metadata(target))

    said = metadata(Role.ADMIN, str(at))
    assert (said[FORWARDED_KEY], said[FORWARDED_CERTIFICATE_KEY]) == (b"", b"whose")
    assert FORWARDED_CERTIFICATE_KEY not in metadata(Role.BROKER, str(at))
    with pytest.raises(ClusterAuthorizationFailed, match="not passed on"):
        metadata(Role.ADMIN, "10.0.0.1:2")
    bearers.append("hrk_x")
    said = metadata(Role.ADMIN, str(at))
    assert said[FORWARDED_KEY] == b"hrk_x"
    assert FORWARDED_CERTIFICATE_KEY not in said, "its own key proves who it is"


async def test_what_a_handler_asks_of_other_nodes_is_asked_for_its_caller(world: Mtls) -> None:
    shown = world.access.authenticate(None, "10.0.0.1", certificate())
    assert current_certificate() is None
    with world.access.serving(shown):
        assert current_shown().certificate == certificate()
        assert current_certificate() == write_certificate(certificate())
        assert not nobody_calls()


# --- audit, settings ------------------------------------------------------------------------------------------


async def test_the_audit_tells_by_which_certificate_and_of_those_that_name_nobody(world: Mtls) -> None:
    audit = Written(world)
    world.access.auditing.audit = audit
    pair = world.show()
    assert pair is not None
    from cryptography.hazmat.primitives import hashes

    fingerprint = pair.certificate.fingerprint(hashes.SHA256()).hex()
    await world.call("Metadata")
    (begun,) = audit.told
    assert (begun.kind, begun.actor.principal) == (Kind.SESSION_BEGUN, str(BILLING))
    assert (begun.actor.method, begun.actor.credential) == (Method.CERTIFICATE, fingerprint)
    audit.told.clear()
    pair = world.show(BROKER)
    assert pair is not None
    await world.call("Metadata")
    (failed,) = audit.told
    assert (failed.kind, failed.actor.principal) == (Kind.AUTHENTICATION_FAILED, str(ANONYMOUS))
    assert failed.actor.method is Method.CERTIFICATE
    assert failed.actor.credential == pair.certificate.fingerprint(hashes.SHA256()).hex()


@pytest.mark.parametrize("half", [{"mtls_listen": ANY}, {"mtls_client_ca": Path("ca.crt")}])
def test_settings_are_whole(half: Any) -> None:
    with pytest.raises(InvalidConfig, match="mtls_listen and mtls_client_ca are set together"):
        MtlsListener(**half)


def test_it_needs_tls() -> None:
    sound, says = MtlsListener(ANY, Path("ca.crt")).check_beside(ServerConfig(listen=ANY))
    assert not sound
    assert "needs tls_cert" in says
    assert MtlsListener().check_beside(ServerConfig(listen=ANY))[0]
