"""
Any request that the OpenAPI document allows, and many that it does not: never a 5xx, always JSON, problems as problems.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, closing, suppress
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from libs.sdk.tests.kit.cluster import LabCluster
from services.admin.tests.kit.rest import Rest, served
from services.admin.tests.kit.world import World, opened

from headrace.errors import HeadraceError
from headrace_lab.loop import LabLoop

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


class Requests:
    """One application for many requests, on one event loop."""

    def __init__(self, rest: Rest, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.world, self.run = rest.world, run
        self.client = rest.client
        self.answers: dict[tuple[str, str], set[int]] = defaultdict(set)
        api = rest.app.openapi()
        self.schemas = api["components"]["schemas"]
        self.operations = [
            (method, path, operation) for path, methods in api["paths"].items() for method, operation in methods.items()
        ]

    def send(self, method: str, url: str, **request: Any) -> httpx.Response:
        answer: httpx.Response = self.run(self.client.request(method, url, **request))
        return answer

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
def requests() -> Iterator[Requests]:
    loop = LabLoop(7)
    with closing(LabCluster(2, loop=loop)) as lab, asyncio.Runner(loop_factory=lambda: loop) as runner:
        stack = AsyncExitStack()

        async def opening() -> Rest:
            world = await stack.enter_async_context(opened(lab))
            return await stack.enter_async_context(served(world, raise_app_exceptions=True))

        yield Requests(runner.run(opening()), runner.run)
        runner.run(stack.aclose())


def check(answer: httpx.Response, what: str) -> None:
    assert answer.status_code < 500, f"{what}: {answer.status_code} {answer.text}"
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", what
        body = answer.json()
        assert {"type", "title", "status", "detail", "instance", "code", "retriable", "next_step"} <= body.keys()
        assert body["status"] == answer.status_code
    elif answer.status_code != 204:
        answer.json()


def test_whatever_the_document_allows(requests: Requests) -> None:
    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(st.data())
    def one_request(data: st.DataObject) -> None:
        send_drawn(requests, data)

    one_request()
    succeeded = [operation for operation, classes in requests.answers.items() if 2 in classes]
    assert len(succeeded) > len(requests.operations) // 2, "else most were refused at the door, and prove nothing"


async def prepare(world: World) -> None:
    """A group and a transaction have the name too, where they may."""
    with suppress(HeadraceError, AssertionError):
        await world.commit("t", {("t", 0): 0})
        await world.begin("t", ("t", 0))


def send_drawn(requests: Requests, data: st.DataObject) -> None:
    method, path, operation = data.draw(st.sampled_from(requests.operations))
    broken = data.draw(st.booleans())
    url, query = path, {}
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in {"topic", "confirm", "group", "transactional_id"}:
            value = data.draw(names if broken else st.just("t"))
        elif parameter["name"] == "offset" and not broken:
            value = data.draw(st.sampled_from(["0", "1", "earliest", "latest"]))
        else:
            value = data.draw(requests.value(parameter["schema"], broken))
        if parameter["in"] == "path":
            url = url.replace(f"{{{parameter['name']}}}", quote(str(value), safe=""))
        elif not broken or data.draw(st.booleans()):
            query[parameter["name"]] = str(value)
    request: dict[str, Any] = {"params": query} if query else {}
    if "requestBody" in operation:
        body = data.draw(requests.value(operation["requestBody"]["content"]["application/json"]["schema"], broken))
        request["content"] = json.dumps(body)
        request["headers"] = {"content-type": "application/json"}
    requests.send("POST", "/v1/topics", json={"name": "t", "partitions": 3})  # it may be there already, or be deleted
    requests.run(prepare(requests.world))
    answer = requests.send(method.upper(), url, **request)
    check(answer, f"{method} {url} {request}")
    requests.answers[(method, path)].add(answer.status_code // 100)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.binary(max_size=300))
def test_any_bytes_as_a_body(requests: Requests, data: st.DataObject, body: bytes) -> None:
    writing = [(m, p) for m, p, o in requests.operations if "requestBody" in o]
    method, path = data.draw(st.sampled_from(writing))
    content_type = data.draw(st.sampled_from(["application/json", "application/json; charset=x", "text/plain"]))
    url = path.replace("{topic}", "t").replace("{group}", "t").replace("{broker}", "1")
    url = url.replace("{transactional_id}", "t")
    answer = requests.send(method.upper(), url, content=body, headers={"content-type": content_type})
    check(answer, f"{method} {url} {body!r}")


@settings(max_examples=200, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.sampled_from(["GET", "POST", "DELETE", "PATCH"])
)
def test_any_path(requests: Requests, path: str, method: str) -> None:
    check(requests.send(method, "/" + quote(path, safe="/")), f"{method} {path!r}")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20)), min_size=1, max_size=5)
)
def test_any_bytes_of_records_come_back(requests: Requests, pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    from base64 import b64decode, b64encode

    def encoded(data: bytes | None) -> Any:
        return None if data is None else {"base64": b64encode(data).decode()}

    requests.send("POST", "/v1/topics", json={"name": "bytes"})
    records = [{"key": encoded(k), "value": encoded(v)} for k, v in pairs]
    written = requests.send("POST", "/v1/topics/bytes/records", json={"records": records}).json()["records"]
    for form in ("auto", "json", "base64", "text"):
        where = {"offset": str(written[0]["offset"]), "form": form, "limit": str(len(pairs))}
        read = requests.send("GET", "/v1/topics/bytes/partitions/0/records", params=where).json()["records"]

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
