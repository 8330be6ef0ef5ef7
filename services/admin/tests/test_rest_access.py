"""Who may ask for what over REST, and the routes for access itself."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx
import pytest
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.closed import Rows, bearing, key_of, key_text, user
from libs.common.tests.kit.document import Document
from services.admin.tests.kit.behind import Front, opened
from services.admin.tests.kit.rest import JSON
from services.admin.tests.kit.world import LIMITS
from starlette.routing import BaseRoute

from headrace_admin.adapters.aes_seals import AesSeals
from headrace_admin.rpc.access_table import ACCESS
from headrace_admin.rpc.rest import rest_app
from headrace_admin.rpc.route_table import ROUTES, As, RouteRules
from headrace_common.core.access.grants import Grant, scope_of
from headrace_common.core.access.principal import Grantee
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, Target, literal, prefix
from headrace_common.core.access.roles import Binding
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import ClusterAuthorizationFailed
from headrace_common.http.foreign_pages import Hosts
from headrace_common.rpc.access_rules import ANYBODY, ENTRIES, NOBODY, Asks, AsksAny, AsksAnywhere, Rule, Wants
from headrace_proto.v1 import access_pb2, errors_pb2
from headrace_proto.v1 import controller_pb2 as pb

Op, Of = Operation, ResourceType
NO_PACE: Final = replace(LIMITS, http_requests_per_second=0, http_strangers_per_second=0)
QUERY: Final = {"principal": "User:x", "operation": "READ", "type": "TOPIC", "name": "a"}
SLOW: Final = ("/stores", "/stores/{store}/keys/{key:path}", "/partitions/{partition}/records")
"""Ends of routes that wait for somebody who is not there."""
PATH: Final = {
    "topic": "orders",
    "partition": "0",
    "group": "g",
    "app": "g",
    "store": "s",
    "key": "k",
    "broker": "1",
    "node": "coordinator-1",
    "topic_id": "00" * 16,
    "transactional_id": "t",
    "id": "k" * 14,
    "name": "alice",
}


def rows(mode: Mode = Mode.CLOSED, alice: Iterable[Grant] = (), **more: Any) -> Rows:
    rules: dict[Grantee, frozenset[Grant]] = {user("alice"): frozenset(alice)}
    return Rows(mode, rules, keys=[key_of("alice"), key_of("bob"), key_of("late", expires_ms=2_000)], **more)


@dataclass
class Rest:
    """The application in front of what is behind."""

    front: Front
    app: Any
    routes: list[BaseRoute]
    client: httpx.AsyncClient

    async def ask(self, who: str | None, route: str, **more: Any) -> httpx.Response:
        method, path = route.split(" ")
        path = path.replace(":path", "").format(**PATH)
        query = QUERY if path.endswith(("/explain", "/who-can")) else {}
        return await self.client.request(method, path, headers=JSON | bearing(who), params=query, **more)


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with opened(rows()) as front:
        hosts, seals = Hosts.of([]), AesSeals.of_this_process()
        app = rest_app(front.engines, NO_PACE, ready=lambda: True, hosts=hosts, access=front.access, seals=seals)
        rules: Any = next(layer.kwargs["rule_of"] for layer in app.user_middleware if "rule_of" in layer.kwargs)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Rest(front, app, rules.routes, client)


def names_of(routes: Iterable[BaseRoute]) -> set[str]:
    return {f"{method} {route.path}" for route in routes for method in route.methods - {"HEAD"}}  # type: ignore[attr-defined]


def wanted(rest: Rest, route: str) -> Rule:
    """What the gate asks of a request to a route."""
    method, path = route.split(" ")
    query = b"principal=User%3Ax"
    path = path.replace(":path", "").format(**PATH)
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query}
    return RouteRules(rest.routes)(scope | {"headers": []})


def asked_of(rest: Rest, route: str) -> list[Wants]:
    rule = wanted(rest, route)
    return list(rule.wants(None)) if isinstance(rule, (Asks, AsksAny)) else []


async def test_every_route_has_a_row_and_every_row_a_route(rest: Rest) -> None:
    assert names_of(rest.routes) == ROUTES.keys()
    document = rest.app.openapi()["paths"]
    told = {f"{method.upper()} {path}" for path, methods in document.items() for method in methods}
    assert told == {route.replace(":path", "") for route in ROUTES} - {"GET /docs", "GET /openapi.json"}


async def test_every_operation_behind_a_row_is_there_and_has_its_request(rest: Rest) -> None:
    for route, row in ROUTES.items():
        if isinstance(row, As):
            assert f"Admin/{row.operation}" in ACCESS, route
        assert all(want.name for want in asked_of(rest, route)), route


async def test_only_these_need_no_credential() -> None:
    assert {route for route, row in ROUTES.items() if row is NOBODY} == {
        "GET /health/live",
        "GET /health/ready",
        "GET /health/cluster",
    }
    assert {
        route for route, row in ROUTES.items() if isinstance(row, As) and ACCESS[f"Admin/{row.operation}"] is NOBODY
    } == {"POST /v1/login"}


@pytest.mark.parametrize("who", [None, "late", "stranger"])
async def test_without_a_valid_credential_a_closed_cluster_tells_nothing(rest: Rest, who: str | None) -> None:
    for route in [*ROUTES, "GET /v1/nothing", "PUT /v1/cluster"]:
        answer = await rest.ask(who, route)
        if ROUTES.get(route) is NOBODY or route == "POST /v1/login":
            assert answer.status_code == (400 if route == "POST /v1/login" else 200), route
            continue
        assert answer.status_code == 401, route
        assert answer.headers["www-authenticate"] == "Bearer"
        problem = answer.json()
        assert problem["next_step"].startswith("Send the header Authorization: Bearer hrk_")
        assert problem["code"] == ("CREDENTIALS_EXPIRED" if who == "late" else "SASL_AUTHENTICATION_FAILED")
    assert {bearer for of in rest.front.behind.whose().values() for bearer in of} == {None}, "for /health/cluster"


async def test_what_was_taken_back_gets_nothing_from_any_route(rest: Rest) -> None:
    """A key that was deleted, one whose owner was blocked, and both of a super user: all counted before."""
    bosses = frozenset({user("deleted"), user("blocked")})
    both = [key_of("deleted"), key_of("blocked")]
    rest.front.told(replace(rows(super_users=bosses), keys=both))
    for who in ("deleted", "blocked"):
        assert (await rest.ask(who, "GET /v1/whoami")).json()["super_user"]
    rest.front.told(replace(rows(super_users=bosses, blocked=frozenset({user("blocked")})), keys=both[1:]))
    rest.front.behind.asked.clear()
    for route in (one for one in ROUTES if ROUTES[one] is not NOBODY and one != "POST /v1/login"):
        for who, code in (("deleted", "SASL_AUTHENTICATION_FAILED"), ("blocked", "CREDENTIALS_REVOKED")):
            answer = await rest.ask(who, route)
            assert (answer.status_code, answer.json()["code"]) == (401, code), (route, who)
    assert rest.front.behind.asked == []


async def test_a_key_of_a_super_user_gets_no_more_than_its_scope(rest: Rest) -> None:
    scoped = replace(key_of("boss"), scope=scope_of([ON_ORDERS]))
    rest.front.told(replace(rows(super_users=frozenset({user("boss")})), keys=[scoped]))
    within = [Wants(Op.READ, Of.TOPIC, "orders"), Wants(Op.DESCRIBE, Of.TOPIC, "orders")]
    refused = 0
    for route in (one for one in ROUTES if not one.endswith(SLOW)):
        wants, rule = asked_of(rest, route), wanted(rest, route)
        if not wants or (any if isinstance(rule, AsksAny) else all)(one in within for one in wants):
            continue
        answer = await rest.ask("boss", route, **{"content": b"{"} if route.startswith("P") else {})
        assert answer.status_code == 403, (route, answer.text)
        refused += 1
    assert refused > 30
    assert rest.front.behind.asked == []
    assert (await rest.ask("boss", "GET /v1/topics/{topic}")).status_code not in {401, 403}


async def test_health_tells_nothing_but_the_state(rest: Rest) -> None:
    health = (await rest.ask("alice", "GET /health/cluster")).json()
    assert health["verdict"].startswith("GET /v1/cluster/status tells more")
    rest.front.told(rows(Mode.OPEN))
    assert (await rest.ask(None, "GET /health/cluster")).json()["verdict"] != health["verdict"]


async def test_who_lacks_a_right_is_refused_before_its_body_is_read(rest: Rest) -> None:
    broken: dict[str, Any] = {"content": b"{"}
    for route in ROUTES:
        if not asked_of(rest, route):
            continue
        answer = await rest.ask("alice", route, **broken if route.startswith("P") else {})
        assert answer.status_code == 403, route
        assert "User:alice may not" in answer.json()["detail"]
    assert rest.front.behind.asked == []


async def test_who_has_the_right_gets_past_the_gate(rest: Rest) -> None:
    for route in (one for one in ROUTES if not one.endswith(SLOW)):
        wants, rule = asked_of(rest, route), wanted(rest, route)
        if isinstance(rule, AsksAny):
            wants = wants[-1:]
        if isinstance(rule, AsksAnywhere):
            wants = [Wants(rule.operation, rule.type, "User:x")]
        grants = [allow(w.type, EVERY_NAME if w.type is Of.CLUSTER else literal(w.name), w.operation) for w in wants]
        rest.front.told(rows(alice=grants))
        answer = await rest.ask("alice", route, **{"content": b"{"} if route.startswith("P") else {})
        assert answer.status_code not in {401, 403}, (route, answer.text)
        if route.startswith("P"):
            assert answer.status_code == 400, "the body was read"


async def test_an_open_cluster_is_as_before(rest: Rest) -> None:
    rest.front.told(rows(Mode.OPEN))
    for who in (None, "stranger"):
        for route in (one for one in ROUTES if not one.endswith(SLOW)):
            content = {"content": b"{"} if route.startswith("P") else {}
            assert (await rest.ask(who, route, **content)).status_code not in {401, 403}


async def test_a_route_without_a_row_is_refused(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ROUTES, "GET /v1/whoami")
    with pytest.raises(ClusterAuthorizationFailed, match="no table"):
        wanted(rest, "GET /v1/whoami")
    assert (await rest.ask("alice", "GET /v1/whoami")).status_code == 403


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("GET /v1/cluster", [(Op.DESCRIBE, Of.CLUSTER, "kafka-cluster")]),
        ("HEAD /v1/cluster", [(Op.DESCRIBE, Of.CLUSTER, "kafka-cluster")]),
        ("POST /v1/topics/{topic}/records", [(Op.WRITE, Of.TOPIC, "orders")]),
        ("GET /v1/topics/{topic}/partitions/{partition}/records", [(Op.READ, Of.TOPIC, "orders")]),
        ("GET /v1/groups/{group:path}/lag", [(Op.DESCRIBE, Of.GROUP, "g")]),
        ("POST /v1/groups/{group:path}/offsets/delete", [(Op.DELETE, Of.GROUP, "g")]),
        ("GET /v1/streams/{app}/stores", [(Op.READ, Of.GROUP, "g")]),
        (
            "POST /v1/transactions/{transactional_id:path}/abort",
            [(Op.ALTER, Of.CLUSTER, "kafka-cluster"), (Op.WRITE, Of.TRANSACTIONAL_ID, "t")],
        ),
        ("GET /v1/access/explain", [(Op.DESCRIBE, Of.PRINCIPAL, "User:x")]),
        ("GET /v1/topics", []),
    ],
)
async def test_the_gate_asks(rest: Rest, route: str, expected: list[Any]) -> None:
    assert asked_of(rest, route) == expected


async def test_what_is_no_route_needs_a_credential_and_is_not_there(rest: Rest) -> None:
    assert wanted(rest, "GET /v1/nothing") is ANYBODY
    assert wanted(rest, "GET /v1/topics") is ENTRIES
    assert (await rest.ask("alice", "GET /v1/nothing")).status_code == 404
    assert (await rest.ask("alice", "PUT /v1/cluster")).status_code == 405


async def test_forwarded_requests_carry_the_caller(rest: Rest) -> None:
    for who in ("alice", "bob"):
        await rest.ask(who, "GET /v1/topics")
        [one] = rest.front.behind.asked
        assert (one.operation, one.bearer) == ("Controller/ListTopics", key_text(who))
        rest.front.behind.asked.clear()


# --- the routes for access ----------------------------------------------------------------------------------------


async def told(rest: Rest, answer: httpx.Response) -> Any:
    """The answer, which is as the document says."""
    assert answer.is_success, answer.text
    document = Document(rest.app.openapi())
    document.check_answer(answer.request.method, answer.request.url.path, answer.status_code, answer.json())
    return answer.json()


async def test_who_am_i(rest: Rest) -> None:
    scoped = replace(key_of("carol"), scope=scope_of([allow(Of.TOPIC, literal("a"), Op.READ)]))
    admin = user("carol"), user("dora")
    rest.front.told(rows(super_users=frozenset(admin), of_files=(scoped, key_of("dora"))))
    alice = await told(rest, await rest.ask("alice", "GET /v1/whoami"))
    key = key_of("alice")
    assert alice == {
        "principal": "User:alice",
        "key_id": key.id,
        "expires_ms": None,
        "mode": "closed",
        "super_user": False,
        "certificate": "",
    }
    assert not (await told(rest, await rest.ask("carol", "GET /v1/whoami")))["super_user"], "its key is narrower"
    assert (await told(rest, await rest.ask("dora", "GET /v1/whoami")))["super_user"]
    rest.front.told(rows(Mode.OPEN))
    nobody = await told(rest, await rest.ask(None, "GET /v1/whoami"))
    assert (nobody["principal"], nobody["key_id"], nobody["mode"]) == ("User:ANONYMOUS", "", "open")


SEES_BOB: Final = allow(Of.PRINCIPAL, literal("User:bob"), Op.DESCRIBE)
ON_ORDERS: Final = allow(Of.TOPIC, literal("orders"), Op.READ)


def described_rows(*alice: Grant) -> Rows:
    bob = Binding(user("bob"), "producer", frozenset({Target(Of.TOPIC, prefix("o"))}))
    return replace(rows(alice=alice), bindings={user("bob"): frozenset({bob})}, super_users=frozenset({user("root")}))


async def test_access_is_told_as_far_as_the_caller_may_know(rest: Rest) -> None:
    rest.front.told(described_rows(ON_ORDERS))
    nothing = await told(rest, await rest.ask("alice", "GET /v1/access"))
    assert nothing["rules"] == nothing["bindings"] == nothing["super_users"] == []
    assert (nothing["mode"], nothing["generation"]) == ("closed", 1)
    assert "producer" in {role["name"] for role in nothing["roles"]}
    rest.front.told(described_rows(ON_ORDERS, SEES_BOB))
    seen = await told(rest, await rest.ask("alice", "GET /v1/access"))
    assert seen["bindings"] == [
        {"principal": "User:bob", "role": "producer", "targets": [{"type": "TOPIC", "pattern": "o*"}]}
    ]
    assert seen["rules"] == [], "not of herself: nobody has said that she may"
    rest.front.told(described_rows(ON_ORDERS, allow(Of.PRINCIPAL, EVERY_NAME, Op.DESCRIBE)))
    everything = await told(rest, await rest.ask("alice", "GET /v1/access"))
    assert {rule["grant"]["pattern"] for rule in everything["rules"]} == {"orders", "*"}
    assert everything["super_users"] == ["User:root"]


async def test_access_comes_in_pages(rest: Rest) -> None:
    rest.front.told(described_rows(ON_ORDERS, allow(Of.PRINCIPAL, EVERY_NAME, Op.DESCRIBE)))

    async def page(after: str, limit: int = 1) -> Any:
        path = f"/v1/access?limit={limit}&after={after}"
        return await told(rest, await rest.client.get(path, headers=bearing("alice")))

    first = await page("")
    assert [rule["grant"]["pattern"] for rule in first["rules"]] == ["*"]
    assert "producer" in {role["name"] for role in first["roles"]}
    second = await page(first["next"])
    assert ([rule["grant"]["pattern"] for rule in second["rules"]], second["roles"]) == (["orders"], [])
    last = await page(second["next"], 1_000)
    assert ([one["principal"] for one in last["bindings"]], last["next"]) == (["User:bob"], "")
    assert (second["super_users"], first["super_users"]) == ([], ["User:root"])
    for wrong in ("limit=1001", "limit=-1", "after=x"):
        assert (await rest.client.get(f"/v1/access?{wrong}", headers=bearing("alice"))).status_code == 400


async def test_one_principal_is_described_or_refused(rest: Rest) -> None:
    rest.front.told(described_rows(SEES_BOB))
    refused = await rest.client.get("/v1/access?principal=User:root", headers=bearing("alice"))
    unknown = await rest.client.get("/v1/access?principal=User:who", headers=bearing("alice"))
    assert (refused.status_code, unknown.status_code) == (403, 403)
    told_of = [re.sub(r"refusal \w+", "", one.json()["detail"]) for one in (refused, unknown)]
    assert told_of[0].replace("root", "who") == told_of[1], "nothing is told by it"
    bob = await told(rest, await rest.client.get("/v1/access?principal=User:bob", headers=bearing("alice")))
    assert ([one["principal"] for one in bob["bindings"]], bob["rules"]) == (["User:bob"], [])
    assert [role["name"] for role in bob["roles"]] == ["producer"]
    assert (await rest.client.get("/v1/access?principal=x", headers=bearing("alice"))).status_code == 400


async def test_who_can_is_told_as_far_as_the_caller_may_know(rest: Rest) -> None:
    path = "/v1/access/who-can?operation=WRITE&type=TOPIC&name=orders"
    assert (await rest.client.get(path, headers=bearing("alice"))).status_code == 403
    rest.front.told(described_rows(SEES_BOB))
    bob = {
        "principal": "User:bob",
        "allowed": True,
        "reason": "allowed",
        "anywhere": True,
        "hosts": [],
        "sources": ["allow WRITE TOPIC o*, by role producer on TOPIC o* of User:bob"],
    }
    assert await told(rest, await rest.client.get(path, headers=bearing("alice"))) == {"holders": [bob], "more": False}
    rest.front.told(described_rows(allow(Of.PRINCIPAL, EVERY_NAME, Op.DESCRIBE)))
    every = await told(rest, await rest.client.get(path, headers=bearing("alice")))
    assert [(one["principal"], one["reason"]) for one in every["holders"]] == [
        ("User:bob", "allowed"),
        ("User:root", "super_user"),
    ]
    first = await told(rest, await rest.client.get(f"{path}&limit=1", headers=bearing("alice")))
    assert ([one["principal"] for one in first["holders"]], first["more"]) == (["User:bob"], True)
    cluster = "/v1/access/who-can?operation=ALTER&type=CLUSTER&name=ignored"
    of_cluster = await told(rest, await rest.client.get(cluster, headers=bearing("alice")))
    assert [one["principal"] for one in of_cluster["holders"]] == ["User:root"]
    for wrong in ("limit=10001", "limit=-1", "operation=FLY"):
        assert (await rest.client.get(f"{path}&{wrong}", headers=bearing("alice"))).status_code == 400


async def test_keys_are_ones_own_and_those_one_may_see(rest: Rest) -> None:
    own = await told(rest, await rest.ask("alice", "GET /v1/keys"))
    assert [key["owner"] for key in own["keys"]] == ["User:alice"]
    assert "digest" not in json.dumps(own)
    rest.front.told(rows(alice=[SEES_BOB], of_files=(key_of("root"),)))
    seen = await told(rest, await rest.ask("alice", "GET /v1/keys"))
    assert [key["owner"] for key in seen["keys"]] == ["User:alice", "User:bob"]
    of_bob = await told(rest, await rest.client.get("/v1/keys?owner=User:bob", headers=bearing("alice")))
    assert [(key["owner"], key["configured"]) for key in of_bob["keys"]] == [("User:bob", False)]
    assert (await rest.client.get("/v1/keys?owner=User:root", headers=bearing("alice"))).status_code == 403
    rest.front.told(rows(alice=[allow(Of.PRINCIPAL, EVERY_NAME, Op.DESCRIBE_TOKENS)], of_files=(key_of("root"),)))
    every = await told(rest, await rest.ask("alice", "GET /v1/keys"))
    assert {key["owner"]: key["configured"] for key in every["keys"]} == {
        "User:alice": False,
        "User:bob": False,
        "User:late": False,
        "User:root": True,
    }


EXPLAIN: Final = "/v1/access/explain?principal=User:bob&type=TOPIC&name=orders"


async def test_a_decision_is_explained(rest: Rest) -> None:
    rest.front.told(described_rows(SEES_BOB))
    may = await told(rest, await rest.client.get(f"{EXPLAIN}&operation=write", headers=bearing("alice")))
    assert may == {
        "allowed": True,
        "reason": "a rule or role allows it",
        "sources": ["allow WRITE TOPIC o*, by role producer on TOPIC o* of User:bob"],
        "remedy": "",
    }
    not_yet = await told(rest, await rest.client.get(f"{EXPLAIN}&operation=READ", headers=bearing("alice")))
    assert (not_yet["allowed"], not_yet["remedy"]) == (False, "headrace access allow User:bob read topic orders")
    own = "/v1/access/explain?principal=User:bob&type=PRINCIPAL&name=User:bob&operation=CREATE_TOKENS"
    assert "as everybody has it" in (await rest.client.get(own, headers=bearing("alice"))).json()["sources"][0]
    for wrong in (f"{EXPLAIN}&operation=FLY", f"{EXPLAIN}&operation=READ&host=there"):
        assert (await rest.client.get(wrong, headers=bearing("alice"))).status_code == 400
    rest.front.told(rows(alice=[allow(Of.PRINCIPAL, EVERY_NAME, Op.DESCRIBE)]))
    for nobody in ("Node:broker-1", "User:*", "Group:staff"):
        path = EXPLAIN.replace("User:bob", nobody)
        assert (await rest.client.get(f"{path}&operation=READ", headers=bearing("alice"))).status_code == 400, nobody


async def test_a_key_is_made_and_deleted_by_the_controller(rest: Rest) -> None:
    description = access_pb2.ApiKeyDescription(id="k" * 14, owner="User:alice")
    rest.front.behind.answers["Controller/CreateKey"] = lambda _: access_pb2.CreateKeyResponse(
        key="hrk_new", description=description
    )
    grant = {"operations": ["READ"], "type": "TOPIC", "pattern": "a"}
    body = {"owner": "User:alice", "lifetime_ms": -1, "note": "n", "scope": [grant]}
    made = await rest.client.post("/v1/keys", headers=JSON | bearing("alice"), json=body)
    assert (await told(rest, made))["key"] == "hrk_new"
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    [asked] = rest.front.behind.asked
    assert (asked.bearer, asked.request.lifetime_ms) == (key_text("alice"), -1)
    assert asked.request.scope[0] == access_pb2.Grant(operations=["READ"], type="TOPIC", pattern="a")
    gone = await rest.ask("alice", "DELETE /v1/keys/{id}")
    assert (gone.status_code, rest.front.behind.asked[-1].request.ids) == (204, ["k" * 14])
    assert rest.front.behind.asked[-1].bearer == key_text("alice")


async def test_changes_go_to_the_controller_as_they_are(rest: Rest) -> None:
    shift = access_pb2.AccessShift(
        principal="User:x", gains=[access_pb2.AccessReach(type="TOPIC", pattern="a", operations=["READ"])]
    )
    rest.front.behind.answers["Controller/AlterAccess"] = lambda _: access_pb2.AlterAccessResponse(
        generation=7, shifts=[shift]
    )
    grant = {"deny": True, "operations": ["READ"], "type": "TOPIC", "pattern": "a", "host": "10.0.0.1"}
    changes = [
        {"rule": {"principal": "User:x", "grant": grant}},
        {
            "remove": True,
            "binding": {"principal": "User:x", "role": "r", "targets": [{"type": "TOPIC", "pattern": "*"}]},
        },
        {"role": {"name": "r", "operations": [{"type": "TOPIC", "operations": ["READ"]}]}},
        {"remove": True, "cascade": True, "role": {"name": "r"}},
        {"block": "User:y"},
    ]
    body = {"changes": changes, "validate_only": True, "mode": "permissive"}
    answer = await rest.client.post("/v1/access/changes", headers=JSON | bearing("bob"), json=body)
    assert (await told(rest, answer))["generation"] == 7
    [asked] = rest.front.behind.asked
    assert (asked.operation, asked.bearer) == ("Controller/AlterAccess", key_text("bob"))
    request = asked.request
    assert (request.validate_only, request.mode) == (True, "permissive")
    assert [change.WhichOneof("item") for change in request.changes] == ["rule", "binding", "role", "role", "block"]
    assert [(change.remove, change.cascade) for change in request.changes] == [
        (False, False),
        (True, False),
        (False, False),
        (True, True),
        (False, False),
    ]
    assert request.changes[0].rule.grant == access_pb2.Grant(
        deny=True, operations=["READ"], type="TOPIC", pattern="a", host="10.0.0.1"
    )
    rule = {"principal": "User:x", "grant": grant}
    for wrong in ({"rule": rule | {"grant": {"operations": []}}}, {"rule": rule, "block": "User:y"}, {"remove": True}):
        bad = await rest.client.post("/v1/access/changes", headers=JSON | bearing("bob"), json={"changes": [wrong]})
        assert bad.status_code == 400, wrong
    assert len(rest.front.behind.asked) == 1


async def test_what_the_controller_refuses_is_refused(rest: Rest) -> None:
    refused = pb.CreateTopicsResponse(
        topics=[pb.TopicResult(error=errors_pb2.TOPIC_AUTHORIZATION_FAILED, message="User:bob may not")]
    )
    rest.front.behind.answers["Controller/CreateTopics"] = lambda _: refused
    answer = await rest.client.post("/v1/topics", headers=JSON | bearing("bob"), json={"name": "x"})
    assert (answer.status_code, answer.json()["code"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
