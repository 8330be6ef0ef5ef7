"""Keys are fetched from servers that answer well, badly, slowly or without end; from files; from an API server."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from libs.common.tests.kit import api_server
from libs.common.tests.kit.authority import BROKER, Authority
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.issuer import IDP_ISSUER, NOW_MS, jwk, key_set, make_key

from headrace_common.core.access.key_sets import KEY_SET_BYTES_MAX, read_key_set
from headrace_controller.adapters import issuer_keys
from headrace_controller.adapters.issuer_keys import IssuerKeySource
from headrace_controller.core.issuing import Address, Fetched, InFile, WantedIssuer, of_kubernetes
from headrace_controller.ports import KeysUnavailable

KEYS = key_set(jwk(make_key("RS256")), jwk(make_key("ES256")))
FOUND = Fetched(read_key_set(KEYS), NOW_MS)
Script: TypeAlias = Callable[[ssl.SSLSocket], None]
"""What the server does once a request is there."""


def answer(status: str = "200 OK", body: bytes = KEYS, **headers: str) -> bytes:
    head = {"Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in head.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


@dataclass
class Server:
    """One of HTTPS, on this machine, that does what a test says."""

    authority: Authority
    ca_file: Path
    port: int = 0
    script: Script = lambda line: line.sendall(answer())
    heads: list[bytes] = field(default_factory=list)
    """Of requests."""
    over: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    """The last client is gone."""

    def address(self, **other: Any) -> Address:
        return replace(Address("127.0.0.1", self.port, "/keys?a=b", str(self.ca_file)), **other)

    @contextmanager
    def serving(self, cert: Path, key: Path) -> Iterator[Server]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port = listening.getsockname()[1]
            thread = threading.Thread(target=self._serve, args=(listening, context))
            thread.start()
            try:
                yield self
            finally:
                self.over.set()
                with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    pass
                thread.join()

    def _serve(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        while True:
            plain, _ = listening.accept()
            if self.over.is_set():
                plain.close()
                return
            plain.settimeout(20)
            self.ended.clear()
            with suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as line:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    some = line.recv(4_096)
                    if not some:
                        break
                    head += some
                self.heads.append(head)
                self.script(line)
            self.ended.set()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    authority = Authority()
    files = authority.files(tmp_path / "server")
    made = Server(authority, files.ca)
    with made.serving(files.cert, files.key) as serving:
        yield serving


@pytest.fixture
def source() -> IssuerKeySource:
    return IssuerKeySource(FakeClock(NOW_MS), {})


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for 0.3 s, and not for 10."""
    monkeypatch.setattr(issuer_keys, "FETCH_S_MAX", 0.3)


def of(where: Any) -> WantedIssuer:
    return WantedIssuer(IDP_ISSUER, where)


async def refusal(source: IssuerKeySource, where: Any) -> str:
    with pytest.raises(KeysUnavailable) as raised:
        await source.fetch(of(where))
    assert len(str(raised.value)) < 500
    return str(raised.value)


async def test_keys_are_fetched(server: Server, source: IssuerKeySource) -> None:
    assert await source.fetch(of(server.address())) == FOUND
    head = server.heads[0].decode().lower()
    assert head.startswith("get /keys?a=b http/1.1\r\n")
    assert f"host: 127.0.0.1:{server.port}" in head
    assert "accept-encoding: identity" in head
    assert "authorization" not in head
    assert "cookie" not in head


GOOD: dict[str, bytes] = {
    "another type": answer(Content_Type="text/html"),
    "no type": answer(Content_Type=""),
    "in pieces": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(f"{len(some):x}\r\n".encode() + some + b"\r\n" for some in (KEYS[:100], KEYS[100:]))
    + b"0\r\n\r\n",
    "until it hangs up": b"HTTP/1.0 200 OK\r\n\r\n" + KEYS,
}


@pytest.mark.parametrize("raw", GOOD.values(), ids=GOOD)
async def test_keys_are_what_is_read_as_keys_however_it_is_sent(
    server: Server, source: IssuerKeySource, raw: bytes
) -> None:
    server.script = lambda line: line.sendall(raw)
    assert await source.fetch(of(server.address())) == FOUND


BAD: dict[str, tuple[bytes, str]] = {
    "another place": (answer("302 Found", Location="https://169.254.169.254/"), "it answers 302, see 'https://169.25"),
    "another place for ever": (answer("308 Permanent Redirect", Location="/"), "name it in jwks"),
    "another place with keys": (answer("300 Multiple Choices"), "it answers 300"),
    "not found": (answer("404 Not Found"), "it answers 404"),
    "an error": (answer("503 Service Unavailable"), "it answers 503"),
    "no content": (answer("204 No Content", b""), "it answers 204"),
    "a page": (answer(body=b"<html>sign in</html>", Content_Type="application/json"), "no set of keys: it is no JSON"),
    "something packed": (answer(body=b"\x1f\x8b" + bytes(20), Content_Encoding="gzip"), "the encoding 'gzip'"),
    "nothing": (b"", "RemoteDisconnected"),
    "another protocol": (b"SSH-2.0-OpenSSH_9\r\n", "BadStatusLine"),
    "half of it": (answer()[:-50], "no set of keys"),
    "no keys": (answer(body=b'{"keys":[]}'), "the list is empty"),
    "a secret": (answer(body=key_set({"kty": "oct", "k": "c2VjcmV0"})), "is of type 'oct'"),
    "a length that is none": (answer(Content_Length="-5", body=b""), "no set of keys"),
    "many headers": (answer(**{f"X-{number}": "x" for number in range(200)}), "100 headers"),
    "a header without end": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "LineTooLong"),
    "more than it may": (answer(body=b" " * (KEY_SET_BYTES_MAX + 1)), f"more than {KEY_SET_BYTES_MAX}"),
    "as much as it may, and no key": (answer(body=b" " * KEY_SET_BYTES_MAX), "no JSON"),
}


@pytest.mark.parametrize(("raw", "said"), BAD.values(), ids=BAD)
async def test_what_is_no_answer_with_keys_is_refused(
    server: Server, source: IssuerKeySource, raw: bytes, said: str
) -> None:
    server.script = lambda line: line.sendall(raw)
    assert said in await refusal(source, server.address())
    assert len(server.heads) == 1, "it asked nobody else, and not again"


async def test_of_ten_megabytes_the_first_256_kib_are_read(server: Server, source: IssuerKeySource) -> None:
    sent = 0

    def pour(line: ssl.SSLSocket) -> None:
        nonlocal sent
        line.sendall(answer(body=b"", Content_Length=str(10 << 20)))
        while sent < 10 << 20:
            line.sendall(bytes(16 << 10))
            sent += 16 << 10

    server.script = pour
    assert "more than" in await refusal(source, server.address())
    assert server.ended.wait(20)
    assert sent < 8 << 20, "the rest had nobody to read it; what was sent beyond lies in the sockets' buffers"


def silent(line: ssl.SSLSocket) -> None:
    with suppress(OSError):
        line.recv(1)


def dripping(start: bytes) -> Script:
    pause = threading.Event()

    def drip(line: ssl.SSLSocket) -> None:
        line.sendall(start)
        with suppress(OSError):
            while True:
                line.sendall(b"x")
                pause.wait(0.01)

    return drip


SLOW: dict[str, Script] = {
    "silent": silent,
    "with a head that never ends": dripping(b"HTTP/1.1 200 OK\r\nX: "),
    "with a body that never ends": dripping(answer(body=b"", Content_Length="200000")),
}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("script", SLOW.values(), ids=SLOW)
async def test_one_that_is_slow_is_given_up_and_hung_up_on(
    server: Server, source: IssuerKeySource, script: Script
) -> None:
    server.script = script
    assert await refusal(source, server.address()) == "there was no whole answer within 0 s"
    assert server.ended.wait(20), "nobody reads it any more, in no thread"


@pytest.mark.usefixtures("soon")
async def test_one_that_does_not_even_speak_tls_is_given_up(source: IssuerKeySource) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = Address("127.0.0.1", listening.getsockname()[1], "/")
        assert "no whole answer" in await refusal(source, address)
        plain, _ = listening.accept()
        with plain:
            plain.settimeout(20)
            while plain.recv(4_096):
                pass  # it hung up


async def test_a_server_of_another_ca_or_name_is_not_believed(
    tmp_path: Path, server: Server, source: IssuerKeySource
) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in await refusal(source, server.address(ca_file=None))
    other = Authority().files(tmp_path / "other").ca
    assert "CERTIFICATE_VERIFY_FAILED" in await refusal(source, server.address(ca_file=str(other)))
    assert "mismatch" in await refusal(source, server.address(host="localhost"))
    assert "missing" in await refusal(source, server.address(ca_file=str(tmp_path / "missing")))
    assert not any(server.heads), "no request was sent"


async def test_a_certificate_that_is_over_is_not_believed(tmp_path: Path, source: IssuerKeySource) -> None:
    authority = Authority()
    files = authority.files(tmp_path / "server")
    authority.write(files, authority.make(BROKER, age=timedelta(days=10), life=timedelta(days=1)))
    with Server(authority, files.ca).serving(files.cert, files.key) as server:
        assert "certificate has expired" in await refusal(source, server.address())


async def test_nobody_there(source: IssuerKeySource) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert "ConnectionRefusedError" in await refusal(source, Address("127.0.0.1", port, "/"))


async def test_no_proxy_is_asked(server: Server, source: IssuerKeySource, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await source.fetch(of(server.address())) == FOUND


async def test_keys_in_a_file(tmp_path: Path, source: IssuerKeySource) -> None:
    path = tmp_path / "keys.json"
    assert "No such file" in await refusal(source, InFile(str(path)))
    path.write_bytes(KEYS)
    assert await source.fetch(of(InFile(str(path)))) == FOUND
    path.write_bytes(b" " * (KEY_SET_BYTES_MAX + 1))
    assert "more than" in await refusal(source, InFile(str(path)))
    assert "IsADirectory" in await refusal(source, InFile(str(tmp_path)))


class ApiServer:
    """Of Kubernetes, as a test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        self.answers: dict[str, tuple[int, Any]] = {
            "/.well-known/openid-configuration": (200, {"issuer": "https://k", "jwks_uri": "https://evil/keys"}),
            "/openid/v1/jwks": (200, json.loads(KEYS)),
        }

    def __call__(self, method: str, path: str, authorization: str | None, _: Any) -> tuple[int, Any]:
        self.asked.append((method, path, authorization))
        return self.answers[path]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[tuple[ApiServer, IssuerKeySource]]:
    answering = ApiServer()
    files = api_server.make_certificates(tmp_path / "api")
    with api_server.serving(answering, files) as env:
        account = api_server.make_account(tmp_path / "account", files)
        yield answering, IssuerKeySource(FakeClock(NOW_MS), env, account)


PODS = of_kubernetes("headrace:streams/main")


async def test_an_api_server_says_its_name_and_its_keys(pod: tuple[ApiServer, IssuerKeySource]) -> None:
    answering, source = pod
    assert await source.fetch(PODS) == replace(FOUND, iss="https://k")
    bearer = f"Bearer {api_server.BEARER}"
    assert answering.asked == [
        ("GET", "/.well-known/openid-configuration", bearer),
        ("GET", "/openid/v1/jwks", bearer),
    ]


REFUSED: dict[str, tuple[str, tuple[int, Any], str]] = {
    "no right": ("/openid/v1/jwks", (403, {"reason": "Forbidden"}), "system:service-account-issuer-discovery"),
    "an error": ("/.well-known/openid-configuration", (500, {}), "500"),
    "another place": ("/openid/v1/jwks", (302, {}), "302"),
    "no name": ("/.well-known/openid-configuration", (200, {}), "names no issuer"),
    "no keys": ("/openid/v1/jwks", (200, {"keys": []}), "no set of keys"),
}


@pytest.mark.parametrize(("path", "answered", "said"), REFUSED.values(), ids=REFUSED)
async def test_an_api_server_that_does_not_say_it(
    pod: tuple[ApiServer, IssuerKeySource], path: str, answered: tuple[int, Any], said: str
) -> None:
    answering, source = pod
    answering.answers[path] = answered
    with pytest.raises(KeysUnavailable) as raised:
        await source.fetch(PODS)
    assert said in str(raised.value)


async def test_where_there_is_no_pod(source: IssuerKeySource) -> None:
    with pytest.raises(KeysUnavailable, match="no pod"):
        await source.fetch(PODS)
