"""``headrace tls check``: how real listeners speak, one of each kind."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from libs.common.tests.kit.authority import BROKER, Authority
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_common.rpc.credentials import Pem, of_server
from headrace_common.runtime.tls_config import TlsFiles

runner = CliRunner()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TlsFiles:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CA", raising=False)
    return Authority().files(tmp_path / "tls")


@contextmanager
def of_grpc(files: TlsFiles | None, *, demands: bool = False) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    if files is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pem = Pem(files.ca.read_bytes(), files.cert.read_bytes(), files.key.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", of_server(grpc, pem, client_certificates=demands))
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def of_python(files: TlsFiles, version: ssl.TLSVersion, *, demands: bool = False) -> Iterator[str]:
    """A server of HTTP/1.1 that says that it does not know what it is asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.maximum_version = version
    if demands:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.ca)

    def serve(connection: socket.socket) -> None:
        with connection, context.wrap_socket(connection, server_side=True) as secure:
            if secure.recv(1_000):
                secure.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(serve) as at:
        yield at


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Each connection is given to ``serve``, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with ExitStack() as quietly:
                    quietly.push(lambda *error: isinstance(error[1], OSError))
                    serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield "{}:{}".format(*server.getsockname())
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def check(*argv: str, code: int = 0) -> Any:
    """What it says, as data, and on stderr."""
    result = runner.invoke(app, ["tls", "check", *argv, "-o", "json"])
    assert result.exit_code == code, result.output
    return (json.loads(result.stdout) if result.stdout else None), result.stderr


def test_a_listener_of_grpc_with_tls(files: TlsFiles) -> None:
    with of_grpc(files) as at:
        told, said = check(at, "--ca", str(files.ca))
        assert not said
        assert told["tls"].startswith("TLSv1.3 TLS_AES_")
        assert (told["plain_text"], told["certificates"]) == ("not answered", "not demanded of clients")
        assert (told["names"], told["uris"]) == (["127.0.0.1", "broker.headrace"], ["spiffe://headrace/broker"])
        assert told["verified"] == f"yes (by {files.ca})"
        assert told["clock"] == "valid now"
        assert len(told["fingerprint"]) == 64
        told, _ = check(at)
        assert told["verified"].startswith("not tried")
        check(at, "--ca", str(files.ca), "--name", "broker.headrace")
        _, said = check(at, "--ca", str(files.ca), "--name", "admin.headrace", code=1)
        assert "does not verify under" in said
        assert "admin.headrace" in said


def test_one_that_demands_certificates(files: TlsFiles) -> None:
    with of_grpc(files, demands=True) as at:
        told, _ = check(at, "--ca", str(files.ca))
    assert told["certificates"] == "demanded of clients"


def test_the_ca_of_the_environment_is_taken(files: TlsFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = Authority("another").files(tmp_path / "other")
    with of_grpc(files) as at:
        monkeypatch.setenv("HEADRACE_CA", str(files.ca))
        assert check(at)[0]["verified"].startswith("yes")
        _, said = check(at, "--ca", str(other.ca), code=1)
    assert "unable to get local issuer certificate" in said or "signature" in said


def test_plain_text(files: TlsFiles) -> None:
    with of_grpc(None) as at:
        told, said = check(at, code=1)
    assert (told["tls"], told["plain_text"]) == ("no: it speaks plain text alone", "answered")
    assert "it does not speak TLS" in said


@pytest.mark.parametrize("demands", [False, True])
def test_a_server_of_https(files: TlsFiles, demands: bool) -> None:
    with of_python(files, ssl.TLSVersion.TLSv1_3, demands=demands) as at:
        told, _ = check(at, "--ca", str(files.ca))
    assert told["certificates"] == ("demanded of clients" if demands else "not demanded of clients")


def test_tls_1_2_says_at_once_that_it_demands_one(files: TlsFiles) -> None:
    with of_python(files, ssl.TLSVersion.TLSv1_2) as at:
        assert check(at)[0]["tls"].startswith("TLSv1.2 ECDHE-ECDSA-")
    with of_python(files, ssl.TLSVersion.TLSv1_2, demands=True) as at:
        told, said = check(at, code=1)
    assert "handshake failure" in told["tls"]
    assert "as TLS 1.2 does where certificates are demanded of clients" in told["tls"]
    assert "does not speak TLS" not in said


@pytest.mark.parametrize(("shift", "said"), [(timedelta(days=9), "not valid before"), (timedelta(days=-9), "after")])
def test_a_wrong_clock_is_named_with_both_times(tmp_path: Path, shift: timedelta, said: str) -> None:
    authority = Authority(now=datetime.now(UTC) + shift)
    with of_grpc(authority.files(tmp_path / "tls", BROKER)) as at:
        told, error = check(at, code=1)
    assert said in told["clock"]
    assert f"; this machine says {datetime.now(UTC):%Y-%m-%d}" in error


def test_nobody_there_and_no_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = "{}:{}".format(*server.getsockname())
    assert "takes no connections" in check(at, code=4)[1]
    assert "is not an address" in check("https://x/", code=2)[1]
    assert "no host can have that name" in check("a..b:1", code=4)[1]


def test_one_that_closes_at_once_is_neither(files: TlsFiles) -> None:
    with listening(lambda connection: connection.close()) as at:
        told, _ = check(at, code=1)
    assert told["plain_text"] == "not answered"
    assert told["tls"].startswith("no: ")
