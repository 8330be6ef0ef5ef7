"""The adapter of schema registries, against a server that speaks Confluent's REST interface."""

from __future__ import annotations

import json
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

from headrace_streams import App, SchemaRegistry, avro
from headrace_streams.core.errors import RegistryRefused, RegistryUnavailable
from headrace_streams.core.formats.framing import Reference, SchemaText
from headrace_streams.testing import Driver

ORDER = SchemaText("AVRO", '{"type":"record","name":"Order","fields":[{"name":"user","type":"string"}]}')


@dataclass
class Rest:
    """A registry behind a port of this machine."""

    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    """Each as it was registered, with its subject; its id is its place, from 1 on."""
    asked: list[str] = field(default_factory=list)
    authorization: str | None = None
    """That it wants."""
    instead: tuple[int, bytes] | None = None
    """What it answers whatever it is asked."""

    def answer(self, method: str, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        """Status and body."""
        self.asked.append(f"{method} {path}")
        if self.instead is not None:
            return self.instead
        if self.authorization not in (None, authorization):
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        match [unquote(part) for part in path.split("/")[1:]]:
            case ["schemas", "ids", number]:
                if not 1 <= int(number) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, {name: one for name, one in self.schemas[int(number) - 1].items() if name != "subject"}
            case ["subjects", subject, "versions"]:
                one = {"subject": subject, **body}
                if one not in self.schemas:
                    self.schemas.append(one)
                return 200, {"id": self.schemas.index(one) + 1}
            case ["subjects", subject, "versions", version]:
                listed = [one for one in self.schemas if one["subject"] == subject]
                if not listed:
                    return 404, {"error_code": 40401, "message": "Subject not found"}
                return 200, listed[-1 if version == "latest" else int(version) - 1]
            case ["subjects", subject]:
                one = {"subject": subject, **body}
                if one not in self.schemas:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, {"id": self.schemas.index(one) + 1}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@pytest.fixture
def rest() -> Iterator[Rest]:
    """A registry that is empty."""
    registry = Rest()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.handle_one(None)

        def do_POST(self) -> None:
            self.handle_one(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def handle_one(self, body: Any) -> None:
            status, answer = registry.answer(self.command, self.path, body, self.headers["Authorization"])
            raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


def test_a_program_runs_with_a_registry(rest: Rest) -> None:
    def program() -> App:
        app = App("copy")
        app.stream("in", value=avro(ORDER.text, registry=rest.url)).to("out", value=avro(registry=rest.url))
        return app

    with Driver(program()) as driver:
        driver.pipe("in", [{"user": "ann"}, {"user": "bob"}])
        driver.pipe("in", [{"user": "cid"}])
        assert [row["user"] for row in driver.read("out")] == ["ann", "bob", "cid"]
    assert rest.asked == [
        "POST /subjects/in-value/versions",
        "GET /schemas/ids/1",
        "POST /subjects/out-value/versions",
        "GET /subjects/out-value/versions/latest",
        "GET /schemas/ids/2",
    ]
    assert rest.schemas[0] == {"subject": "in-value", "schema": ORDER.text}


def test_schemas_are_registered_and_found(rest: Rest) -> None:
    registry = SchemaRegistry(rest.url + "/")
    assert registry.url == rest.url
    assert registry.find("a/b c", ORDER) is None
    assert registry.latest("a/b c") is None
    assert registry.register("a/b c", ORDER) == 1
    assert registry.register("a/b c", ORDER) == 1
    assert registry.find("a/b c", ORDER) == 1
    assert registry.latest("a/b c") == ORDER
    json_schema = SchemaText("JSON", "{}")
    assert registry.register("j", json_schema) == 2
    assert registry.by_id(2) == json_schema


def test_an_id_is_asked_for_once(rest: Rest) -> None:
    now = [0.0]

    class Still:
        def monotonic_ms(self) -> float:
            return now[0]

    still: Any = Still()
    registry = SchemaRegistry(rest.url, clock=still)
    assert [registry.by_id(1) for _ in range(3)] == [None] * 3
    assert len(rest.asked) == 1
    registry.register("s", ORDER)
    now[0] = 10_000.0
    assert [registry.by_id(1) for _ in range(3)] == [ORDER] * 3
    assert len(rest.asked) == 3


def test_references_come_along(rest: Rest) -> None:
    registry = SchemaRegistry(rest.url)
    money = SchemaText("AVRO", '{"type":"record","name":"Money","fields":[{"name":"cents","type":"long"}]}')
    registry.register("money", money)
    price = '{"type":"record","name":"Price","fields":[{"name":"eur","type":"Money"}]}'
    registry.register("prices-value", SchemaText("AVRO", price, (Reference("Money", "money", 1, money),)))
    assert rest.schemas[1]["references"] == [{"name": "Money", "subject": "money", "version": 1}]
    assert registry.by_id(2) == SchemaText("AVRO", price, (Reference("Money", "money", 1, money),))
    assert str(App("a").stream("prices", value=avro(registry=rest.url)).schema.field("eur").type) == (
        "struct<cents: int64 not null>"
    )


def test_who_asks_is_told(rest: Rest) -> None:
    rest.authorization = f"Basic {b64encode(b'ann:p@ss').decode()}"
    address = rest.url.removeprefix("http://")
    with pytest.raises(RegistryRefused, match=r"401: Unauthorized; say who asks, with user:password@ in the URL"):
        SchemaRegistry(rest.url).by_id(1)
    known = SchemaRegistry(f"http://ann:p%40ss@{address}")
    assert known.by_id(1) is None
    assert known.url == rest.url
    rest.authorization = "Bearer t"
    assert SchemaRegistry(rest.url, token="t").by_id(1) is None
    with pytest.raises(RegistryRefused) as told:
        known.by_id(2)
    assert "p@ss" not in str(told.value)
    assert "p%40ss" not in str(told.value)


@pytest.mark.parametrize(
    ("instead", "error", "message"),
    [
        ((500, b'{"error_code": 50001, "message": "store"}'), RegistryUnavailable, "was answered with 500: store"),
        ((429, b""), RegistryUnavailable, "was answered with 429"),
        ((200, b"<html>"), RegistryUnavailable, "was answered with 200: b'<html>'"),
        ((200, b"[1]"), RegistryUnavailable, "was answered with 200"),
        ((200, b'{"schema": 7}'), RegistryUnavailable, "answered {'schema': 7}, as no schema registry does"),
        ((404, b"not here"), RegistryRefused, "404: b'not here'; is this the address of a schema registry"),
        ((302, b""), RegistryRefused, "is this the address of a schema registry"),
        ((409, b'{"error_code": 409, "message": "incompatible"}'), RegistryRefused, "incompatible; mend the schema"),
    ],
)
def test_odd_answers_are_told(rest: Rest, instead: Any, error: type[Exception], message: str) -> None:
    rest.instead = instead
    with pytest.raises(error, match=message) as told:
        SchemaRegistry(rest.url).by_id(1)
    assert rest.url in str(told.value)


def test_a_registry_that_refers_to_itself_is_refused(rest: Rest) -> None:
    rest.instead = (200, b'{"schema": "x", "references": [{"name": "n", "subject": "s", "version": 1}]}')
    with pytest.raises(RegistryRefused, match="refers to others more than 20 deep"):
        SchemaRegistry(rest.url).by_id(1)


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(RegistryUnavailable, match=f"the schema registry at http://127.0.0.1:{port} does not answer"):
        SchemaRegistry(f"http://127.0.0.1:{port}").by_id(1)
