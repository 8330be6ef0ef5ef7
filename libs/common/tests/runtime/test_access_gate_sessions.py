"""Sessions of users with passwords, and their logins, at the gate of a service: to what, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from libs.common.tests.kit.access import ALICE, allow
from libs.common.tests.kit.passwords import make_user, verifiers
from libs.common.tests.runtime.test_access_gate import OTHER_TEXT, Streams, World, bearer, key_of, node, serving

from headrace_common.core.access import sessions, signatures
from headrace_common.core.access.key_sets import sign_compact
from headrace_common.core.access.principal import ANONYMOUS
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.roles import SUPERUSER, Binding
from headrace_common.core.access.rows import CONFIGURED, Configured, Mode, write_configured
from headrace_common.core.access.sessions import (
    LIFETIME_MS,
    SESSION_PREFIX,
    YOUNG_MS,
    Session,
    session_claims,
    session_header,
    signers_of,
)
from headrace_common.core.access.users import User, make_password
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    CredentialsExpired,
    CredentialsRevoked,
    HeadraceError,
    MetadataUnavailable,
    Overloaded,
    Unauthenticated,
)
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.rpc.node_gate import FORWARDED_KEY
from headrace_common.runtime.session_key import SessionKey, make_session_key

BROKER = NodeKey(Role.BROKER, NodeId(1))
KEY = make_session_key()
NEW_PASSWORD = "2" * 16


def registered(key: SessionKey | None = KEY, who: NodeKey = BROKER) -> dict[NodeKey, Node]:
    """A node that signs, or does not."""
    public = b"" if key is None else key.public
    return {who: Node(who, Endpoint("h", 1), bytes(16), 7, session_key=public)}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(users=[make_user()], nodes=registered())
    async with serving(world):
        yield world


@pytest.fixture
async def streams(world: World) -> AsyncIterator[Streams]:
    async with AsyncExitStack() as stack:
        yield Streams(world, stack)


def claims_of(world: World, user: User | None = None, **other: Any) -> dict[str, Any]:
    found = user or world.users[0]
    now_ms = world.clock.now_ms()
    old = {"iat": int(now_ms) // 1_000 - 60}
    return {**session_claims(world.image.cluster_id, found, found.password.id, now_ms), **old, **other}


def session(world: World, key: SessionKey = KEY, who: NodeKey = BROKER, **claims: Any) -> str:
    """What a login with the newest password would have given now."""
    return key.sign_session(session_header(who, 7), claims_of(world, **claims))


def change_password(world: World, *, grace_ms: int = 0) -> None:
    user, now_ms = world.users[0], round(world.clock.now_ms())
    password = make_password(NEW_PASSWORD, now_ms, verifiers("another good one"))
    old = (user.password, now_ms + grace_ms) if grace_ms else (None, 0)
    world.users[0] = replace(user, password=password, old=old[0], old_until_ms=old[1])
    world.told()


async def refusal(world: World, shown: str, operation: str = "Metadata") -> HeadraceError:
    error = await world.call(operation, bearer(shown))
    assert isinstance(error, HeadraceError)
    assert shown not in str(error)
    return error


async def test_who_has_a_session_of_any_node_is_known_and_gets_what_rules_allow(world: World) -> None:
    shown = session(world)
    assert await world.call("Metadata", bearer(shown)) is None
    assert world.seen == [("Metadata", str(ALICE), shown)]
    assert isinstance(await refusal(world, shown, "ListOffsets"), ClusterAuthorizationFailed)
    world.grant(allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE))
    assert await world.call("ListOffsets", bearer(shown)) is None
    forwarded = (FORWARDED_KEY, shown.encode())
    assert await world.call("Metadata", *node(Role.ADMIN), forwarded) is None
    assert world.seen[-1][1] == str(ALICE)


async def test_what_no_node_of_this_cluster_has_signed_reaches_no_handler(world: World) -> None:
    stranger, good = make_session_key(), session(world)
    body, signature = good.rsplit(".", 1)
    of_another = {"aud": "another"}
    forged = [
        session(world, stranger),
        session(world, who=NodeKey(Role.BROKER, NodeId(2))),
        f"{body}.{'A' * len(signature)}",
        SESSION_PREFIX + good.removeprefix(SESSION_PREFIX).replace("eyJ", "eyK", 1),
        session(world, **of_another),
        SESSION_PREFIX + sign_compact(KEY._private, {"alg": "Ed25519", "typ": "JWT", "kid": "broker-1/7"}, b"{}"),
        SESSION_PREFIX + sign_compact(KEY._private, session_header(BROKER, 7), b'{"aud":""}'),
        session(world, sub=5),
        SESSION_PREFIX,
        SESSION_PREFIX + "a" * 9_000,
    ]
    for shown in forged:
        assert isinstance(await world.call("Metadata", bearer(shown)), Unauthenticated), shown
    assert not world.seen
    world.mode = Mode.PERMISSIVE
    world.told()
    assert await world.call("Metadata", bearer(forged[0])) is None
    assert world.seen[-1][1] == str(ANONYMOUS)


async def test_a_session_is_no_token_of_an_issuer_and_the_other_way_round(world: World) -> None:
    await refusal(world, session(world).removeprefix(SESSION_PREFIX))


async def test_coordinators_and_controllers_sign_none(world: World) -> None:
    for role in (Role.COORDINATOR, Role.CONTROLLER):
        who = NodeKey(role, NodeId(1))
        world.nodes = registered(who=who)
        world.told()
        assert isinstance(await refusal(world, session(world, who=who)), CredentialsRevoked)


async def test_a_session_ends_with_its_hour(world: World, streams: Streams) -> None:
    shown = session(world)
    stream = await streams.open(bearer(shown))
    await world.clock.advance(LIFETIME_MS - 1_000)
    await streams.goes_on(stream)
    await world.clock.advance(1_000)
    assert isinstance(await refusal(world, shown), CredentialsExpired)


async def test_it_ends_when_its_node_starts_anew_or_leaves(world: World, streams: Streams) -> None:
    for nodes in (registered(make_session_key()), registered(None), {}):
        world.nodes = registered()
        world.told()
        shown = session(world)
        stream = await streams.open(bearer(shown))
        world.nodes = {key: replace(one, epoch=8) for key, one in world.nodes.items()}
        world.told()
        await streams.goes_on(stream)  # the same process has registered again
        world.nodes = nodes
        world.told()
        assert isinstance(await streams.ends(stream), CredentialsRevoked)
        assert isinstance(await refusal(world, shown), CredentialsRevoked)


async def test_it_ends_with_its_user_and_one_of_the_same_name_does_not_revive_it(
    world: World, streams: Streams
) -> None:
    shown, other = session(world), bearer(OTHER_TEXT)
    world.keys.append(key_of(OTHER_TEXT))
    world.told()
    stream, by_key = await streams.open(bearer(shown)), await streams.open(other)
    world.users.clear()
    world.told()
    assert isinstance(await streams.ends(stream), CredentialsRevoked)
    world.users.append(make_user(user_id="b" * 16))
    world.told()
    assert isinstance(await refusal(world, shown), CredentialsRevoked)
    await streams.goes_on(by_key)


async def test_it_ends_when_its_user_is_blocked(world: World, streams: Streams) -> None:
    shown = session(world)
    stream = await streams.open(bearer(shown))
    world.rules = replace(world.rules, generation=2, blocked=frozenset({ALICE}))
    world.told()
    assert isinstance(await streams.ends(stream), CredentialsRevoked)
    assert isinstance(await refusal(world, shown), CredentialsRevoked)


async def test_another_password_ends_it_at_once_or_after_the_grace(world: World, streams: Streams) -> None:
    shown = session(world)
    stream = await streams.open(bearer(shown))
    change_password(world, grace_ms=50)
    await streams.goes_on(stream)
    assert await world.call("Metadata", bearer(shown)) is None
    await world.clock.advance(50)
    assert isinstance(await streams.ends(stream), CredentialsRevoked), "a timer was set when the grace began"
    assert isinstance(await refusal(world, shown), CredentialsRevoked)
    later = session(world)
    stream = await streams.open(bearer(later))
    world.users[0] = replace(world.users[0], password=replace(world.users[0].password, id="3" * 16), old=None)
    world.told()
    assert isinstance(await streams.ends(stream), CredentialsRevoked)
    assert isinstance(await refusal(world, later), CredentialsRevoked)


async def test_a_session_of_the_grace_is_not_longer_than_it(world: World) -> None:
    change_password(world, grace_ms=60_000)
    user = world.users[0]
    assert user.old is not None
    made = session_claims("", user, user.old.id, world.clock.now_ms())
    assert made["exp"] * 1_000 <= user.old_until_ms
    assert claims_of(world)["exp"] - made["exp"] > 3_000


async def test_a_login_goes_with_its_password_also_with_that_of_the_grace(world: World, streams: Streams) -> None:
    world.keys[:] = [replace(key_of(OTHER_TEXT, owner=ALICE), login="1" * 16, expires_ms=10**15)]
    world.told()
    stream = await streams.open(bearer(OTHER_TEXT))
    change_password(world, grace_ms=50)
    assert await world.call("Metadata", bearer(OTHER_TEXT)) is None
    await world.clock.advance(50)
    assert isinstance(await streams.ends(stream), CredentialsRevoked)
    assert isinstance(await refusal(world, OTHER_TEXT), CredentialsRevoked)


async def test_it_is_vouched_for_and_so_changes_nobodys_rights_whoever_it_is(world: World) -> None:
    world.rules = replace(world.rules, generation=2, bindings={ALICE: frozenset({Binding(ALICE, SUPERUSER)})})
    world.told()
    shown = world.access.authenticate(session(world), "")
    rights = world.access.rights(shown)
    assert rights.allows(Operation.DELETE, ResourceType.TOPIC, "a")
    assert rights.allows(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
    beyond = [(one, ResourceType.PRINCIPAL, str(ALICE)) for one in (Operation.ALTER, Operation.CREATE_TOKENS)]
    for asked in (*beyond, (Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)):
        assert not rights.allows(*asked)
        assert "headrace login" in str(rights.refusal(*asked))
    assert not world.access.control.allows_anywhere(shown.caller, Operation.DESCRIBE, ResourceType.PRINCIPAL)
    rows = {**world.image.access, CONFIGURED: write_configured(Configured(vouched_full=True))}
    world.image = replace(world.image, access=rows)
    full = world.access.rights(world.access.authenticate(session(world), ""))
    assert full.allows(*beyond[0])


async def test_where_a_node_has_not_heard_of_it_yet_the_caller_tries_again(world: World) -> None:
    shown = session(world, iat=int(world.clock.now_ms()) // 1_000)
    world.nodes = {}
    world.told()
    assert isinstance(await refusal(world, shown), MetadataUnavailable)
    await world.clock.advance(YOUNG_MS + 1_000)
    assert isinstance(await refusal(world, shown), CredentialsRevoked)


async def test_a_session_is_verified_once_and_looked_at_each_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    plain = sessions.verify
    monkeypatch.setattr(sessions, "verify", lambda *args: verified.append(args[0]) or plain(*args))
    shown = session(world)
    for _ in range(3):
        assert isinstance(world.access.authenticate(shown, "10.0.0.1").session, Session)
    assert verified == [shown]
    assert signers_of(world.image).keys == {BROKER: KEY.public}


async def test_wrong_sessions_have_the_room_of_wrong_tokens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    good = session(world)
    world.access.authenticate(good, "10.0.0.1")
    monkeypatch.setattr(signatures, "WRONG_PER_S_MAX", 1)
    for error in (CredentialsRevoked, Overloaded):
        with pytest.raises(error):
            world.access.authenticate(f"{good.rpartition('.')[0]}.{'A' * (85 + (error is Overloaded))}", "10.0.0.1")
    assert world.access.authenticate(good, "10.0.0.1")
