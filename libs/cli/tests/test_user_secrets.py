"""Secrets of users: made once, with a key that works, and no key is left over where one could not be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from headrace import AdminClient
from headrace.admin_access_types import NewApiKey
from headrace.finding import find_cluster
from headrace_cli.user_secrets import parse_arguments, run
from headrace_common.core.errors import ClusterAuthorizationFailed, NetworkFailed
from headrace_common.runtime.kubernetes import ApiServer, ApiServerFailed
from headrace_proto.v1 import access_pb2 as pb


class Kubernetes:
    namespace = "streams"

    def __init__(self) -> None:
        self.secrets: dict[str, Any] = {}
        self.answers: list[Callable[[str], tuple[int, Mapping[str, Any]]]] = []
        """Instead of its own, one by one, to who makes something."""

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Mapping[str, Any]]:
        name = path.rpartition("/")[2]
        if method == "GET":
            return (200, self.secrets[name]) if name in self.secrets else (404, {"reason": "NotFound"})
        assert path == "/api/v1/namespaces/streams/secrets"
        if self.answers:
            return self.answers.pop(0)(body["metadata"]["name"])
        self.secrets[body["metadata"]["name"]] = body
        return 201, {}


class Admin:
    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.notes: list[str] = []
        self.failures: list[Exception] = []

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_key(self, owner: str, *, lifetime: None, note: str) -> NewApiKey:
        if self.failures:
            raise self.failures.pop(0)
        assert lifetime is None, "nobody renews it"
        name = f"id{len(self.notes)}"
        self.notes.append(note)
        self.keys[name] = owner
        described = pb.ApiKeyDescription(id=name, owner=owner)
        return NewApiKey.of(pb.CreateKeyResponse(key=f"hrk_{name}", description=described))

    def delete_keys(self, ids: list[str]) -> None:
        for name in ids:
            del self.keys[name]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., int]:
    (tmp_path / "ca.crt").write_text("the CA\n")

    def made(kubernetes: Kubernetes, admin: Admin, *users: str, timeout: int = 5) -> int:
        given = [
            "--prefix",
            "headrace-user",
            "--bootstrap",
            "b:9292",
            "--ca",
            str(tmp_path / "ca.crt"),
            "--label",
            "a=b",
        ]
        arguments = parse_arguments([*users, *given, "--timeout", str(timeout)])
        connect = cast("Callable[[], AdminClient]", lambda: admin)
        return run(arguments, cast("ApiServer", kubernetes), connect, lambda _: None)

    return made


def test_each_gets_a_key_of_its_own_once(make: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    kubernetes, admin = Kubernetes(), Admin()
    assert make(kubernetes, admin, "alice", "bob") == 0
    assert admin.keys == {"id0": "User:alice", "id1": "User:bob"}
    assert admin.notes[0] == "Secret headrace-user-alice in streams"
    secret = kubernetes.secrets["headrace-user-bob"]
    assert secret["metadata"]["labels"] == {"a": "b"}
    assert (secret["stringData"]["api-key"], secret["stringData"]["ca.crt"]) == ("hrk_id1\n", "the CA\n")
    before = dict(kubernetes.secrets)
    assert make(kubernetes, admin, "alice", "bob") == 0
    assert kubernetes.secrets == before
    assert len(admin.keys) == 2
    assert "hrk_" not in capsys.readouterr().out


def test_its_configuration_is_one_that_clients_read(make: Callable[..., int], tmp_path: Path) -> None:
    kubernetes = Kubernetes()
    make(kubernetes, Admin(), "alice")
    (tmp_path / "client.toml").write_text(kubernetes.secrets["headrace-user-alice"]["stringData"]["client.toml"])
    found = find_cluster(None, None, {"HEADRACE_CONFIG": str(tmp_path / "client.toml")}, lambda: tmp_path)
    assert list(found) == ["b:9292"]
    assert found.ca == "/etc/headrace/user/ca.crt"
    assert found.api_key_file == "/etc/headrace/user/api-key"


def test_a_cluster_that_starts_is_waited_for_and_one_that_refuses_is_not(make: Callable[..., int]) -> None:
    kubernetes, admin = Kubernetes(), Admin()
    admin.failures = [NetworkFailed("not yet")] * 3
    assert make(kubernetes, admin, "alice") == 0
    admin.failures = [NetworkFailed("not yet")] * 9
    assert make(kubernetes, admin, "bob", timeout=3) == 1
    admin.failures = [ClusterAuthorizationFailed("no")]
    assert make(kubernetes, admin, "carol") == 1
    assert kubernetes.secrets.keys() == {"headrace-user-alice"}


def test_no_key_is_left_where_its_secret_could_not_be_made(make: Callable[..., int]) -> None:
    kubernetes, admin = Kubernetes(), Admin()
    kubernetes.answers = [lambda name: (403, {"reason": "Forbidden"})]
    assert make(kubernetes, admin, "alice") == 1
    assert admin.keys == {}

    def lost(name: str) -> tuple[int, Mapping[str, Any]]:
        raise ApiServerFailed("no answer")

    kubernetes.answers = [lost]
    assert make(kubernetes, admin, "alice") == 0, "it is tried again"
    assert admin.keys == {"id2": "User:alice"}


def test_a_key_stays_whose_secret_was_made_before_the_answer_was_lost(make: Callable[..., int]) -> None:
    kubernetes, admin = Kubernetes(), Admin()

    def lost(name: str) -> tuple[int, Mapping[str, Any]]:
        kubernetes.secrets[name] = {}
        raise ApiServerFailed("no answer")

    kubernetes.answers = [lost]
    assert make(kubernetes, admin, "alice") == 0
    assert admin.keys == {"id0": "User:alice"}
