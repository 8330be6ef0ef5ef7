"""What the admin client asks about access, and what it makes of the answers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from libs.sdk.tests.kit.admin_service import AdminTransport, Service

from headrace import access, aio
from headrace.errors import ClusterAuthorizationFailed, Rejected, Unauthenticated
from headrace_proto.v1 import access_pb2 as pb

KEY = "hrk_secret"


def client(service: Any) -> aio.AdminClient:
    transport: Any = AdminTransport(service)  # all that it needs
    return aio.AdminClient(_transport=transport)


async def test_changes_are_asked_for_whole() -> None:
    reach = pb.AccessReach(type="TOPIC", pattern="t*", operations=["READ"], host="10.0.0.1")
    shift = pb.AccessShift(principal="User:a", gains=[reach])
    service = Service(pb.AlterAccessResponse(generation=3, shifts=[shift]))
    rule = access.allow("User:a", ["READ"], "TOPIC", "t*")
    done = await client(service).alter_access([access.Put(rule), access.Remove(access.block("User:b"))])
    [asked] = service.asked
    assert [(change.remove, change.WhichOneof("item")) for change in asked.changes] == [
        (False, "rule"),
        (True, "block"),
    ]
    assert (asked.validate_only, asked.mode) == (False, "")
    assert (done.generation, done.more, str(done.shifts[0].gains[0])) == (3, False, "READ TOPIC t* from 10.0.0.1")
    await client(service).alter_access(mode="closed", validate_only=True)
    assert (service.asked[1].mode, service.asked[1].validate_only) == ("closed", True)
    assert (service.asked[1].within_ms, service.asked[1].accept_loss, list(service.asked[1].accept_loss_of)) == (
        0,
        False,
        [],
    )
    await client(service).alter_access(
        mode="closed", within=timedelta(minutes=5), accept_loss_of=["User:a"], accept_loss=True
    )
    asked = service.asked[2]
    assert (asked.within_ms, asked.accept_loss, list(asked.accept_loss_of)) == (300_000, True, ["User:a"])


async def test_what_was_seen() -> None:
    times = pb.SeenTimes(first_ms=1, last_ms=2, count=3)
    service = Service(
        pb.ObservedResponse(
            mode="permissive",
            strangers=[pb.SeenStranger(wrong=True, seen=times)],
            refusals=[pb.SeenRefusal(principal="User:a", name="t", seen=times, remedy="headrace ...")],
            nodes=[pb.SeenBy(node="broker-1", since_ms=4), pb.SeenBy(node="broker-2", fault="gone")],
        )
    )
    found = await client(service).observed_access(within=timedelta(seconds=1), limit=7)
    assert service.asked == [pb.ObservedRequest(within_ms=1_000, limit=7)]
    assert (found.since_ms, found.strangers[0].host, found.strangers[0].wrong) == (None, None, True)
    assert (found.refusals[0].remedy, found.refusals[0].seen.last_ms) == ("headrace ...", 2)
    assert [(node.since_ms, node.fault) for node in found.nodes] == [(4, None), (None, "gone")]


class Pages:
    """Answers page after page."""

    def __init__(self, *pages: pb.DescribeAccessResponse) -> None:
        self.pages = list(pages)
        self.after: list[str] = []

    async def DescribeAccess(self, request: pb.DescribeAccessRequest, timeout: float) -> pb.DescribeAccessResponse:
        self.after.append(request.after)
        return self.pages.pop(0)


async def test_pages_become_one_description() -> None:
    first = pb.DescribeAccessResponse(mode="permissive", generation=3, super_users=["User:r"], next="n1")
    second = pb.DescribeAccessResponse(mode="closed", generation=4, blocked=["User:b"], next="n2")
    third = pb.DescribeAccessResponse(mode="closed", generation=4, blocked=["User:c"])
    service = Pages(first, second, third)
    found = await client(service).describe_access()
    assert service.after == ["", "n1", "n2"]
    assert (found.mode, found.generation) == ("closed", 4)
    assert (found.super_users, found.blocked, found.wire.next) == (("User:r",), ("User:b", "User:c"), "")
    stuck = Pages(*(pb.DescribeAccessResponse(next="n1") for _ in range(3)))
    await client(stuck).describe_access()
    assert stuck.after == ["", "n1"], "a page that leads to itself is the last"


async def test_what_is_described() -> None:
    role = pb.AccessRole(name="own", operations=[pb.RoleOperations(type="TOPIC", operations=["READ"])])
    binding = pb.AccessBinding(principal="User:a", role="own", targets=[pb.AccessTarget(type="TOPIC", pattern="t")])
    rule = pb.AccessRule(principal="User:b", grant=pb.Grant(deny=True, operations=["ALL"], type="GROUP", pattern="*"))
    service = Service(pb.DescribeAccessResponse(mode="closed", rules=[rule], bindings=[binding], roles=[role]))
    found = await client(service).describe_access("User:a")
    assert service.asked == [pb.DescribeAccessRequest(principal="User:a")]
    assert found.mode == "closed"
    assert found.roles[0].operations == {"TOPIC": ("READ",)}
    assert found.bindings[0].targets[0].pattern == "t"
    assert (found.rules[0].grant.deny, found.rules[0].grant.host) == (True, None)


async def test_why() -> None:
    service = Service(pb.ExplainAccessResponse(reason="nothing allows it", remedy="headrace access ..."))
    found = await client(service).explain_access("User:a", "read", "topic", "t")
    assert service.asked == [pb.ExplainAccessRequest(principal="User:a", operation="READ", type="TOPIC", name="t")]
    assert (found.allowed, found.remedy) == (False, "headrace access ...")


async def test_why_something_was_refused() -> None:
    one = pb.RefusedAccess(node="broker-1", principal="User:a", name="t", seen=pb.SeenTimes(count=2))
    service = Service(pb.WhyRefusedResponse(refusals=[one], nodes=[pb.SeenBy(node="broker-2", fault="f")]))
    found = await client(service).why_refused("0123456789")
    assert service.asked == [pb.WhyRefusedRequest(id="0123456789")]
    [refusal] = found.refusals
    assert (refusal.node, refusal.host, refusal.remedy, refusal.seen.count) == ("broker-1", None, None, 2)
    assert [node.fault for node in found.nodes] == ["f"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin, text: admin.describe_access(text),
        lambda admin, text: admin.explain_access("User:a", "read", "topic", text),
        lambda admin, text: admin.who_can("read", "topic", text),
        lambda admin, text: admin.why_refused(text),
        lambda admin, text: admin.create_key(note=text),
        lambda admin, text: admin.list_keys(text),
        lambda admin, text: admin.delete_keys(["k", text]),
        lambda admin, text: admin.create_user(text, "a long enough pass-phrase 7"),
        lambda admin, text: admin.change_password(text, "a long enough pass-phrase 7"),
        lambda admin, text: admin.delete_user(text),
        lambda admin, text: admin.list_users(text),
        lambda admin, text: admin.alter_access(mode="closed", accept_loss_of=[text]),
        lambda admin, text: admin.alter_quotas({text: {"produce_bytes_per_s": 1}}),
        lambda admin, text: admin.delete_topic(text),
        lambda admin, text: admin.describe_group(text),
    ],
)
async def test_what_is_no_text_is_refused_by_name(ask: Any) -> None:
    service = Service()
    for text in ("User:\udcff", "\ud800"):
        with pytest.raises(Rejected, match="is not UTF-8 text"):
            await ask(client(service), text)
    assert service.asked == []


async def test_who_can() -> None:
    holder = pb.AccessHolder(principal="User:a", allowed=True, reason="allowed", hosts=["10.0.0.1"], sources=["s"])
    service = Service(pb.WhoCanResponse(holders=[holder], more=True))
    found = await client(service).who_can("read", "topic", "t", limit=1)
    assert service.asked == [pb.WhoCanRequest(operation="READ", type="TOPIC", name="t", limit=1)]
    [one] = found.holders
    assert (one.principal, one.allowed, one.anywhere, one.hosts, found.more) == (
        "User:a",
        True,
        False,
        ("10.0.0.1",),
        True,
    )


@pytest.mark.parametrize(
    ("lifetime", "asked_ms"), [(timedelta(days=1), 86_400_000), (None, -1), (timedelta(days=365), 31_536_000_000)]
)
async def test_a_key_shows_itself_to_who_asks_for_it(lifetime: timedelta | None, asked_ms: int) -> None:
    service = Service(pb.CreateKeyResponse(key=KEY, description=pb.ApiKeyDescription(id="i", owner="User:a")))
    scope = [access.grant(["READ"], "TOPIC", "t*")]
    made = await client(service).create_key("User:a", lifetime=lifetime, scope=scope, note="n")
    assert service.asked[0].lifetime_ms == asked_ms
    assert [grant.pattern for grant in service.asked[0].scope] == ["t*"]
    assert KEY not in f"{made} {made!r}"
    assert made.key.reveal() == KEY
    assert (made.description.owner, made.description.expires_ms) == ("User:a", None)


async def test_no_key_lasts_for_no_time() -> None:
    service = Service()
    with pytest.raises(Rejected):
        await client(service).create_key(lifetime=timedelta(0))
    assert service.asked == []


async def test_keys_and_who_one_is() -> None:
    service = Service(pb.ListKeysResponse(keys=[pb.ApiKeyDescription(id="i", expires_ms=5)]))
    assert [(key.id, key.expires_ms) for key in await client(service).list_keys()] == [("i", 5)]
    await client(service).delete_keys(["i"])
    assert service.asked[-1] == pb.DeleteKeysRequest(ids=["i"])
    service.answer = pb.WhoAmIResponse(principal="User:a", mode="open")
    found = await client(service).who_am_i()
    assert (found.principal, found.key_id, found.super_user) == ("User:a", None, False)
    assert found.certificate is None
    service.answer = pb.WhoAmIResponse(principal="Cert:a", mode="closed", certificate="ab")
    assert (await client(service).who_am_i()).certificate == "ab"


async def test_who_may_not_is_asked_once_and_a_key_that_is_not_known_twice() -> None:
    service = Service()
    calls: list[tuple[Exception, int]] = [(ClusterAuthorizationFailed("no"), 1), (Unauthenticated("no"), 2)]
    for error, times in calls:
        service.failures, service.asked = [error] * 5, []
        with pytest.raises(type(error)):
            await client(service).alter_access(mode="closed")
        assert len(service.asked) == times
    service.failures, service.asked = [Unauthenticated("the key was another by then")], []
    service.answer = pb.ListKeysResponse()
    answer: Any = await client(service).list_keys()
    assert answer == []


async def test_quotas() -> None:
    service = Service(pb.AlterQuotasResponse())
    await client(service).alter_quotas({"users/*": {"producer_byte_rate": 5, "consumer_byte_rate": None}})
    [asked] = service.asked
    assert [(one.entity, one.name, one.HasField("value")) for one in asked.changes] == [
        ("users/*", "producer_byte_rate", True),
        ("users/*", "consumer_byte_rate", False),
    ]
    told = [pb.QuotaSetting(entity="users/*", name=name, value=5) for name in ("a", "b")]
    service = Service(pb.DescribeQuotasResponse(quotas=told))
    assert await client(service).describe_quotas() == {"users/*": {"a": 5, "b": 5}}
    assert service.asked == [pb.DescribeQuotasRequest()]
