"""
Any request that the OpenAPI document allows, and many that it does not: never a 5xx, always JSON, problems as problems.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from services.admin.tests.twin.memory_cluster import MemoryCluster
from services.admin.tests.twin.memory_coordinators import MemoryCoordinators
from services.admin.tests.twin.memory_messages import MemoryMessages
from services.admin.tests.twin.memory_transactions import MemoryTransactions
from services.admin.tests.twin.rest import check_against

from headrace_admin.config import Limits, TransactionLimits
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.messages import Messages
from headrace_admin.rpc.engines import Engines, Ports
from headrace_admin.rpc.foreign_pages import Hosts
from headrace_admin.rpc.rest import rest_app
from headrace_common.runtime.clock import SystemClock

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
json_only = {"content-type": "application/json"}
names = st.sampled_from(["t", "u", "t-1", "nope", "", ".", "..", "x" * 250, "ü", "a b", "%2F", "a\0", "?", "#"])


good_names = st.sampled_from(["t", "u", "t-1", "v"])
settings_known = st.sampled_from(["retention.ms", "segment.ms", "retention.bytes"])


class Impatient(SystemClock):
    """Nothing is waited for."""

    async def sleep_ms(self, ms: float) -> None:
        """At once."""


class World:
    """One application for many requests, on one event loop."""

    def __init__(self) -> None:
        cluster = MemoryCluster()
        cluster.start_coordinators(1)
        coordinators = MemoryCoordinators(cluster)
        self.coordinators = coordinators
        self.cluster = cluster
        self.transactions = MemoryTransactions(cluster)
        limits = Limits(body_bytes_max=64_000)
        self.app = rest_app(
            Engines.over(
                Administration(cluster, cluster, cluster),
                Messages(MemoryMessages(), cluster, limits),
                Ports(coordinators, self.transactions, Impatient()),
                TransactionLimits(),
            ),
            limits,
            ready=lambda: True,
            hosts=Hosts(),
        )
        self.answers: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        hooks = {"response": [check_against(self.app)]}
        self.client = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=json_only, event_hooks=hooks
        )
        api = self.app.openapi()
        self.schemas = api["components"]["schemas"]
        self.operations = [
            (method, path, operation) for path, methods in api["paths"].items() for method, operation in methods.items()
        ]

    def send(self, method: str, url: str, **request: Any) -> httpx.Response:
        return self.loop.run_until_complete(self.client.request(method, url, **request))

    def value(self, schema: Any, broken: bool) -> st.SearchStrategy[Any]:
        """A value that the schema allows; ``broken``: roughly, and at times anything else."""
        allowed = self._allowed(schema, broken)
        return st.one_of(allowed, allowed, allowed, anything) if broken else allowed

    def _allowed(self, schema: Any, broken: bool) -> st.SearchStrategy[Any]:
        if "$ref" in schema:
            return self._allowed(self.schemas[schema["$ref"].rsplit("/", 1)[1]], broken)
        for many in ("anyOf", "oneOf"):
            if many in schema:
                return st.one_of(*(self._allowed(one, broken) for one in schema[many]))
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        match schema.get("type"):
            case "object" if "properties" in schema:
                must = set(schema.get("required", ()))
                fields = {name: self.value(inner, broken) for name, inner in schema["properties"].items()}
                return st.fixed_dictionaries(
                    {n: s for n, s in fields.items() if n in must},
                    optional={n: s for n, s in fields.items() if n not in must},
                )
            case "object":
                if not broken:
                    return st.dictionaries(settings_known, st.sampled_from(["1000", "2000"]), max_size=2)
                known = st.sampled_from(["retention.ms", "cleanup.policy", "x"])
                return st.dictionaries(
                    known, st.sampled_from(["1", "-1", "delete", "compact", ""]) | st.text(max_size=5)
                )
            case "array":
                return st.lists(
                    self.value(schema["items"], broken), min_size=min(schema.get("minItems", 0), 3), max_size=3
                )
            case "integer":
                low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63)
                near = st.integers(low, min(high, low + 5))
                return near | st.sampled_from([low, high, low - 1, high + 1]) if broken else near
            case "boolean":
                return st.booleans()
            case "string":
                return names | st.text(max_size=10) if broken else good_names
            case "null":
                return st.none()
        return anything


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.run_until_complete(made.client.aclose())
    made.loop.close()


def check(answer: httpx.Response, what: str) -> None:
    assert answer.status_code < 500, f"{what}: {answer.status_code} {answer.text}"
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", what
        body = answer.json()
        assert {"type", "title", "status", "detail", "instance", "code", "retriable", "next_step"} <= body.keys()
        assert body["status"] == answer.status_code
    elif answer.status_code != 204:
        answer.json()


def test_whatever_the_document_allows(world: World) -> None:
    @settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(st.data())
    def one_request(data: st.DataObject) -> None:
        send_drawn(world, data)

    one_request()
    succeeded = [operation for operation, classes in world.answers.items() if 2 in classes]
    assert len(succeeded) > len(world.operations) // 2, "else most were refused at the door, and prove nothing"


def send_drawn(world: World, data: st.DataObject) -> None:
    method, path, operation = data.draw(st.sampled_from(world.operations))
    broken = data.draw(st.booleans())
    url, query = path, {}
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in {"topic", "confirm", "group", "transactional_id"}:
            value = data.draw(names if broken else st.just("t"))
        elif parameter["name"] == "offset" and not broken:
            value = data.draw(st.sampled_from(["0", "1", "earliest", "latest"]))
        else:
            value = data.draw(world.value(parameter["schema"], broken))
        if parameter["in"] == "path":
            url = url.replace(f"{{{parameter['name']}}}", quote(str(value), safe=""))
        elif not broken or data.draw(st.booleans()):
            query[parameter["name"]] = str(value)
    request: dict[str, Any] = {"params": query} if query else {}
    if "requestBody" in operation:
        body = data.draw(world.value(operation["requestBody"]["content"]["application/json"]["schema"], broken))
        request["content"] = json.dumps(body)
        request["headers"] = {"content-type": "application/json"}
    world.send("POST", "/v1/topics", json={"name": "t", "partitions": 3})  # it may be there already, or be deleted
    world.coordinators.commit("t", {("t", 0): 0})
    world.transactions.begin("t", 5)
    world.cluster.write("t", 0, 5, first_offset=0, since_ms=0)
    answer = world.send(method.upper(), url, **request)
    check(answer, f"{method} {url} {request}")
    world.answers[(method, path)].add(answer.status_code // 100)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.binary(max_size=300))
def test_any_bytes_as_a_body(world: World, data: st.DataObject, body: bytes) -> None:
    writing = [(m, p) for m, p, o in world.operations if "requestBody" in o]
    method, path = data.draw(st.sampled_from(writing))
    content_type = data.draw(st.sampled_from(["application/json", "application/json; charset=x", "text/plain"]))
    url = path.replace("{topic}", "t").replace("{group}", "t").replace("{broker}", "1")
    url = url.replace("{transactional_id}", "t")
    answer = world.send(method.upper(), url, content=body, headers={"content-type": content_type})
    check(answer, f"{method} {url} {body!r}")


@settings(max_examples=200, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.sampled_from(["GET", "POST", "DELETE", "PATCH"])
)
def test_any_path(world: World, path: str, method: str) -> None:
    check(world.send(method, "/" + quote(path, safe="/")), f"{method} {path!r}")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20)), min_size=1, max_size=5)
)
def test_any_bytes_of_records_come_back(world: World, pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    from base64 import b64decode, b64encode

    def encoded(data: bytes | None) -> Any:
        return None if data is None else {"base64": b64encode(data).decode()}

    world.send("POST", "/v1/topics", json={"name": "bytes"})
    records = [{"key": encoded(k), "value": encoded(v)} for k, v in pairs]
    written = world.send("POST", "/v1/topics/bytes/records", json={"records": records}).json()["records"]
    for form in ("auto", "json", "base64", "text"):
        where = {"offset": str(written[0]["offset"]), "form": form, "limit": str(len(pairs))}
        read = world.send("GET", "/v1/topics/bytes/partitions/0/records", params=where).json()["records"]

        def decoded(content: Any) -> bytes | None:
            match content:
                case None:
                    return None
                case {"text": text}:
                    return str(text).encode()
                case {"base64": text}:
                    return b64decode(text)
            return None

        for (key, value), record in zip(pairs, read, strict=True):
            for data, content in ((key, record["key"]), (value, record["value"])):
                if content is not None and "json" in content:
                    assert data is not None
                    assert json.loads(data) == content["json"]
                else:
                    assert decoded(content) == data
