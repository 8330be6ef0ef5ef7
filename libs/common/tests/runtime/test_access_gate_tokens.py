"""Who shows a token of an issuer is let in by the gate of a service, over real connections, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.issuer import NOW_MS, SigningIssuer, compact, make_key, sign
from libs.common.tests.runtime.test_access_gate import Streams, World, bearer, node, serving

from headrace_common.core.access import signatures as signed
from headrace_common.core.access.principal import Everyone, Principal, PrincipalType
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.tokens import LEEWAY_MS
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    CredentialsExpired,
    CredentialsRevoked,
    MetadataUnavailable,
    Overloaded,
    Unauthenticated,
)
from headrace_common.core.image import Role
from headrace_common.rpc.node_gate import FORWARDED_KEY

IDP = SigningIssuer()
ALICE = Principal(PrincipalType.OIDC, "idp/alice")
STAFF = Principal(PrincipalType.GROUP, "staff")
DESCRIBE = allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(issuers=IDP.all)
    await world.clock.advance(NOW_MS - world.clock.now_ms())
    async with serving(world):
        yield world


@pytest.fixture
async def streams(world: World) -> AsyncIterator[Streams]:
    async with AsyncExitStack() as stack:
        yield Streams(world, stack)


def shown(world: World, **claims: Any) -> tuple[str, str]:
    """A good token of alice, made now."""
    return bearer(IDP.token(now_ms=world.clock.now_ms(), **claims))


def change(world: World, **rules: Any) -> None:
    world.rules = replace(world.rules, generation=world.rules.generation + 1, **rules)
    world.told()


async def test_who_shows_a_token_is_known_and_gets_what_rules_allow_it_and_its_groups(world: World) -> None:
    token = IDP.token(groups=["staff"])
    assert await world.call("Metadata", bearer(token)) is None
    assert world.seen == [("Metadata", "Oidc:idp/alice", token)]
    assert isinstance(await world.call("ListOffsets", bearer(token)), ClusterAuthorizationFailed)
    for grantee in (ALICE, STAFF, Everyone(PrincipalType.OIDC)):
        change(world, rules={grantee: frozenset({DESCRIBE})})
        assert await world.call("ListOffsets", bearer(token)) is None
    change(world, rules={STAFF: frozenset({DESCRIBE})})
    assert isinstance(await world.call("ListOffsets", shown(world)), ClusterAuthorizationFailed), "not of the group"


async def test_what_the_issuer_did_not_sign_for_this_cluster_reaches_no_handler(world: World) -> None:
    stranger = make_key("RS256", "stranger")
    bad = [
        IDP.token(aud="billing"),
        IDP.token(exp=NOW_MS // 1_000 - 60),
        compact({"alg": "RS256", "kid": "RS256-1"}, IDP.claims(), sign("RS256", stranger)),
        compact({"alg": "none"}, IDP.claims(), lambda _: b""),
        IDP.token()[:-4],
        IDP.token(more="x" * 9_000),
    ]
    for token in bad:
        for operation in ("Metadata", "ListOffsets", "Produce"):
            error = await world.call(operation, bearer(token))
            assert isinstance(error, Unauthenticated)
            assert token not in str(error)
    assert not world.seen
    world.mode = Mode.PERMISSIVE
    world.told()
    assert await world.call("Metadata", bearer(bad[0])) is None
    assert world.seen[0][1] == "User:ANONYMOUS"


@pytest.mark.parametrize("mode", [Mode.CLOSED, Mode.PERMISSIVE])
async def test_a_token_by_a_key_that_is_not_known_is_told_for_its_issuer(world: World, mode: Mode) -> None:
    world.mode = mode
    world.told()
    heard: list[str] = []
    world.access.tokens.on_unknown_key = heard.append
    now = world.clock.now_ms() // 1_000
    for made, wanted in ((now, MetadataUnavailable), (now - 61, Unauthenticated), (None, Unauthenticated)):
        error = await world.call("Metadata", shown(world, header={"kid": "new"}, iat=made))
        if mode is Mode.CLOSED:
            assert isinstance(error, wanted), "clients try again while it may soon be known"
        else:
            assert error is None
        assert set(heard) == {"idp"}
        heard.clear()


async def test_too_many_wrong_tokens_refuse_nobody_before_the_cluster_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed, "WRONG_PER_S_MAX", 0)
    new = bearer(IDP.token(sub="new"))
    assert isinstance(await world.call("Metadata", new), Overloaded)
    world.mode = Mode.PERMISSIVE
    world.told()
    assert await world.call("Metadata", new) is None
    assert world.seen[0][1] == "User:ANONYMOUS"


async def test_a_token_of_8_kib_gets_there(world: World) -> None:
    token = IDP.token(more="x" * 5_700)
    assert 8_000 < len(token) < 8_192
    assert await world.call("Metadata", bearer(token)) is None


async def test_in_mode_permissive_a_token_that_is_good_later_is_known_later(world: World) -> None:
    world.mode = Mode.PERMISSIVE
    world.told()
    early = shown(world, nbf=NOW_MS // 1_000 + 60)
    for expected in ("User:ANONYMOUS", "Oidc:idp/alice"):
        assert await world.call("Metadata", early) is None
        assert world.seen[-1][1] == expected
        await world.clock.advance(60_000)


async def test_an_admin_node_asks_for_who_showed_it_a_token(world: World) -> None:
    token = IDP.token()
    forwarded = (FORWARDED_KEY, token.encode())
    assert await world.call("Metadata", *node(Role.ADMIN), forwarded) is None
    assert world.seen == [("Metadata", "Oidc:idp/alice", token)]


async def test_who_is_blocked_or_of_a_group_that_is_may_do_nothing(world: World) -> None:
    token = shown(world, groups=["staff"])
    for blocked in (ALICE, STAFF):
        change(world, blocked=frozenset({blocked}))
        error = await world.call("Metadata", token)
        assert isinstance(error, CredentialsRevoked)
        assert str(error) == f"{blocked} is blocked"
    change(world, blocked=frozenset())
    assert await world.call("Metadata", token) is None


async def test_a_known_token_is_refused_once_it_is_over(world: World) -> None:
    token = shown(world, exp=NOW_MS // 1_000 + 10)
    assert await world.call("Metadata", token) is None
    await world.clock.advance(10_000 + LEEWAY_MS - 1)
    assert await world.call("Metadata", token) is None
    await world.clock.advance(1)
    assert isinstance(await world.call("Metadata", token), CredentialsExpired)


async def test_streams_end_with_the_next_image_when_their_token_has_expired(world: World, streams: Streams) -> None:
    in_time = world.clock.now_ms() // 1_000 + 5
    stream, other = await streams.open(shown(world, exp=in_time)), await streams.open(shown(world))
    await world.clock.advance(5_000 + LEEWAY_MS)
    change(world)
    assert isinstance(await streams.ends(stream), CredentialsExpired)
    await streams.goes_on(other)


async def test_a_stream_ends_by_itself_when_its_token_expires(world: World, streams: Streams) -> None:
    """No image comes. The token is over in 50 ms of the loop's time."""
    await world.clock.advance(LEEWAY_MS - 50)
    stream = await streams.open(bearer(IDP.token(exp=NOW_MS // 1_000)))
    await world.clock.advance(50)
    assert isinstance(await streams.ends(stream), CredentialsExpired)


ENDS = {
    "is gone": {},
    "is another one": {"idp": replace(IDP.known, issuer=replace(IDP.issuer, iss="https://other"))},
    "is for others": {"idp": replace(IDP.known, issuer=replace(IDP.issuer, audiences=frozenset({"other"})))},
    "has other keys": {"idp": replace(IDP.known, keys=SigningIssuer(algorithms=["PS256"]).known.keys)},
}


@pytest.mark.parametrize("issuers", ENDS.values(), ids=ENDS)
async def test_streams_end_when_their_issuer(world: World, streams: Streams, issuers: Any) -> None:
    stream, of_key = await streams.open(shown(world)), await streams.open(node(Role.BROKER)[0], node(Role.BROKER)[1])
    world.issuers = issuers
    world.told()
    assert isinstance(await streams.ends(stream), CredentialsRevoked)
    await streams.goes_on(of_key)


async def test_streams_go_on_when_keys_are_confirmed_or_there_is_one_more(world: World, streams: Streams) -> None:
    stream = await streams.open(shown(world))
    world.issuers = {"idp": replace(SigningIssuer(algorithms=["RS256", "ES256"]).known, confirmed_ms=NOW_MS + 1)}
    world.told()
    change(world, rules={ALICE: frozenset({DESCRIBE})})
    await streams.goes_on(stream)


@pytest.mark.parametrize("blocked", [ALICE, STAFF], ids=str)
async def test_streams_end_when_their_caller_or_a_group_of_it_is_blocked(
    world: World, streams: Streams, blocked: Principal
) -> None:
    stream, other = await streams.open(shown(world, groups=["staff"])), await streams.open(shown(world, sub="bob"))
    change(world, blocked=frozenset({blocked}))
    assert isinstance(await streams.ends(stream), CredentialsRevoked)
    await streams.goes_on(other)


async def test_the_signature_of_an_open_stream_is_not_looked_at_again(
    world: World, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await streams.open(shown(world))
    monkeypatch.setattr("headrace_common.core.access.tokens.verify", pytest.fail)
    for _ in range(3):
        change(world)
    await streams.goes_on(stream)
