"""Who may ask for what over REST in a closed cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
from services.connect.tests.kit.callers import IN_GROUP
from services.connect.tests.kit.rest import Rest, the_app
from services.connect.tests.kit.twin import ME

from headrace.ticket_types import AccessQuestion, AnnouncedChange
from headrace_common.core.access.resources import OPERATIONS, Operation, ResourceType
from headrace_common.core.errors import CoordinatorNotAvailable
from headrace_connect_worker.core.refusals import NotLeader
from headrace_connect_worker.ports import Forwarded
from headrace_connect_worker.rpc.access_gate import ASKING_PER_ADDRESS_MAX
from headrace_connect_worker.rpc.callers import show_ticket
from headrace_connect_worker.rpc.route_table import ANYBODY, OPEN, ROUTES, RouteRules, Row

LEADER: Final = "127.0.0.1:9083"
SOURCE: Final = {"connector.class": "FileStreamSource", "topic": "t"}
GIVEN: Final = {"name": "a", "task": "0", "plugin": "FileStreamSource", "logger": "root", "verification": "1"}
ALICE: Final = {"authorization": "Bearer hrk_alice"}
Call = tuple[str, str]


def gate_routes() -> Sequence[Any]:
    """As the gate has them."""
    return next(layer.kwargs["routes"] for layer in the_app().user_middleware if "routes" in layer.kwargs)  # type: ignore[no-any-return]


def names_of(routes: Iterable[Any]) -> set[str]:
    return {f"{method} {route.path}" for route in routes for method in route.methods - {"HEAD"}}


@pytest.fixture
async def closed(rest: Rest) -> Rest:
    """Connectors a and b run; alice is known and may nothing."""
    for name in ("a", "b"):
        assert (await rest.create(name)).status_code == 201
    rest.callers.closed = True
    rest.callers.rights = {"alice": set(), "WORKER": {IN_GROUP}}
    return rest


async def ask(rest: Rest, route: str, headers: dict[str, str] | None = None, body: Any = None) -> Any:
    method, path = route.split(" ")
    more = {} if body is None else {"json": body}
    return await rest.client.request(
        method, path.format(**GIVEN), headers=ALICE if headers is None else headers, **more
    )


def body_of(route: str) -> Any:
    if route in ("POST /connectors", "POST /v1/plan"):
        return {"name": "a", "config": SOURCE}
    if route.startswith(("PUT", "POST")) and route.endswith(("config", "validate", "preview")):
        return {"config": SOURCE} if route.endswith("preview") else SOURCE
    return None


# --- the table -----------------------------------------------------------------------------------------------------


def test_each_route_has_a_row_and_each_row_a_route() -> None:
    assert names_of(gate_routes()) == ROUTES.keys()
    documented = {f"{verb.upper()} {path}" for path, verbs in the_app().openapi()["paths"].items() for verb in verbs}
    assert documented <= ROUTES.keys(), "the gate knows all that the application has"


def test_rows_ask_for_what_there_is() -> None:
    for route, row in ROUTES.items():
        for operation in row.operations:
            assert Operation(operation).bit & OPERATIONS[ResourceType(row.type)], route
        assert not row.parameter or f"{{{row.parameter}}}" in route
        assert ("{name}" in route) == (row.parameter == "name"), "what is of one connector asks about that one"


def test_what_changes_asks_for_more_than_to_see() -> None:
    for route, row in ROUTES.items():
        if not route.startswith("GET"):
            assert row.operations, route
            assert set(row.operations).isdisjoint({"DESCRIBE", "DESCRIBE_CONFIGS"}), route


def test_health_alone_is_open() -> None:
    assert [route for route, row in ROUTES.items() if row is OPEN] == ["GET /health"]
    assert {route for route, row in ROUTES.items() if row is ANYBODY} == {
        "GET /openapi.json",
        "GET /connectors",
        "GET /v1/verifications",
    }


async def test_a_route_that_has_no_row_is_for_nobody(closed: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    closed.callers.allow("alice", "a", *(one.value for one in Operation))
    without = {route: row for route, row in ROUTES.items() if route != "GET /connectors/{name}/status"}
    monkeypatch.setattr("headrace_connect_worker.rpc.route_table.ROUTES", without)
    answer = await ask(closed, "GET /connectors/a/status")
    assert (answer.status_code, answer.json()["message"]) == (403, "this route is in no table of rights, so nobody may")


# --- who gets in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", sorted(ROUTES.keys() - {"GET /health"}))
async def test_who_shows_nothing_or_nothing_right_gets_nothing(closed: Rest, route: str) -> None:
    for headers in ({}, {"authorization": "Bearer hrk_mallory"}, {"authorization": "Basic YTpi"}):
        answer = await ask(closed, route, headers, body_of(route))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert sorted(closed.herd.state.connectors) == ["a", "b"]


async def test_who_floods_from_one_address_keeps_out_itself_alone(closed: Rest) -> None:
    closed.callers.allow("alice", "a", "DESCRIBE")
    slow = {"authorization": "Bearer hrk_slow"}
    flood = [asyncio.ensure_future(ask(closed, "GET /connectors", slow)) for _ in range(ASKING_PER_ADDRESS_MAX)]
    while len(closed.callers.asked) < len(flood):
        await asyncio.sleep(0)
    for headers in (slow, ALICE):
        answer = await ask(closed, "GET /connectors/a/status", headers)
        assert answer.status_code == 503
        assert "from 127.0.0.1" in answer.json()["message"]
    assert (await ask(closed, "GET /health", {})).status_code == 200
    app: Any = closed.client._transport.app  # type: ignore[attr-defined]
    elsewhere = httpx.ASGITransport(app=app, client=("10.0.0.7", 1))
    async with httpx.AsyncClient(transport=elsewhere, base_url=closed.client.base_url) as other:
        assert (await other.get("/connectors/a/status", headers=ALICE)).status_code == 200
    closed.callers.answers.set()
    assert {one.status_code for one in await asyncio.gather(*flood)} == {401}
    assert (await ask(closed, "GET /connectors/a/status")).status_code == 200


@pytest.mark.parametrize("route", sorted(route for route, row in ROUTES.items() if row.operations))
async def test_each_route_wants_the_right_of_its_row_and_no_other(closed: Rest, route: str) -> None:
    row = ROUTES[route]
    every = {one.value for one in Operation} - set(row.operations)
    closed.callers.allow("alice", "a", *every)
    closed.callers.allow("alice", "b", *every if not row.parameter else [one.value for one in Operation])
    closed.callers.allow("alice", "kafka-cluster", *every, type="CLUSTER")
    assert (await ask(closed, route, body=body_of(route))).status_code == 403
    for operation in row.operations:
        closed.callers.rights["alice"].clear()
        closed.callers.allow("alice", "a" if row.type == "CONNECTOR" else "kafka-cluster", operation, type=row.type)
        assert (await ask(closed, route)).status_code not in (401, 403)


CHANGES: Final = {
    "POST /connectors",
    "DELETE /connectors/{name}",
    "PUT /connectors/{name}/config",
    "PATCH /connectors/{name}/config",
    "PUT /connectors/{name}/topics/reset",
    "PUT /connectors/{name}/pause",
    "PUT /connectors/{name}/resume",
    "PUT /connectors/{name}/stop",
    "POST /connectors/{name}/restart",
    "POST /connectors/{name}/tasks/{task}/restart",
    "PATCH /connectors/{name}/offsets",
    "DELETE /connectors/{name}/offsets",
    "PUT /admin/loggers/{logger}",
    "POST /v1/connectors/{name}/snapshot",
}


@pytest.mark.parametrize("route", sorted(route for route, row in ROUTES.items() if row.operations))
async def test_what_changes_is_in_the_audit_first_and_nothing_else_is(closed: Rest, route: str) -> None:
    row, body = ROUTES[route], body_of(route)
    assert (await ask(closed, route, body=body)).status_code == 403
    assert closed.callers.announced == []
    name = "c" if route == "POST /connectors" else "a"
    closed.callers.allow("alice", name if row.type == "CONNECTOR" else "kafka-cluster", *row.operations, type=row.type)
    body = {"name": "c", "config": SOURCE} if name == "c" else body
    closed.callers.audit_fails = True
    before = set(closed.herd.state.connectors)
    answer = await ask(closed, route, body=body)
    assert (answer.status_code == 503) == (route in CHANGES), answer.text
    if route in CHANGES:
        assert set(closed.herd.state.connectors) == before
        closed.callers.audit_fails = False
        await ask(closed, route, body=body)
        what = f"{route.format(**GIVEN)}"
        assert closed.callers.announced == [("alice", AnnouncedChange(what, "127.0.0.1"))]
    else:
        assert closed.callers.announced == []


async def test_the_words_are_those_of_all_services(closed: Rest) -> None:
    answer = await ask(closed, "GET /connectors", {})
    assert answer.json()["message"].startswith(
        "this cluster is closed, and the call came without a credential; show an"
    )
    answer = await ask(closed, "GET /v1/verifications", {})
    assert answer.headers["content-type"] == "application/problem+json"
    answer = await ask(closed, "GET /connectors", {"authorization": "Bearer secret"})
    assert "of no kind that is taken here" in answer.json()["message"]


@pytest.mark.parametrize("bearer", ["hrk_\xe9", "hrk_a\tb"])
async def test_what_cannot_be_shown_to_brokers_is_nobodys(closed: Rest, bearer: str) -> None:
    answer = await closed.client.get("/connectors", headers=[(b"authorization", f"Bearer {bearer}".encode("latin-1"))])
    assert answer.status_code == 401
    assert closed.callers.asked == []


async def test_while_the_cluster_cannot_be_asked_nobody_gets_in_and_health_is_told(closed: Rest) -> None:
    closed.callers.raises = CoordinatorNotAvailable("the cluster cannot be asked")
    for headers in ({}, ALICE):
        answer = await ask(closed, "GET /connectors", headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    answer = await ask(closed, "GET /health", {})
    assert (answer.status_code, answer.json().keys()) == (200, {"status", "message"})


async def test_an_open_cluster_asks_nobody(rest: Rest) -> None:
    assert (await rest.create("a")).status_code == 201
    for headers in ({}, {"authorization": "Basic YTpi"}, {"authorization": "Ticket x"}):
        assert (await ask(rest, "GET /connectors/a", headers)).status_code == 200
    assert rest.callers.asked == []


async def test_what_is_refused_is_refused_before_the_body_is_read(closed: Rest) -> None:
    async def body() -> Any:
        raise AssertionError("it is read")
        yield b""

    answer = await closed.client.post("/connectors", headers=ALICE, content=body())
    assert answer.status_code == 403


async def test_what_is_not_there_is_told_to_who_is_known(closed: Rest) -> None:
    assert (await ask(closed, "GET /nothing", {})).status_code == 401
    assert (await ask(closed, "GET /nothing")).status_code == 404
    assert (await ask(closed, "DELETE /connectors")).status_code == 405
    assert (await ask(closed, "HEAD /connectors/a")).status_code == 403


# --- names ---------------------------------------------------------------------------------------------------------


async def test_names_are_decoded_once_and_asked_about_as_they_are_used(closed: Rest) -> None:
    closed.callers.closed = False
    name = "a/status"
    assert (await closed.create(name)).status_code == 201
    closed.callers.closed = True
    closed.callers.allow("alice", "a", "DESCRIBE")
    assert (await ask(closed, f"GET /connectors/{quote(name, safe='')}/status")).status_code == 403
    closed.callers.allow("alice", name, "DESCRIBE")
    assert (await ask(closed, f"GET /connectors/{quote(name, safe='')}/status")).status_code == 200
    assert (await ask(closed, "GET /connectors/%61/status")).status_code == 200
    assert (await ask(closed, "GET /connectors/%62/status")).status_code == 403
    assert (await ask(closed, "GET /connectors/%FF/status")).status_code == 400


async def test_a_connector_that_is_called_as_all_are_is_nobodys(closed: Rest) -> None:
    """To a broker the name asks whether there is any that one may."""
    closed.callers.closed = False
    assert (await closed.create("*")).status_code == 201
    closed.callers.closed = True
    closed.callers.allow("alice", "*", *(one.value for one in Operation))
    for route in ("GET /connectors/*", "DELETE /connectors/%2A", "PUT /connectors/*/config"):
        assert (await ask(closed, route, body=body_of(route))).status_code == 403
    assert (await ask(closed, "POST /connectors", body={"name": "*", "config": SOURCE})).status_code == 403
    assert (await ask(closed, "GET /connectors")).json() == []


async def test_the_name_in_the_body_is_asked_about(closed: Rest) -> None:
    closed.callers.allow("alice", "alices", "CREATE")
    refused = await ask(closed, "POST /connectors", body={"name": "c", "config": SOURCE})
    assert (refused.status_code, refused.json()["message"]) == (403, "User:alice may not CREATE CONNECTOR c")
    assert "c" not in closed.herd.state.connectors
    assert (await ask(closed, "POST /connectors", body={"name": "alices", "config": SOURCE})).status_code == 201
    assert (await ask(closed, "POST /v1/plan", body={"name": "c", "config": SOURCE})).status_code == 403


@pytest.mark.parametrize(
    ("operation", "name", "status"),
    [
        ("CREATE", "new", 201),
        ("ALTER_CONFIGS", "new", 403),
        ("CREATE", "a", 403),
        ("ALTER_CONFIGS", "a", 200),
    ],
)
async def test_a_configuration_makes_or_changes(closed: Rest, operation: str, name: str, status: int) -> None:
    closed.callers.allow("alice", name, operation)
    before = dict(closed.herd.state.connectors)
    plan = await ask(closed, "POST /v1/plan", body={"name": name, "config": SOURCE})
    assert plan.status_code == (403 if status == 403 else 200)
    assert (await ask(closed, f"PUT /connectors/{name}/config", body=SOURCE)).status_code == status
    if status == 403:
        assert closed.herd.state.connectors == before


async def test_who_may_neither_does_not_learn_whether_it_is_there(closed: Rest) -> None:
    said = [
        (await ask(closed, f"PUT /connectors/{name}/config", body=SOURCE)).json()["message"].replace(f" {name}", "")
        for name in ("a", "none")
    ]
    assert said[0] == said[1]


async def test_what_is_taken_back_while_a_configuration_is_validated_counts(closed: Rest) -> None:
    closed.callers.allow("alice", "a", "ALTER_CONFIGS")
    before = closed.herd.state.connectors["a"].config
    validate = closed.hosts.validate

    async def slow(*args: Any, **more: Any) -> Any:
        closed.callers.rights["alice"].clear()
        return await validate(*args, **more)

    closed.hosts.validate = slow  # type: ignore[method-assign]
    changed = SOURCE | {"topic": "other"}
    assert (await ask(closed, "PUT /connectors/a/config", body=changed)).status_code == 403
    assert closed.herd.state.connectors["a"].config == before


async def test_lists_have_what_one_may_see(closed: Rest) -> None:
    assert (await ask(closed, "GET /connectors")).json() == []
    closed.callers.allow("alice", "b", "DESCRIBE")
    assert (await ask(closed, "GET /connectors")).json() == ["b"]
    expanded = await ask(closed, "GET /connectors?expand=info&expand=status")
    assert {name: set(one) for name, one in expanded.json().items()} == {"b": {"status"}}
    closed.callers.allow("alice", "b", "DESCRIBE_CONFIGS")
    expanded = await ask(closed, "GET /connectors?expand=info")
    assert {name: set(one) for name, one in expanded.json().items()} == {"b": {"info"}}


# --- the leader ----------------------------------------------------------------------------------------------------


async def test_the_leader_is_shown_a_ticket_and_never_a_credential(closed: Rest) -> None:
    closed.herd.lead(f"http://{LEADER}")
    closed.callers.allow("alice", "a", "ALTER", "DELETE")
    assert (await ask(closed, "PUT /connectors/%61/pause")).status_code == 200
    (ticket,) = closed.callers.tickets
    assert closed.forwarding.shown == [show_ticket(ticket)]
    made = closed.callers.tickets[ticket]
    assert made == ("alice", LEADER, "PUT /connectors/a/pause", {AccessQuestion("ALTER", "CONNECTOR", "a")})


async def test_a_ticket_to_make_a_connector_is_for_its_name(closed: Rest) -> None:
    closed.herd.lead(f"http://{LEADER}")
    closed.callers.allow("alice", "c", "CREATE")
    assert (await ask(closed, "POST /connectors", body={"name": "c", "config": SOURCE})).status_code == 200
    (made,) = closed.callers.tickets.values()
    assert {one.name for one in made.questions} == {"", "c"}


async def test_an_open_cluster_makes_no_tickets(rest: Rest) -> None:
    await rest.create("a")
    rest.herd.lead(f"http://{LEADER}")
    await ask(rest, "PUT /connectors/a/pause")
    assert (rest.forwarding.shown, rest.callers.tickets) == ([""], {})


async def test_where_another_leads_only_since_a_moment_ago_it_is_the_same(closed: Rest) -> None:
    closed.callers.allow("alice", "a", "ALTER")
    closed.herd.raises = NotLeader(f"http://{LEADER}")
    await ask(closed, "PUT /connectors/a/pause")
    assert [show_ticket(one) for one in closed.callers.tickets] == closed.forwarding.shown


async def test_a_leader_that_does_not_take_the_ticket_is_no_fault_of_the_caller(closed: Rest) -> None:
    closed.herd.lead(f"http://{LEADER}")
    closed.callers.allow("alice", "a", "ALTER")
    closed.forwarding.answers = Forwarded(401, b'{"error_code": 401, "message": "it is over"}')
    assert (await ask(closed, "PUT /connectors/a/pause")).status_code == 503


def shows(rest: Rest, *questions: AccessQuestion, at: str = ME, purpose: str, owner: str = "alice") -> dict[str, str]:
    return {"authorization": show_ticket(rest.callers.ticket(owner, at, purpose, *questions))}


ALTER: Final = AccessQuestion("ALTER", "CONNECTOR", "a")
PAUSE: Final = "PUT /connectors/a/pause"


async def test_the_leader_lets_in_who_shows_a_ticket_for_it(closed: Rest) -> None:
    closed.callers.allow("alice", "a", "ALTER")
    answer = await ask(closed, f"{PAUSE}?forward=false", shows(closed, ALTER, purpose=PAUSE))
    assert answer.status_code == 202
    closed.callers.rights["alice"].clear()
    answer = await ask(closed, f"{PAUSE}?forward=false", shows(closed, ALTER, purpose=PAUSE))
    assert answer.status_code == 403, "what its owner may counts"


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (lambda rest: shows(rest, ALTER, at=LEADER, purpose=PAUSE), 401),
        (lambda rest: shows(rest, ALTER, purpose="PUT /connectors/a/stop"), 401),
        (lambda rest: shows(rest, ALTER, purpose="DELETE /connectors/a"), 401),
        (lambda rest: shows(rest, AccessQuestion("ALTER", "CONNECTOR", "b"), purpose=PAUSE), 403),
        (lambda rest: shows(rest, IN_GROUP, purpose=PAUSE, owner="WORKER"), 403),
        (lambda rest: {"authorization": show_ticket(b"\xff" * 36)}, 401),
        (lambda rest: {"authorization": show_ticket(b"short")}, 401),
        (lambda rest: {"authorization": "Ticket "}, 401),
        (lambda rest: {"authorization": "Ticket \u00e9"}, 401),
        (lambda rest: {"authorization": "Ticket hrk_alice"}, 401),
    ],
)
async def test_no_other_ticket_does(closed: Rest, shown: Callable[[Rest], dict[str, str]], status: int) -> None:
    closed.callers.allow("alice", "a", "ALTER")
    closed.callers.allow("alice", "b", "ALTER")
    headers = [(name.encode(), value.encode("latin-1")) for name, value in shown(closed).items()]
    answer = await closed.client.put("/connectors/a/pause?forward=false", headers=headers)
    assert answer.status_code == status
    assert closed.herd.state.connectors["a"].target.value == "STARTED"


async def test_who_came_with_a_ticket_is_sent_nowhere_else(closed: Rest) -> None:
    closed.callers.allow("alice", "a", "ALTER")
    closed.herd.lead(f"http://{LEADER}")
    answer = await ask(closed, PAUSE, shows(closed, ALTER, purpose=PAUSE))
    assert (answer.status_code, closed.forwarding.sent) == (409, [])


def listed(names: Iterable[str]) -> bytes:
    return json.dumps({"verifications": [{"connector": name} for name in names]}).encode()


async def test_of_the_leaders_list_the_caller_is_told_what_it_may_see(closed: Rest) -> None:
    closed.herd.lead(f"http://{LEADER}")
    closed.callers.allow("alice", "b", "DESCRIBE")
    closed.forwarding.answers = Forwarded(200, listed("ab"))
    answer = await ask(closed, "GET /v1/verifications")
    assert [one["connector"] for one in answer.json()["verifications"]] == ["b"]
    (made,) = closed.callers.tickets.values()
    assert made == ("WORKER", LEADER, "GET /v1/verifications", {IN_GROUP})


async def test_the_leader_tells_all_to_a_worker_and_what_it_may_see_to_anybody_else(closed: Rest) -> None:
    route = "GET /v1/verifications"

    async def names(headers: dict[str, str]) -> list[str]:
        return sorted(one["connector"] for one in (await ask(closed, route, headers)).json()["verifications"])

    found = [type("V", (), {"connector": name})() for name in "ab"]
    closed.verifying.newest_first = lambda: found  # type: ignore[method-assign]
    closed.callers.allow("alice", "b", "DESCRIBE")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace_connect_worker.rpc.rest_verify._listed", lambda one: {"connector": one.connector})
        patch.setattr("services.connect.tests.kit.rest.the_document", lambda: type("D", (), {"check_answer": print})())
        assert await names(ALICE) == ["b"]
        assert await names(shows(closed, IN_GROUP, purpose=route, owner="WORKER")) == ["a", "b"]
        forged = shows(closed, IN_GROUP, purpose=route, owner="alice")
        assert await names(forged) == [], "who is not in the group may not say that it is a worker"


def test_rules_find_what_routes_find() -> None:
    rules = RouteRules(gate_routes())
    for route, row in ROUTES.items():
        method, path = route.split(" ")
        scope = {"type": "http", "method": method, "path": path.format(**GIVEN), "headers": []}
        found, given = rules.find(scope)
        assert found is row
        assert isinstance(row, Row)
        assert not row.parameter or given[row.parameter] == "a"
