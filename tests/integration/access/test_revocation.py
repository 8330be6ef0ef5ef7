"""
Open streams end when what they were opened with is taken back: on every node, at once, and soon after a successor where
the active controller dies in that moment. ``REVOCATION_LONG`` opens 200 of each kind and holds them to 2 s.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
from libs.common.tests.kit.issuer import SigningIssuer, jwk, key_set

from headrace import AdminClient, access
from headrace._logging_in import log_in
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until
from headrace_common.core.access.issuers import Issuer
from headrace_common.core.access.scram import DEFAULT_MECHANISM
from headrace_common.core.errors import CredentialsRevoked, ErrorCode, HeadraceError, NotFound
from headrace_common.core.secret import Secret
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

pytestmark = pytest.mark.integration

LONG: Final = "REVOCATION_LONG" in os.environ
CALLERS: Final = 67 if LONG else 10
"""Each has a stream at each node."""
NODES: Final = ("broker-1", "broker-2", "coordinator-1")
USERS: Final = 33 if LONG else 2
"""Each shows a session and a login, at each node."""
PASSWORD: Final = "a quiet river bends"
ANOTHER: Final = "an old stone bridge"
DIES: Final = pytest.mark.parametrize("dies", [False, True] if LONG else [False])
CUT_S: Final = 2.0 if LONG else 20.0
"""Beside other tests it is only looked whether they are cut."""


@pytest.fixture(scope="module")
def idp() -> SigningIssuer:
    return SigningIssuer()


@pytest.fixture(scope="module")
def cluster(home: Path, idp: SigningIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    del home
    directory = tmp_path_factory.mktemp("revocation")
    keys, issuers = directory / "keys.json", directory / "issuers.json"
    keys.write_bytes(key_set(*map(jwk, idp.keys.values())))
    issuer: Issuer = idp.issuer
    issuers.write_text(
        json.dumps(
            [{"alias": issuer.alias, "iss": issuer.iss, "audiences": sorted(issuer.audiences), "jwks": keys.as_uri()}]
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CONTROLLER_OIDC_ISSUERS_FILE", str(issuers))
        with LocalCluster(directory / "data", brokers=2, controllers=2, closed=True) as made:
            yield made


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(cluster.bootstrap_servers) as made:
        yield made


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
async def streams(cluster: LocalCluster, bearers: dict[str, str]) -> AsyncIterator[Streams]:
    """One of each at each node."""
    async with AsyncExitStack() as stack:
        found = Streams({who: [] for who in bearers})
        for node in NODES:
            channel = await stack.enter_async_context(open_channel(cluster.process(node).grpc, own_connection=True))
            stub: Any = BrokerStub(channel) if node.startswith("broker") else CoordinatorStub(channel)
            open_stream = stub.Fetch if node.startswith("broker") else stub.Membership
            for who, bearer in bearers.items():
                call = open_stream(metadata=(("authorization", f"Bearer {bearer}"),))
                await call.initial_metadata()  # it was let in
                found.calls[who].append(call)
        yield found


def keys_of(admin: AdminClient, prefix: str) -> tuple[dict[str, str], list[str]]:
    made = {f"User:{prefix}{number}": admin.create_key(f"User:{prefix}{number}") for number in range(CALLERS)}
    return {who: one.key.reveal() for who, one in made.items()}, [one.description.id for one in made.values()]


def tokens_of(idp: SigningIssuer, prefix: str) -> dict[str, str]:
    now_ms = int(time.time() * 1_000)
    return {
        f"Oidc:{idp.issuer.alias}/{prefix}{number}": idp.token(now_ms=now_ms, sub=f"{prefix}{number}")
        for number in range(CALLERS)
    }


async def cut(cluster: LocalCluster, bearers: dict[str, str], what: str, revoke: Callable[[], None]) -> None:
    async with streams(cluster, bearers) as opened:
        over = asyncio.create_task(opened.end())
        await asyncio.to_thread(revoke)
        acknowledged = time.monotonic()
        ended, errors = await over
    late = ended - acknowledged
    print(f"{what}: {len(errors)} streams cut {late:.2f} s after it was acknowledged")
    assert {type(error) for error in errors} == {CredentialsRevoked}, {str(error) for error in errors}
    assert late <= CUT_S


@pytest.mark.parametrize("dies", [False, True], ids=["", "a controller dies"])
async def test_keys_that_are_deleted(cluster: LocalCluster, admin: AdminClient, dies: bool) -> None:
    bearers, ids = keys_of(admin, f"deleted-{dies}-")

    def revoke() -> None:
        if dies:
            active = admin.describe_cluster().controller_id
            cluster.kill(f"controller-{active}")
        assert wait_until(lambda: _deleted(admin, ids), 60)

    await cut(cluster, bearers, "keys deleted" + " while a controller died" * dies, revoke)


def _deleted(admin: AdminClient, ids: list[str]) -> bool:
    """Whatever became of the request: they are gone."""
    try:
        admin.delete_keys(ids)
    except HeadraceError:
        return not {key.id for key in admin.list_keys()} & {*ids}
    return True


async def test_owners_of_keys_and_tokens_that_are_blocked(
    cluster: LocalCluster, admin: AdminClient, idp: SigningIssuer
) -> None:
    keys, _ = keys_of(admin, "blocked-")
    for what, bearers in (("owners of keys", keys), ("owners of tokens", tokens_of(idp, "blocked-"))):
        await cut(
            cluster,
            bearers,
            f"{what} blocked",
            lambda bearers=bearers: admin.alter_access([access.Put(access.block(who)) for who in bearers]),
        )


# --- users with passwords ------------------------------------------------------------------------------------------


async def users_of(cluster: LocalCluster, admin: AdminClient, prefix: str) -> tuple[list[str], dict[str, str]]:
    """Users, and what they have got for their passwords: a session each, and a key."""
    users = [f"{prefix}{number}" for number in range(USERS)]
    for user in users:
        await asyncio.to_thread(admin.create_user, user, PASSWORD)
    at = cluster.process("broker-1").grpc
    sessions = [await log_in(at, Security(), user, Secret(PASSWORD), DEFAULT_MECHANISM) for user in users]
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
            cluster.kill(f"controller-{admin.describe_cluster().controller_id}")
        for user in users:
            until_done(lambda user=user: admin.change_password(user, ANOTHER))

    await cut(cluster, bearers, "passwords changed" + " while a controller died" * dies, revoke)


async def test_users_who_are_blocked(cluster: LocalCluster, admin: AdminClient) -> None:
    users, bearers = await users_of(cluster, admin, "stopped-")
    blocks = [access.Put(access.block(f"User:{user}")) for user in users]
    await cut(cluster, bearers, "users blocked", lambda: admin.alter_access(blocks))


@DIES
async def test_users_who_are_deleted(cluster: LocalCluster, admin: AdminClient, dies: bool) -> None:
    users, bearers = await users_of(cluster, admin, f"removed-{dies}-")

    def revoke() -> None:
        if dies:
            cluster.kill(f"controller-{admin.describe_cluster().controller_id}")
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
