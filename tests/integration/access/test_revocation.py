"""
Open streams end when what they were opened with is taken back: on every node, at once, and soon after a successor where
the active controller dies in that moment. ``REVOCATION_LONG`` opens 200 of each kind and holds them to 2 s.

And they go on where it is changed for another in the way that is for that, under load; ``REVOCATION_LONG`` does this at
the pace of clients and controllers, for five minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import grpc.aio
import pytest
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.issuer import SigningIssuer, make_key
from tests.integration.access.issuing import publish, trusting, trusting_accounts
from tests.integration.access.programs import Program, Reader, Writer, check_each_once_in_order
from tests.integration.access.rotating import ProjectedToken, TokenFile, copying, renewing, watch_passwords
from typer.testing import CliRunner

from headrace import AdminClient, Consumer, _credentials, access
from headrace._logging_in import log_in
from headrace.securing import security_of, trust_in
from headrace_cli.app import app
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until
from headrace_common.core.access.issuers import Issuer, IssuerKind
from headrace_common.core.access.scram import DEFAULT_MECHANISM
from headrace_common.core.errors import (
    CredentialsExpired,
    CredentialsRevoked,
    ErrorCode,
    HeadraceError,
    NotFound,
    Unauthenticated,
)
from headrace_common.core.secret import Secret
from headrace_common.rpc.channels import Security, open_channel, open_sync_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.certificates import Leaf, write_private
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2, controller_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

pytestmark = pytest.mark.integration

T = TypeVar("T")

LONG: Final = "REVOCATION_LONG" in os.environ
CALLERS: Final = 67 if LONG else 10
"""Each has a stream at each node."""
NODES: Final = ("broker-1", "broker-2", "coordinator-1")
ROWS_MAX: Final = 100
"""Of access that are changed at one time."""
STREAMS_EACH: Final = 50
"""On one connection, where what is shown goes with the call."""
OF_EACH_KIND: Final = 12 if LONG else 5
"""Where all kinds are together; of certificates each is a connection to each node."""
USERS: Final = 33 if LONG else 2
"""Each shows a session and a login, at each node."""
PASSWORD: Final = "a quiet river bends"
ANOTHER: Final = "an old stone bridge"
DIES: Final = pytest.mark.parametrize("dies", [False, True] if LONG else [False])
CUT_S: Final = 2.0 if LONG else 20.0
"""Beside other tests it is only looked whether they are cut."""
FETCHES: Final = {
    f"headrace_controller.engine.issuers:FETCH_{name}_MS": seconds * 1_000
    for name, seconds in {"EVERY": 60 if LONG else 2, "AGAIN": 10 if LONG else 1, "WANTED": 30 if LONG else 1}.items()
}
"""How often controllers look for the keys of issuers."""
LIVES_S: Final = 60.0 if LONG else 12.0
"""A token."""
RENEWED_S: Final = 48.0 if LONG else 2.0
LOOK_MS: Final = 10_000.0 if LONG else 500.0
"""How often clients look at files while they have streams open."""
GRACE_S: Final = 120 if LONG else 15
SESSION_S: Final = 10.0 if LONG else 1.0
"""After which clients with a password log in again."""
AWAY: Final = "keys of an issuer cannot be read now"
BACK: Final = "keys of an issuer can be read again"
"""As controllers say it."""


@pytest.fixture(scope="module")
def idp() -> SigningIssuer:
    return SigningIssuer()


@pytest.fixture(scope="module")
def accounts() -> SigningIssuer:
    """Of pods."""
    audience = frozenset({"headrace:shop/headrace"})
    return SigningIssuer(Issuer("kubernetes", "https://kubernetes.local", audience, kind=IssuerKind.KUBERNETES))


@pytest.fixture(scope="module")
def clients() -> Authority:
    """Signs their certificates."""
    return Authority("clients")


@pytest.fixture(scope="module")
def cluster(
    home: Path,
    idp: SigningIssuer,
    accounts: SigningIssuer,
    clients: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalCluster]:
    del home
    directory = tmp_path_factory.mktemp("revocation")
    write_private(directory / "clients.crt", clients.ca.certificate_pem)
    with (
        pytest.MonkeyPatch.context() as patch,
        trusting(idp, directory),
        trusting_accounts(accounts, directory, FETCHES) as launcher,
    ):
        for role in ("BROKER", "COORDINATOR"):
            patch.setenv(f"HEADRACE_{role}_MTLS_LISTEN", "127.0.0.1:0")
            patch.setenv(f"HEADRACE_{role}_MTLS_CLIENT_CA", str(directory / "clients.crt"))
        launchers = dict.fromkeys(("controller-1", "controller-2"), launcher)
        with LocalCluster(
            directory / "data", brokers=2, controllers=2, tls=True, closed=True, launchers=launchers
        ) as made:
            yield made


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(cluster.address) as made:
        yield made


Shown: TypeAlias = "str | Pem"
"""A bearer; or a certificate, which is shown where clients have one."""


@dataclass
class Streams:
    """Open streams, by who has opened them."""

    calls: dict[str, list[Any]]

    async def end(self) -> tuple[float, list[HeadraceError]]:
        """When the last one has ended, as ``time.monotonic`` tells it, and why each has."""
        async with asyncio.timeout(60):
            errors = await asyncio.gather(*(_why(call) for some in self.calls.values() for call in some))
        return time.monotonic(), list(errors)


async def _why(call: Any) -> HeadraceError:
    try:
        assert await call.read() is not grpc.aio.EOF
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error)
    raise AssertionError("nobody has written")


@asynccontextmanager
async def streams(cluster: LocalCluster, shown: Mapping[str, Shown]) -> AsyncIterator[Streams]:
    """One of each at each node."""
    trusted, mtls = trust_of(cluster), await asyncio.to_thread(mtls_addresses, cluster)
    async with AsyncExitStack() as stack:
        found = Streams({who: [] for who in shown})
        for node in NODES:
            at, number = cluster.process(node).grpc, 0
            for who, one in shown.items():
                if isinstance(one, Pem):
                    opened = open_channel(mtls[node], Security(pem=one), own_connection=True)
                    channel, metadata = await stack.enter_async_context(opened), ()
                else:
                    if number % STREAMS_EACH == 0:
                        opened = open_channel(at, trusted, own_connection=True)
                        shared = await stack.enter_async_context(opened)
                    channel, metadata, number = shared, (("authorization", f"Bearer {one}"),), number + 1
                stub: Any = BrokerStub(channel) if node.startswith("broker") else CoordinatorStub(channel)
                call = (stub.Fetch if node.startswith("broker") else stub.Membership)(metadata=metadata)
                await call.initial_metadata()  # it was let in
                found.calls[who].append(call)
        yield found


def trust_of(cluster: LocalCluster) -> Security:
    return trust_in(Path(cluster.address.ca or ""))


def mtls_addresses(cluster: LocalCluster) -> dict[str, str]:
    """Where clients show certificates, by node."""
    with open_sync_channel(cluster.process("admin").grpc, security_of(cluster.address)) as channel:
        nodes = AdminStub(channel).DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=20).nodes
    names = {cluster_pb2.BROKER: "broker", cluster_pb2.COORDINATOR: "coordinator"}
    return {f"{names[one.role]}-{one.id}": f"{one.mtls.host}:{one.mtls.port}" for one in nodes if one.role in names}


def keys_of(admin: AdminClient, prefix: str, count: int = CALLERS) -> tuple[dict[str, str], list[str]]:
    made = {f"User:{prefix}{number}": admin.create_key(f"User:{prefix}{number}") for number in range(count)}
    return {who: one.key.reveal() for who, one in made.items()}, [one.description.id for one in made.values()]


def tokens_of(idp: SigningIssuer, prefix: str) -> dict[str, str]:
    now_ms = int(time.time() * 1_000)
    return {
        f"Oidc:{idp.issuer.alias}/{prefix}{number}": idp.token(now_ms=now_ms, sub=f"{prefix}{number}")
        for number in range(OF_EACH_KIND)
    }


def accounts_of(accounts: SigningIssuer, prefix: str) -> dict[str, str]:
    now_ms = int(time.time() * 1_000)
    subject = f"system:serviceaccount:shop:{prefix}"
    return {
        f"ServiceAccount:shop/{prefix}{number}": accounts.token(now_ms=now_ms, sub=f"{subject}{number}")
        for number in range(OF_EACH_KIND)
    }


def certificates_of(cluster: LocalCluster, clients: Authority, prefix: str) -> dict[str, Pem]:
    ca, found = Path(cluster.address.ca or "").read_bytes(), {}
    for number in range(OF_EACH_KIND):
        pair = clients.make(Leaf(f"{prefix}{number}"))
        found[f"Cert:{prefix}{number}"] = Pem(ca, pair.certificate_pem, pair.key_pem)
    return found


def delegated_of(cluster: LocalCluster, admin: AdminClient, prefix: str) -> tuple[dict[str, str], list[str]]:
    """Keys that a driver makes for its tasks, with its own and narrower than that."""
    own = admin.create_key(f"User:{prefix}driver").key
    scope = [access.grant(["READ"], "TOPIC", "orders")]
    with AdminClient(cluster.address, api_key=own) as driver:
        made = [driver.create_key(lifetime=timedelta(hours=1), scope=scope) for _ in range(OF_EACH_KIND)]
    shown = {f"User:{prefix}driver, task {number}": one.key.reveal() for number, one in enumerate(made)}
    return shown, [one.description.id for one in made]


async def cut(cluster: LocalCluster, shown: Mapping[str, Shown], what: str, revoke: Callable[[], object]) -> None:
    async with streams(cluster, shown) as opened:
        over = asyncio.create_task(opened.end())
        await asyncio.to_thread(revoke)
        acknowledged = time.monotonic()
        ended, errors = await over
    late = ended - acknowledged
    print(f"{what}: {len(errors)} streams cut {late:.2f} s after it was acknowledged")
    assert {type(error) for error in errors} == {CredentialsRevoked}, {str(error) for error in errors}
    assert late <= CUT_S


def kill_active(cluster: LocalCluster, admin: AdminClient) -> None:
    cluster.kill(f"controller-{admin.describe_cluster().controller_id}")


@pytest.mark.parametrize("dies", [False, True], ids=["", "a controller dies"])
async def test_keys_that_are_deleted(cluster: LocalCluster, admin: AdminClient, dies: bool) -> None:
    bearers, ids = keys_of(admin, f"deleted-{dies}-")
    delegated, more = await asyncio.to_thread(delegated_of, cluster, admin, f"deleted-{dies}-")

    def revoke() -> None:
        if dies:
            kill_active(cluster, admin)
        assert wait_until(lambda: _deleted(admin, ids + more), 60)

    await cut(cluster, bearers | delegated, "keys deleted" + " while a controller died" * dies, revoke)


def _deleted(admin: AdminClient, ids: list[str]) -> bool:
    """Whatever became of the requests before: they are gone."""
    try:
        left = sorted({key.id for key in admin.list_keys()}.intersection(ids))
        for some in batched(left):
            admin.delete_keys(some)
    except HeadraceError:
        return False
    return True


def batched(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many as are changed at one time."""
    for start in range(0, len(items), ROWS_MAX):
        yield items[start : start + ROWS_MAX]


@pytest.mark.parametrize("dies", [False, True], ids=["", "a controller dies"])
async def test_who_is_blocked_whatever_it_has_shown(
    cluster: LocalCluster,
    admin: AdminClient,
    idp: SigningIssuer,
    accounts: SigningIssuer,
    clients: Authority,
    dies: bool,
) -> None:
    prefix = f"blocked-{str(dies).lower()}-"
    keys, _ = keys_of(admin, prefix, OF_EACH_KIND)
    delegated, _ = await asyncio.to_thread(delegated_of, cluster, admin, prefix)
    tokens, of_pods = tokens_of(idp, prefix), accounts_of(accounts, prefix)
    certificates = certificates_of(cluster, clients, prefix)
    users, by_password = await users_of(cluster, admin, f"{prefix}u")
    who = {*keys, *tokens, *of_pods, *certificates, f"User:{prefix}driver", *(f"User:{user}" for user in users)}
    blocks = [access.Put(access.block(one)) for one in who]

    def revoke() -> None:
        if dies:
            kill_active(cluster, admin)
        for some in batched(blocks):
            until_done(lambda some=some: admin.alter_access(some))

    shown: dict[str, Shown] = {**keys, **delegated, **tokens, **of_pods, **certificates, **by_password}
    await cut(cluster, shown, "owners blocked" + " while a controller died" * dies, revoke)


# --- users with passwords ------------------------------------------------------------------------------------------


async def users_of(cluster: LocalCluster, admin: AdminClient, prefix: str) -> tuple[list[str], dict[str, str]]:
    """Users, and what they have got for their passwords: a session each, and a key."""
    users = [f"{prefix}{number}" for number in range(USERS)]
    for user in users:
        await asyncio.to_thread(admin.create_user, user, PASSWORD)
    at, trusted = cluster.process("broker-1").grpc, trust_of(cluster)
    sessions = [await log_in(at, trusted, user, Secret(PASSWORD), DEFAULT_MECHANISM) for user in users]
    logins = [await asyncio.to_thread(admin.log_in, user, PASSWORD) for user in users]
    shown = {f"{user} by session": one.token.reveal() for user, one in zip(users, sessions, strict=True)}
    return users, shown | {f"{user} by key": one.key.reveal() for user, one in zip(users, logins, strict=True)}


def until_done(call: Callable[[], object]) -> None:
    """Again while the controller that was to do it is gone."""

    def done() -> bool:
        try:
            call()
        except NotFound:
            return True  # an attempt that was not answered has deleted it
        except HeadraceError:
            return False
        return True

    assert wait_until(done, 60)


@DIES
async def test_users_whose_passwords_are_changed(cluster: LocalCluster, admin: AdminClient, dies: bool) -> None:
    users, bearers = await users_of(cluster, admin, f"changed-{dies}-")

    def revoke() -> None:
        if dies:
            kill_active(cluster, admin)
        for user in users:
            until_done(lambda user=user: admin.change_password(user, ANOTHER))

    await cut(cluster, bearers, "passwords changed" + " while a controller died" * dies, revoke)


@DIES
async def test_users_who_are_deleted(cluster: LocalCluster, admin: AdminClient, dies: bool) -> None:
    users, bearers = await users_of(cluster, admin, f"removed-{dies}-")

    def revoke() -> None:
        if dies:
            kill_active(cluster, admin)
        for user in users:
            until_done(lambda user=user: admin.delete_user(user, cascade=True))

    await cut(cluster, bearers, "users deleted" + " while a controller died" * dies, revoke)


async def test_a_rule_that_is_removed_counts_for_open_streams(cluster: LocalCluster, admin: AdminClient) -> None:
    """They go on, for the caller is who it was; their next requests are refused, at leaders and at others."""
    topic = admin.create_topic("ruled", partitions=1).topic_id
    _, bearers = await users_of(cluster, admin, "ruled-")
    rules = [access.allow(f"User:{who.split()[0]}", ["READ"], "TOPIC", "ruled") for who in bearers]
    admin.alter_access([access.Put(rule) for rule in dict.fromkeys(rules)])
    part = pb.FetchPartition(topic_id=topic, partition=0, fetch_offset=0, max_bytes=1 << 20)
    asked = pb.FetchRequest(min_bytes=0, max_bytes=1 << 20, partitions=[part])

    async def code(call: Any) -> int:
        await call.write(asked)
        [one] = (await call.read()).partitions
        return int(one.error)

    async def until_refused(call: Any, *, refused: bool) -> None:
        while (await code(call) == ErrorCode.TOPIC_AUTHORIZATION_FAILED) is not refused:
            await asyncio.sleep(0.01)

    async with streams(cluster, bearers) as opened, asyncio.timeout(60):
        calls = [call for some in opened.calls.values() for call in some[:2]]
        await asyncio.gather(*(until_refused(call, refused=False) for call in calls))
        await asyncio.to_thread(admin.alter_access, [access.Remove(rule) for rule in dict.fromkeys(rules)])
        acknowledged = time.monotonic()
        await asyncio.gather(*(until_refused(call, refused=True) for call in calls))
    late = time.monotonic() - acknowledged
    print(f"rules removed: {len(calls)} streams are refused {late:.2f} s after it was acknowledged")
    assert late <= CUT_S


# --- what is changed for another -----------------------------------------------------------------------------------

TOPIC: Final = "rotated"


def refused(cluster: LocalCluster, **shown: Any) -> type[HeadraceError] | None:
    """Whether who shows that is not let in."""
    try:
        with AdminClient(cluster.address, **shown) as client:
            client.who_am_i()
    except (CredentialsExpired, CredentialsRevoked, Unauthenticated) as error:
        return type(error)
    return None


def until(holds: Callable[[], bool], what: str) -> None:
    assert wait_until(holds, GRACE_S + 60.0), what


def test_credentials_are_changed_under_load(
    cluster: LocalCluster,
    admin: AdminClient,
    idp: SigningIssuer,
    accounts: SigningIssuer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod's token is renewed, a user gets another password, a provider signs with another key: nobody hears of it."""
    pod, nina = "ServiceAccount:shop/web", f"Oidc:{idp.issuer.alias}/nina"
    for topic in (TOPIC, "copied"):
        admin.create_topic(topic, partitions=3, replication_factor=2)
    admin.create_user("pat", PASSWORD)
    allowed = [
        *(access.bind(who, "producer", TOPIC) for who in (pod, nina, "User:pat")),
        access.bind(pod, "consumer", TOPIC),
        access.allow(pod, ["READ"], "GROUP", "shop"),
        access.bind(pod, "streams", f"{TOPIC}-plain"),
        access.bind(pod, "producer", "copied"),
    ]
    admin.alter_access([access.Put(one) for one in allowed])
    (tmp_path / "volume").mkdir()
    of_pod = ProjectedToken(tmp_path / "volume" / "token", accounts, "system:serviceaccount:shop:web", LIVES_S)
    of_nina = TokenFile(tmp_path / "token", idp, "nina", LIVES_S)
    passwords = Passwords(cluster, tmp_path, monkeypatch)
    monkeypatch.setattr(_credentials, "LOOK_MS", LOOK_MS)
    with (
        renewing([of_pod, of_nina], RENEWED_S) as renewals,
        Reader(cluster, "reader", TOPIC, token_file=str(of_pod.path)) as reader,
        copying(cluster, "plain", TOPIC, "copied", of_pod.path, tmp_path, LOOK_MS) as log,
        Consumer("copied", bootstrap_servers=cluster.address, auto_offset_reset="earliest") as copies,
    ):
        with ExitStack() as stack:
            writers = [
                stack.enter_context(Writer(cluster, name, TOPIC, token_file=str(file.path)))
                for name, file in (("pod", of_pod), ("nina", of_nina))
            ]
            writers.append(stack.enter_context(passwords.writer("first", PASSWORD)))
            copied: list[Any] = []
            assert wait_until(lambda: bool(copied.extend(copies.poll(1_000)) or copied), 120), log.read_text()
            at = renewals()
            for one in (*writers, reader):
                one.works()
            ends = passwords.change()
            more = passwords.writer("second", ANOTHER), passwords.writer("third", PASSWORD)
            writers += [stack.enter_context(one) for one in more]
            passwords.wait_for_renewals("first", "third")
            for one in writers:
                one.works()
            assert time.monotonic() < ends, "all of it was in the grace"
            passwords.put("first", "third")
            change_keys(cluster, idp, of_nina, [*writers, reader])
            until(lambda: time.monotonic() > ends, "the grace")
            until(lambda: refused(cluster, username="pat", password=PASSWORD) is Unauthenticated, "it counts no more")
            until(lambda: all(passwords.taken[who, ANOTHER] for who in ("first", "third")), "they log in anew")
            until(lambda: renewals() >= at + 3, "three renewals")
            until(lambda: refused(cluster, api_key=of_pod.tokens[at]) is CredentialsExpired, "it was of before them")
            for one in (*writers, reader):
                one.works()
        acknowledged = {value for one in writers for value in one.done}
        until(lambda: acknowledged <= {*reader.done}, "all is read")
        words = [json.loads(record.value)["word"].encode() for record in (*copied, *copies.read_to_end())]
        while not acknowledged <= {*words}:
            words += [json.loads(record.value)["word"].encode() for record in copies.poll(60_000)]
    assert [(one.name, one.errors) for one in (*writers, reader) if one.errors] == []
    with Consumer(TOPIC, bootstrap_servers=cluster.address, auto_offset_reset="earliest") as again:
        check_each_once_in_order([(record.partition, record.value) for record in again.read_to_end()], writers)
    check_each_once_in_order(reader.read, writers)
    assert len(words) == len({*words}), "nor is anything copied twice"
    print(f"{len(acknowledged)} records by {len(writers)} writers; {renewals()} renewals; passwords {passwords.taken}")


class Passwords:
    """Of one user, who has several programs with a file each."""

    def __init__(self, cluster: LocalCluster, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._cluster = cluster
        self._directory = directory
        self._patch = patch
        self.taken = watch_passwords(patch)
        """How often each program has logged in with each password."""
        patch.setattr(_credentials, "_RENEWED_AFTER", SESSION_S / 3_600)

    def writer(self, name: str, password: str) -> Writer:
        (self._directory / name).write_text(password)
        return Writer(self._cluster, name, TOPIC, username="pat", password_file=str(self._directory / name))

    def put(self, *names: str) -> None:
        """The other one, as a Secret is changed."""
        for name in names:
            partial = self._directory / f"{name}.partial"
            partial.write_text(ANOTHER)
            partial.replace(self._directory / name)

    def change(self) -> float:
        """By the command; until when the one of before counts, as ``time.monotonic`` tells it."""
        (self._directory / "new").write_text(ANOTHER)
        ends = time.monotonic() + GRACE_S
        words = ["user", "passwd", "pat", "--grace", str(GRACE_S), "--password-file", str(self._directory / "new")]
        at, trusted = self._cluster.bootstrap_servers[0], {"HEADRACE_CA": self._cluster.address.ca}
        done = CliRunner().invoke(app, [*words, "--bootstrap", at], env=trusted)
        assert done.exit_code == 0, done.output
        return ends

    def wait_for_renewals(self, *names: str) -> None:
        """With the password of before, twice; then for an hour, so that the grace ends while that session is in use."""
        for life in (SESSION_S / 3_600, 0.8):
            self._patch.setattr(_credentials, "_RENEWED_AFTER", life)
            before = self.taken.copy()
            until(lambda before=before: all(self.taken[n, PASSWORD] > before[n, PASSWORD] for n in names), "renewed")


def change_keys(cluster: LocalCluster, idp: SigningIssuer, file: TokenFile, clients: Sequence[Program]) -> None:
    """
    The provider signs with a key that nobody knows yet, and has the one of before for a while; it is away for a while;
    then it has the new one alone.
    """
    directory, old, new = cluster.directory.path.parent, idp.keys["RS256"], make_key("RS256", "2")
    now_ms = int(time.time() * 1_000)
    of_before = idp.token(now_ms=now_ms - 120_000, sub="nina", exp=now_ms / 1_000 + 3_600)
    logs = [cluster.directory.logs / f"controller-{number}.log" for number in (1, 2)]

    def said(text: str) -> int:
        return sum(log.read_text().count(text) for log in logs)

    def wait_for_work() -> None:
        tokens = len(file.tokens)
        until(lambda: len(file.tokens) > tokens, "another token")
        for one in clients:
            one.works()

    try:
        publish(directory, old, new)
        idp.keys["RS256"] = new
        wait_for_work()
        assert refused(cluster, api_key=of_before) is None
        away, back = said(AWAY), said(BACK)
        publish(directory)
        until(lambda: said(AWAY) > away, "it is away")
        wait_for_work()
        assert refused(cluster, api_key=of_before) is None
        publish(directory, new)
        until(lambda: said(BACK) > back, "it is back")
        until(lambda: refused(cluster, api_key=of_before) is not None, "its key is gone")
        wait_for_work()
    finally:
        idp.keys["RS256"] = old
        publish(directory, old, new)
