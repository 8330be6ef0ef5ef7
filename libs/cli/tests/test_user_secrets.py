"""Secrets of users: made once, with a key that works, and no key is left over where one could not be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
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

NOW = datetime(2026, 12, 1, tzinfo=UTC)


class Kubernetes:
    namespace = "streams"

    def __init__(self) -> None:
        self.secrets: dict[str, Any] = {}
        self.answers: list[Callable[[Any], tuple[int, Mapping[str, Any]]]] = []
        """Instead of its own, one by one, to who makes something; they get what is to be made."""

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Mapping[str, Any]]:
        name = path.rpartition("/")[2]
        if method == "GET":
            return (200, self.secrets[name]) if name in self.secrets else (404, {"reason": "NotFound"})
        assert path.removesuffix(f"/{name}" * (method == "PUT")) == "/api/v1/namespaces/streams/secrets"
        if method == "PUT":
            assert body["metadata"]["name"] == name
        if self.answers:
            return self.answers.pop(0)(body)
        if method == "POST" and body["metadata"]["name"] in self.secrets:
            return 409, {"reason": "Conflict"}
        self.secrets[body["metadata"]["name"]] = body
        return (201 if method == "POST" else 200), {}


class Admin:
    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.notes: list[str] = []
        self.failures: list[Exception] = []
        self.lives: list[timedelta | None] = []

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_key(self, owner: str, *, lifetime: timedelta | None, note: str) -> NewApiKey:
        if self.failures:
            raise self.failures.pop(0)
        self.lives.append(lifetime)
        name = f"id{len(self.notes)}"
        self.notes.append(note)
        self.keys[name] = owner
        described = pb.ApiKeyDescription(id=name, owner=owner)
        if lifetime is not None:
            described.expires_ms = int((NOW + lifetime).timestamp() * 1_000)
        return NewApiKey.of(pb.CreateKeyResponse(key=f"hrk_{name}", description=described))

    def delete_keys(self, ids: list[str]) -> None:
        for name in ids:
            del self.keys[name]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., int]:
    (tmp_path / "ca.crt").write_text("the CA\n")

    def made(kubernetes: Kubernetes, admin: Admin, *users: str, timeout: int = 5, now: datetime = NOW) -> int:
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
        return run(arguments, cast("ApiServer", kubernetes), connect, lambda _: None, now)

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
    kubernetes.answers = [lambda _: (403, {"reason": "Forbidden"})]
    assert make(kubernetes, admin, "alice") == 1
    assert admin.keys == {}

    def lost(_: Any) -> tuple[int, Mapping[str, Any]]:
        raise ApiServerFailed("no answer")

    kubernetes.answers = [lost]
    assert make(kubernetes, admin, "alice") == 0, "it is tried again"
    assert admin.keys == {"id2": "User:alice"}


def test_a_key_stays_whose_secret_was_made_before_the_answer_was_lost(make: Callable[..., int]) -> None:
    kubernetes, admin = Kubernetes(), Admin()

    def lost(made: Any) -> tuple[int, Mapping[str, Any]]:
        kubernetes.secrets[made["metadata"]["name"]] = made
        raise ApiServerFailed("no answer")

    kubernetes.answers = [lost]
    assert make(kubernetes, admin, "alice") == 0
    assert admin.keys == {"id0": "User:alice"}


def test_a_key_counts_for_a_year_or_what_is_said(make: Callable[..., int]) -> None:
    admin = Admin()
    assert make(Kubernetes(), admin, "alice", "bob=30", "carol=0") == 0
    assert admin.lives == [timedelta(days=365), timedelta(days=30), None]
    with pytest.raises(SystemExit):
        make(Kubernetes(), admin, "alice=long")


def test_one_that_ends_soon_is_followed_by_another(
    make: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes, admin = Kubernetes(), Admin()
    make(kubernetes, admin, "alice=90", "bob=0")
    made = kubernetes.secrets["headrace-user-alice"]
    made["metadata"]["resourceVersion"] = "7"
    made["metadata"]["labels"]["mine"] = made["metadata"]["annotations"]["mine"] = "stays"
    assert make(kubernetes, admin, "alice=90", "bob=0", now=NOW + timedelta(days=60)) == 0
    assert kubernetes.secrets["headrace-user-alice"] is made
    assert "with a key until 2027-03-01" in capsys.readouterr().out
    kubernetes.answers = [lambda _: (409, {"reason": "Conflict"})]
    assert make(kubernetes, admin, "alice=90", now=NOW + timedelta(days=61)) == 0, "it is tried again"
    after = kubernetes.secrets["headrace-user-alice"]
    assert after["stringData"]["api-key"] == "hrk_id3\n"
    assert after["metadata"]["labels"] == {"a": "b", "mine": "stays"}
    assert after["metadata"]["annotations"]["mine"] == "stays"
    assert after["metadata"]["resourceVersion"] == "7", "nobody else changed it meanwhile"
    assert admin.keys.keys() == {"id0", "id1", "id3"}, "the one before counts until its end; nobody has id2"


def test_a_secret_whose_end_nobody_knows_stays(make: Callable[..., int]) -> None:
    kubernetes, admin = Kubernetes(), Admin()
    for said in (None, {"headrace.io/key-expires": "soon"}):
        kubernetes.secrets["headrace-user-alice"] = {"metadata": {"annotations": said}}
        assert make(kubernetes, admin, "alice") == 0
    assert admin.keys == {}


def test_another_key_stays_whose_secret_was_written_before_the_answer_was_lost(make: Callable[..., int]) -> None:
    kubernetes, admin = Kubernetes(), Admin()
    make(kubernetes, admin, "alice")

    def lost(_: Any) -> tuple[int, Mapping[str, Any]]:
        raise ApiServerFailed("no answer")

    later = NOW + timedelta(days=300)
    kubernetes.answers = [lost]
    assert make(kubernetes, admin, "alice", now=later) == 0
    assert admin.keys.keys() == {"id0", "id2"}, "id1 was written nowhere"
