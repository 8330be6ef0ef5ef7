"""Who gets past the gate of REST, and what a route finds behind it."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.closed import Rows, bearing, key_of, key_text, user
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from headrace_common.core.access.grants import Grant
from headrace_common.core.access.principal import Grantee
from headrace_common.core.access.resources import Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.image import EMPTY_IMAGE
from headrace_common.http.access_gate import AccessGate
from headrace_common.rpc.access_rules import ANYBODY, NOBODY, NODES, AsksAny, Rule, Wants, on_cluster, on_each
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.runtime.access_gate import Access, by_itself, current_bearer, current_rights, current_shown
from headrace_common.runtime.clock import SystemClock

READ, TOPIC = Operation.READ, ResourceType.TOPIC
RULES: Final[dict[Grantee, frozenset[Grant]]] = {user("alice"): frozenset({allow(TOPIC, literal("orders"), READ)})}
KEYS: Final = (key_of("alice"), key_of("bob"), key_of("late", expires_ms=2_000))
ROUTES: Final[dict[str, Rule]] = {
    "/any": ANYBODY,
    "/health": NOBODY,
    "/nodes": NODES,
    "/orders": on_each(READ, TOPIC, lambda scope: [scope["path"].strip("/")]),
    "/either": AsksAny(lambda _: (Wants(Operation.ALTER, ResourceType.CLUSTER), Wants(READ, TOPIC, "orders"))),
    "/cluster": on_cluster(Operation.ALTER),
}


async def tell(scope: Scope, receive: Receive, send: Send) -> None:
    """A route that reads its body and says for whom it runs."""
    await receive()
    rights, shown = current_rights(), current_shown()
    said: dict[str, Any] = {
        "who": str(shown.caller.principal),
        "host": shown.caller.host,
        "bearer": current_bearer(),
        "orders": rights.may(READ, TOPIC, "orders"),
    }
    with by_itself():
        said["itself"] = [current_bearer(), current_rights().may(Operation.ALTER, TOPIC, "any")]
    await JSONResponse(said)(scope, receive, send)


async def ask(access: Access, path: str, headers: dict[str, str]) -> httpx.Response:
    gate = AccessGate(tell, access, lambda scope: ROUTES[scope["path"]])
    transport = httpx.ASGITransport(gate, client=("10.0.0.9", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://it") as client:
        return await client.get(path, headers=headers)


def rows(mode: Mode) -> Access:
    return Rows(mode, RULES, keys=KEYS).access()


@pytest.mark.parametrize(
    ("path", "who", "status"),
    [
        ("/any", "alice", 200),
        ("/any", "bob", 200),
        ("/any", None, 401),
        ("/any", "late", 401),
        ("/any", "stranger", 401),
        ("/orders", "alice", 200),
        ("/orders", "bob", 403),
        ("/orders", None, 401),
        ("/either", "alice", 200),
        ("/either", "bob", 403),
        ("/cluster", "alice", 403),
        ("/nodes", "alice", 403),
        ("/health", None, 200),
        ("/health", "stranger", 200),
    ],
)
async def test_a_closed_cluster_lets_in_who_may(path: str, who: str | None, status: int) -> None:
    answer = await ask(rows(Mode.CLOSED), path, bearing(who))
    assert answer.status_code == status, answer.text
    assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    if status == 401:
        assert "Authorization: Bearer hrk_" in answer.json()["next_step"]
        assert who is None or key_text(who) not in answer.text


@pytest.mark.parametrize("mode", [Mode.OPEN, Mode.PERMISSIVE])
@pytest.mark.parametrize("who", ["alice", "bob", "stranger", None])
async def test_all_get_in_while_it_is_not_closed(mode: Mode, who: str | None) -> None:
    for path in ROUTES.keys() - {"/nodes"}:
        assert (await ask(rows(mode), path, bearing(who))).status_code == 200


async def test_a_route_finds_its_caller() -> None:
    access = rows(Mode.CLOSED)
    told = (await ask(access, "/any", bearing("alice"))).json()
    own = {"who": "User:alice", "host": "10.0.0.9", "bearer": key_text("alice"), "orders": True, "itself": [None, True]}
    assert told == own
    assert not (await ask(access, "/any", bearing("bob"))).json()["orders"]


async def test_what_needs_no_credential_is_told_to_nobody_in_particular() -> None:
    told = (await ask(rows(Mode.CLOSED), "/health", bearing("alice"))).json()
    assert told == {"who": "User:ANONYMOUS", "host": None, "bearer": None, "orders": False, "itself": [None, True]}


async def test_another_scheme_is_refused_once_it_is_closed() -> None:
    basic = {"authorization": "Basic YTpi"}
    assert (await ask(rows(Mode.OPEN), "/any", basic)).json()["who"] == "User:ANONYMOUS"
    refused = await ask(rows(Mode.CLOSED), "/any", basic)
    assert refused.status_code == 401


async def test_before_there_is_an_image_nobody_is_known() -> None:
    unknowing = Access(lambda: EMPTY_IMAGE, NodeGate(), SystemClock())
    assert (await ask(unknowing, "/any", bearing("alice"))).status_code == 503
    assert (await ask(unknowing, "/health", {})).status_code == 200


@pytest.mark.parametrize("who", [None, "bob"])
async def test_who_is_refused_is_not_read(who: str | None) -> None:
    sent: list[Message] = []

    async def receive() -> Any:
        raise AssertionError("it was read")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in bearing(who).items()]
    scope = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"", "headers": headers}
    await AccessGate(tell, rows(Mode.CLOSED), lambda scope: ROUTES[scope["path"]])(scope, receive, send)
    assert sent[0]["status"] == (401 if who is None else 403)


async def test_what_is_no_request_passes() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    await AccessGate(app, rows(Mode.CLOSED), lambda _: ANYBODY)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]
