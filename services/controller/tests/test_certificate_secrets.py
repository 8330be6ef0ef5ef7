"""The program that keeps the Secrets with certificates, against an API server that speaks TLS and keeps objects."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.api_server import serving

from headrace_cli.local.certificate_files import EtcdFiles
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.image import NodeKey, Role
from headrace_common.runtime.certificates import (
    LEFT_AT_LEAST,
    Leaf,
    Pair,
    lasts,
    leaf_of,
    make_ca,
    make_pair,
    names_of,
    parse_pair,
)
from headrace_common.runtime.service_tls import wanted_of
from headrace_common.runtime.tls import Wanted, read_bundle
from headrace_common.runtime.tls_config import TlsFiles
from headrace_controller import certificate_secrets
from headrace_controller.certificate_secrets import LEAF_LIFE, MADE, main

NAME = "headrace"
ARGUMENTS = (
    NAME,
    "--role",
    "broker=headrace-bootstrap,10.0.0.1",
    "--role",
    "connect=headrace-connect",
    "--label",
    "a=b",
)
BROKER, CA = f"{NAME}-broker-tls", f"{NAME}-ca"


@dataclass
class Api:
    """Keeps objects as an API server does."""

    env: dict[str, str] = field(default_factory=dict)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the end of their path, such as ``secrets/headrace-ca``."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], tuple[int, Any] | None] = lambda *_: None
    """Is asked first what is to be said."""
    version: int = 0

    def answer(self, method: str, path: str, bearer: str | None, sent: Any) -> tuple[int, Any]:
        place = path.removeprefix("/api/v1/namespaces/streams/")
        if method == "POST":
            place = f"{place}/{sent['metadata']['name']}"
        self.asked.append((method, place))
        said = self.before(method, place)
        if said is not None:
            return said
        there = self.objects.get(place)
        match method:
            case "GET":
                return (404, {"reason": "NotFound"}) if there is None else (200, there)
            case "POST" if there is not None:
                return 409, {"reason": "AlreadyExists"}
            case "PUT" if there is None or there["metadata"]["resourceVersion"] != sent["metadata"]["resourceVersion"]:
                return 409, {"reason": "Conflict"}
        self.version += 1
        sent["metadata"]["resourceVersion"] = str(self.version)
        self.objects[place] = sent
        return (201 if method == "POST" else 200), sent

    @property
    def written(self) -> list[str]:
        return [place for method, place in self.asked if method != "GET"]

    def secret(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(part) for key, part in self.objects[f"secrets/{name}"]["data"].items()}

    def put(self, name: str, **parts: bytes) -> None:
        for key, part in parts.items():
            self.objects[f"secrets/{name}"]["data"][key.replace("_", ".")] = base64.b64encode(part).decode()

    def pair(self, name: str, key: str = "tls") -> Pair:
        secret = self.secret(name)
        found = parse_pair(secret[f"{key}.crt"], secret[f"{key}.key"])
        assert found is not None
        return found


@pytest.fixture
def api(files: EtcdFiles) -> Iterator[Api]:
    api = Api()
    with serving(lambda *given: api.answer(*given), files) as api.env:
        yield api


def mounted(api: Api, name: str, directory: Path) -> TlsFiles:
    """The Secret, as a pod has it."""
    directory.mkdir()
    for key, part in api.secret(name).items():
        (directory / key).write_bytes(part)
        (directory / key).chmod(0o600)
    return TlsFiles(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")


def test_it_makes_what_services_take(
    api: Api, account: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ARGUMENTS, api.env, account) == 0
    assert api.written == [
        "secrets/headrace-ca",
        "configmaps/headrace-ca",
        f"secrets/{BROKER}",
        "secrets/headrace-connect-tls",
    ]
    bundle = read_bundle(
        mounted(api, BROKER, tmp_path / "broker"),
        wanted_of(NodeKey(Role.BROKER, 3), "headrace"),
        int(datetime.now(UTC).timestamp() * 1_000),
    )
    assert bundle.pem.ca == api.objects["configmaps/headrace-ca"]["data"]["ca.crt"].encode()
    assert names_of(api.pair(BROKER).certificate) >= {"headrace-bootstrap", "10.0.0.1", "broker.headrace"}
    assert not any(name.startswith("spiffe:") for name in names_of(api.pair("headrace-connect-tls").certificate))
    assert {at["metadata"]["labels"]["a"] for at in api.objects.values()} == {"b"}
    said = capsys.readouterr()
    assert "BEGIN" not in said.out + said.err
    assert said.out.count("\n") == 4


def test_where_somebody_else_makes_those_of_nodes_clients_trust_his_ca(
    api: Api, account: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (NAME, "--etcd", "etcd-0", "--ca-of", BROKER)
    assert main(arguments, api.env, account) == 1, "it is not there yet"
    assert "tls.existing.ca" in capsys.readouterr().err
    assert f"configmaps/{CA}" not in api.objects
    theirs: dict[str, Any] = {
        "metadata": {"name": BROKER, "resourceVersion": "1"},
        "data": {"tls.crt": "", "ca.crt": ""},
    }
    api.objects[f"secrets/{BROKER}"] = theirs
    assert main(arguments, api.env, account) == 1, "its issuer tells no CA"
    api.put(BROKER, ca_crt=b"a")
    assert main(arguments, api.env, account) == 0
    assert api.objects[f"configmaps/{CA}"]["data"] == {"ca.crt": "a"}
    assert api.objects[f"secrets/{BROKER}"] is theirs
    assert f"secrets/{CA}" not in api.objects
    api.put(BROKER, ca_crt=b"another")
    assert main(arguments, api.env, account) == 0
    assert api.objects[f"configmaps/{CA}"]["data"] == {"ca.crt": "another"}
    with pytest.raises(SystemExit):
        main((*ARGUMENTS, "--ca-of", BROKER), api.env, account)


def test_what_is_there_and_lasts_stays(api: Api, account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGUMENTS, api.env, account) == 0
    api.asked.clear()
    capsys.readouterr()
    assert main(ARGUMENTS, api.env, account) == 0
    assert api.written == []
    assert capsys.readouterr().out.count("is there") == 4


def old_pair(api: Api) -> Pair:
    now = datetime.now(UTC) - LEAF_LIFE * (1 - LEFT_AT_LEAST) - timedelta(days=2)
    return make_pair(
        api.pair(CA, "ca"), leaf_of("broker", ["headrace-bootstrap", "10.0.0.1"], "headrace"), now, LEAF_LIFE
    )


@pytest.mark.parametrize("kind", ["old", "other hosts", "other CA", "torn", "empty"])
def test_what_does_not_serve_is_made_anew(api: Api, account: Path, kind: str) -> None:
    assert main(ARGUMENTS, api.env, account) == 0
    fresh = leaf_of("broker", ["headrace-bootstrap", "10.0.0.1"], "headrace")
    now, ca = datetime.now(UTC), api.pair(CA, "ca")
    pair = {
        "old": old_pair(api),
        "other hosts": make_pair(ca, leaf_of("broker", ["elsewhere"], "headrace"), now, LEAF_LIFE),
        "other CA": make_pair(make_ca("x", now), fresh, now, LEAF_LIFE),
    }.get(kind)
    if pair is not None:
        api.put(BROKER, tls_crt=pair.certificate_pem, tls_key=pair.key_pem)
    elif kind == "torn":
        api.put(BROKER, tls_key=b"-----BEGIN")
    else:
        api.objects[f"secrets/{BROKER}"]["data"] = None
    api.asked.clear()
    assert main(ARGUMENTS, api.env, account) == 0
    assert api.written == [f"secrets/{BROKER}"]
    assert lasts(api.pair(BROKER), ca, now)
    assert names_of(api.pair(BROKER).certificate) >= fresh.hosts


def test_what_others_made_stays(api: Api, account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGUMENTS, api.env, account) == 0
    before = old_pair(api)
    api.put(BROKER, tls_crt=before.certificate_pem, tls_key=before.key_pem)
    for place in (f"secrets/{BROKER}", "configmaps/headrace-ca"):
        del api.objects[place]["metadata"]["labels"][MADE]
    api.objects["configmaps/headrace-ca"]["data"] = {"ca.crt": "theirs"}
    assert main(ARGUMENTS, api.env, account) == 0
    assert api.pair(BROKER).certificate == before.certificate
    assert api.objects["configmaps/headrace-ca"]["data"] == {"ca.crt": "theirs"}
    assert capsys.readouterr().out.count("of somebody else") == 2


def test_another_ca_comes_in_steps(api: Api, account: Path) -> None:
    """All trust both before any shows a certificate of the new one."""
    assert main(ARGUMENTS, api.env, account) == 0
    old, new, leaf = api.pair(CA, "ca"), make_ca("new", datetime.now(UTC)), api.pair(BROKER)
    both = old.certificate_pem + new.certificate_pem
    api.put(CA, ca_crt=both)
    assert main(ARGUMENTS, api.env, account) == 0
    assert api.secret(BROKER)["ca.crt"] == both == api.objects["configmaps/headrace-ca"]["data"]["ca.crt"].encode()
    assert api.pair(BROKER).certificate == leaf.certificate, "what serves is kept"
    both = new.certificate_pem + old.certificate_pem
    api.put(CA, ca_crt=both, ca_key=new.key_pem)
    assert main(ARGUMENTS, api.env, account) == 0
    api.pair(BROKER).certificate.verify_directly_issued_by(new.certificate)
    assert api.secret(BROKER)["ca.crt"] == both
    api.put(CA, ca_crt=new.certificate_pem)
    assert main(ARGUMENTS, api.env, account) == 0
    assert api.secret(BROKER)["ca.crt"] == new.certificate_pem


WITH_ETCD = (*ARGUMENTS, "--etcd", "headrace-etcd-0.headrace-etcd,127.0.0.1")
ETCD_CA, MEMBER, CLIENT = f"{NAME}-etcd-ca", f"{NAME}-etcd-tls", f"{NAME}-etcd-client-tls"


def test_etcd_has_a_ca_of_its_own(api: Api, account: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WITH_ETCD, api.env, account) == 0
    assert api.written[-3:] == [f"secrets/{name}" for name in (ETCD_CA, MEMBER, CLIENT)]
    assert capsys.readouterr().out.count(": made") == 7
    now = int(datetime.now(UTC).timestamp() * 1_000)
    hosts = frozenset({"headrace-etcd-0.headrace-etcd", "127.0.0.1"})
    member, client = mounted(api, MEMBER, tmp_path / "member"), mounted(api, CLIENT, tmp_path / "client")
    read_bundle(member, Wanted(hosts), now)
    read_bundle(client, Wanted(server=False), now)
    with pytest.raises(InvalidConfig, match="not one of servers"):
        read_bundle(client, Wanted(), now)
    assert {api.secret(name)["ca.crt"] for name in (MEMBER, CLIENT)} == {api.secret(ETCD_CA)["ca.crt"]}
    assert not lasts(api.pair(BROKER), api.pair(ETCD_CA, "ca"), datetime.now(UTC)), "nodes are strangers there"
    assert "ca.key" not in {*api.secret(MEMBER), *api.secret(CLIENT)}
    assert not any(key.startswith("configmaps/") and "etcd" in key for key in api.objects), "no client needs it"


def test_of_etcd_too_what_lasts_stays_and_the_rest_is_made_anew(api: Api, account: Path) -> None:
    assert main(WITH_ETCD, api.env, account) == 0
    api.asked.clear()
    assert main(WITH_ETCD, api.env, account) == 0
    assert api.written == []
    more = (*ARGUMENTS, "--etcd", "headrace-etcd-0.headrace-etcd,headrace-etcd-1.headrace-etcd,127.0.0.1")
    assert main(more, api.env, account) == 0
    assert api.written == [f"secrets/{MEMBER}"]
    assert "headrace-etcd-1.headrace-etcd" in names_of(api.pair(MEMBER).certificate)
    old = make_pair(api.pair(ETCD_CA, "ca"), Leaf("etcd-client"), datetime.now(UTC) - LEAF_LIFE, LEAF_LIFE)
    api.put(CLIENT, tls_crt=old.certificate_pem, tls_key=old.key_pem)
    api.asked.clear()
    assert main(more, api.env, account) == 0
    assert api.written == [f"secrets/{CLIENT}"]
    for name in (ETCD_CA, MEMBER, CLIENT):
        del api.objects[f"secrets/{name}"]["metadata"]["labels"][MADE]
    before = [api.secret(name) for name in (ETCD_CA, MEMBER, CLIENT)]
    api.put(MEMBER, tls_key=b"theirs")
    assert main((*ARGUMENTS, "--etcd", "elsewhere"), api.env, account) == 0
    assert [api.secret(name) for name in (ETCD_CA, CLIENT)] == [before[0], before[2]]
    assert api.secret(MEMBER)["tls.key"] == b"theirs"


def test_a_ca_without_its_key_is_never_replaced(api: Api, account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGUMENTS, api.env, account) == 0
    api.asked.clear()
    for key in (b"", make_ca("x", datetime.now(UTC)).key_pem):
        api.put(CA, ca_key=key)
        assert main(ARGUMENTS, api.env, account) == 1
        assert "holds no CA with its key" in capsys.readouterr().err
    assert api.written == []


def test_a_ca_that_ends_is_said(api: Api, account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGUMENTS, api.env, account) == 0
    ca = make_ca("old", datetime.now(UTC) - timedelta(days=10), timedelta(days=12))
    api.put(CA, ca_crt=ca.certificate_pem, ca_key=ca.key_pem)
    assert main(ARGUMENTS, api.env, account) == 0
    assert "make another one" in capsys.readouterr().out


def test_two_of_them_at_once_agree(api: Api, account: Path) -> None:
    """The other one is faster with each object."""
    assert main(ARGUMENTS, api.env, account) == 0
    theirs, api.objects = api.objects, {}

    def before(method: str, place: str) -> None:
        if method == "POST":
            api.objects.setdefault(place, theirs[place])

    api.before = before
    assert main(ARGUMENTS, api.env, account) == 0
    assert api.objects == theirs


def test_a_change_meanwhile_is_not_undone(api: Api, account: Path) -> None:
    assert main(ARGUMENTS, api.env, account) == 0
    pair = old_pair(api)
    api.put(BROKER, tls_crt=pair.certificate_pem, tls_key=pair.key_pem)

    def before(method: str, place: str) -> None:
        if method == "PUT":
            api.objects[place]["metadata"] = {"name": BROKER, "resourceVersion": "another"}

    api.before = before
    assert main(ARGUMENTS, api.env, account) == 0
    assert api.pair(BROKER).certificate == pair.certificate, "it is of somebody else now"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((403, {"reason": "Forbidden", "message": "BEGIN"}), "tls.existing"),
        ((500, {"reason": "InternalError"}), "500 InternalError"),
        ((409, {"reason": "Exceeded"}), "409 Exceeded"),
        ((201, b"<html>"), "no answer"),
    ],
    ids=lambda given: str(given)[:24],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_answer_is_a_failure_that_is_told(
    api: Api, account: Path, method: str, answer: tuple[int, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.before = lambda asked, _: answer if asked == method else None
    assert main(ARGUMENTS, api.env, account) == 1
    said = capsys.readouterr()
    assert says in said.err
    assert "BEGIN" not in said.err
    assert len(api.asked) <= 2


def test_one_that_is_always_faster_is_no_endless_loop(
    api: Api, account: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.before = lambda method, _: (409, {"reason": "Conflict"}) if method == "POST" else None
    assert main(ARGUMENTS, api.env, account) == 1
    assert len(api.asked) == 2 * certificate_secrets.TRIES_MAX
    assert "all the time" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--role", "broker"], ["--role", "=a"], ["--label", "a"], []])
def test_wrong_arguments(given: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([NAME, "--role", "broker=a", *given] if given else [NAME], {})
    assert raised.value.code == 2
