"""Which worker ``headrace connect`` asks."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.finding import ClusterAddress, UserLogin
from headrace.local_keys import local_keys_directory, logins_directory, write_local_key
from headrace_cli import workers
from headrace_cli.exits import CommandFailed
from headrace_cli.workers import DEFAULT_URL, Workers, find_url
from headrace_common.core.secret import Secret

URL = "http://127.0.0.1:20001"


def write(here: Path, **told: Any) -> None:
    (here / ".headrace").mkdir(exist_ok=True)
    own = {"data_dir": os.path.realpath(here / ".headrace"), "connect_url": URL}
    (here / ".headrace" / "cluster.json").write_text(json.dumps(own | told))


def test_that_of_the_local_cluster_of_this_directory(tmp_path: Path) -> None:
    assert find_url(tmp_path) == DEFAULT_URL
    write(tmp_path)
    assert find_url(tmp_path) == URL
    (tmp_path / "copy").mkdir()
    os.symlink(tmp_path / ".headrace", tmp_path / "copy" / ".headrace")
    assert find_url(tmp_path / "copy") == URL


@pytest.mark.parametrize("told", [{"connect_url": None}, {"connect_url": 5}, {"data_dir": "/elsewhere"}])
def test_the_default_where_it_has_none_or_speaks_of_another(tmp_path: Path, told: dict[str, Any]) -> None:
    write(tmp_path, **told)
    assert find_url(tmp_path) == DEFAULT_URL


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff"])
def test_the_default_where_the_file_says_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path)
    (tmp_path / ".headrace" / "cluster.json").write_bytes(text.encode("latin-1"))
    assert find_url(tmp_path) == DEFAULT_URL


# --- what is shown -------------------------------------------------------------------------------------------------

KEY = "hrk_key"
CLUSTER = ClusterAddress(("127.0.0.1:9292",))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who has no credential."""
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def shown(url: str, cluster: ClusterAddress = CLUSTER) -> str | None:
    secret = Workers(url, cluster)._shown
    return None if secret is None else secret.reveal()


def test_a_named_key_is_shown_to_this_machine_and_by_tls(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", KEY)
    for url in ("http://127.0.0.1:8083", "http://localhost:8083", "http://[::1]:8083", "https://connect.example"):
        assert shown(url) == KEY


@pytest.mark.parametrize(
    "url",
    [
        "http://connect.example:8083",
        "http://10.0.0.1",
        "http://localhost.example",
        "http://127.0.0.1:80@connect.example",
    ],
)
def test_it_does_not_go_to_another_machine_in_plain_text(home: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert shown(url) is None
    monkeypatch.setenv("HEADRACE_API_KEY", KEY)
    with pytest.raises(CommandFailed, match="is not sent to") as failed:
        shown(url)
    assert "https://" in failed.value.hint
    assert KEY not in str(failed.value)


def test_a_file_a_login_and_a_local_cluster_have_keys(home: Path) -> None:
    (home / "key").write_text(f"{KEY}1\n")
    named = replace(CLUSTER, api_key_file=str(home / "key"))
    assert shown("http://127.0.0.1:8083", named) == f"{KEY}1"
    write_local_key(local_keys_directory(os.environ), "id", ["127.0.0.1:9292", "127.0.0.1:8083"], Secret(f"{KEY}2"))
    assert shown("http://127.0.0.1:8083") == shown("http://localhost:8083") == f"{KEY}2"
    assert shown("http://127.0.0.1:8084") is None, "a cluster's key is for its own addresses"
    write_local_key(logins_directory(os.environ), "id", ["127.0.0.1:9292"], Secret(f"{KEY}3"))
    assert shown("http://127.0.0.1:8084") == f"{KEY}3"
    assert shown("http://127.0.0.1:8083", replace(CLUSTER, servers=("b:1",))) == f"{KEY}2"


def test_a_pod_has_the_token_of_its_account(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "POD_TOKEN", home / "token")
    assert shown("https://connect.example") is None
    (home / "token").write_text(f"{KEY}\n")
    assert shown("https://connect.example") == shown("https://127.0.0.1:8083") == KEY
    assert shown("http://connect.example") is None, "a token is for TLS alone"
    assert shown("http://127.0.0.1:8083") is None
    write_local_key(local_keys_directory(os.environ), "id", ["127.0.0.1:8083"], Secret(f"{KEY}2"))
    assert shown("https://127.0.0.1:8083") == f"{KEY}2"


@pytest.mark.parametrize("text", ["", "a b", "a\nb", "\xe9"])
def test_what_cannot_be_a_key_is_not_sent_and_not_told(home: Path, text: str) -> None:
    (home / "key").write_bytes(text.encode("latin-1"))
    with pytest.raises(CommandFailed) as failed:
        shown("http://127.0.0.1:8083", replace(CLUSTER, api_key_file=str(home / "key")))
    assert text == "" or text not in str(failed.value)


def test_who_has_a_password_is_told_to_log_in(home: Path) -> None:
    with pytest.raises(CommandFailed, match="take no passwords") as failed:
        shown("http://127.0.0.1:8083", replace(CLUSTER, user=UserLogin("ann", Secret("x"))))
    assert "headrace login --user ann" in failed.value.hint


def test_the_key_is_in_the_header_and_follows_no_redirection(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", KEY)
    seen: list[tuple[str, str | None]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers["authorization"]))
            self.send_response(302 if self.path == "/connectors" else 200)
            self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            Workers(f"http://127.0.0.1:{server.server_port}", CLUSTER).get("connectors")
        finally:
            server.shutdown()
            thread.join()
    assert seen == [("/connectors", f"Bearer {KEY}"), ("/elsewhere", None)]
