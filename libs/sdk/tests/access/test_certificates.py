"""What a client with a certificate shows, whence it is, and what it does when the files change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from cryptography.hazmat.primitives import serialization
from libs.common.tests.kit.authority import Authority

from headrace import AdminClient
from headrace._credentials import CertificateShown, FixedKey, credential_place, credentials_for
from headrace._transport.grpc import GrpcTransport
from headrace._transport.grpc_coordinators import GrpcMembershipStream
from headrace.errors import InvalidConfig, TlsFailed
from headrace.finding import ClientCertificateFiles, ClusterAddress, credentialed, find_cluster
from headrace.securing import security_of, trust_in
from headrace.settings import ClientSettings, ProducerSettings, read_settings
from headrace_common.core.access.api_keys import format_key
from headrace_common.core.secret import Secret
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime.certificates import Leaf, Pair, write_pair

THERE = "kafka.example:9295"
KEY = format_key(bytes(10), bytes(32))
MINE = ClientCertificateFiles("me.crt", "me.key")
ENV = {"HEADRACE_CERT": "env.crt", "HEADRACE_KEY": "env.key"}
OF_ENV = ClientCertificateFiles("env.crt", "env.key")
AT = ClusterAddress((THERE,), ca="ca.pem")
CLIENTS = Authority("clients")


class Files:
    """A CA and a pair, written anew by ``write``."""

    def __init__(self, directory: Path) -> None:
        self.ca = directory / "ca.crt"
        self.ca.write_bytes(Authority("nodes").ca.certificate_pem)
        self.files = ClientCertificateFiles(str(directory / "me.crt"), str(directory / "me.key"))
        self.pair = self.write()
        self.address = ClusterAddress((THERE,), ca=str(self.ca), certificate=self.files)

    def write(self) -> Pair:
        self.pair = CLIENTS.make(Leaf("billing"))
        write_pair(Path(self.files.cert), Path(self.files.key), self.pair)
        return self.pair

    @property
    def pem(self) -> Pem:
        return Pem(self.ca.read_bytes(), self.pair.certificate_pem, self.pair.key_pem)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HEADRACE_CERT", "HEADRACE_KEY", "HEADRACE_API_KEY", "HEADRACE_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return iter([None])


def shown(found: ClusterAddress, env: dict[str, str], **given: Any) -> ClusterAddress:
    return credentialed(found, given.pop("api_key", None), None, env, **given)


def test_the_first_that_is_there_of_settings_profile_and_environment(tmp_path: Path) -> None:
    of_profile = replace(AT, certificate=ClientCertificateFiles("p.crt", "p.key"))
    assert shown(of_profile, ENV, certificate=MINE).certificate == MINE
    assert shown(of_profile, ENV).certificate == of_profile.certificate
    assert shown(AT, ENV).certificate == OF_ENV
    assert shown(AT, {}).certificate is None


def test_who_names_one_shows_no_key_that_is_found_elsewhere_and_the_other_way_round() -> None:
    env = {**ENV, "HEADRACE_API_KEY": KEY}
    found = shown(AT, env, certificate=MINE)
    assert (found.certificate, found.api_key) == (MINE, None)
    assert credentials_for(found, found, env).metadata(THERE) == ()
    found = shown(AT, env, api_key=Secret(KEY))
    assert (found.certificate, found.api_key) == (None, Secret(KEY))
    both = shown(AT, {}, api_key=Secret(KEY), certificate=MINE)
    assert (both.certificate, both.api_key) == (MINE, Secret(KEY))
    assert isinstance(credentials_for(both, both, {}), FixedKey)
    both = shown(AT, env)
    assert (both.certificate, both.api_key) == (OF_ENV, Secret(KEY)), "whoever named both means both"


def test_it_is_for_tls_alone() -> None:
    plain = replace(AT, ca=None)
    with pytest.raises(InvalidConfig, match="cert_file needs TLS"):
        shown(plain, {}, certificate=MINE)
    with pytest.raises(InvalidConfig, match="cert_file needs TLS"):
        shown(replace(plain, certificate=MINE), {})
    assert shown(plain, ENV).certificate is None, "the environment may be for other clusters too"


@pytest.mark.parametrize("half", [{"cert_file": "a"}, {"key_file": "a"}])
def test_both_files_are_named(half: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cert_file and key_file are given together"):
        ClientSettings(**half, ssl_ca_location="ca.pem").find(THERE)
    with pytest.raises(InvalidConfig, match="HEADRACE_CERT and HEADRACE_KEY"):
        shown(AT, {"HEADRACE_CERT": "a"})


@pytest.mark.parametrize(
    "names",
    [("cert_file", "key_file"), ("ssl.certificate.location", "ssl.key.location"), ("ssl_certfile", "ssl_keyfile")],
)
def test_settings_have_the_names_of_other_clients_too(names: tuple[str, str]) -> None:
    read = read_settings(ProducerSettings, {names[0]: "me.crt", names[1]: "me.key", "ssl.ca.location": "ca.pem"})
    assert read.find(THERE).certificate == MINE


def test_a_profile_names_it(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[p]\nbootstrap = "{THERE}"\nca = "ca.pem"\ncert_file = "me.crt"\nkey_file = "me.key"\n')
    env = {"HEADRACE_CONFIG": str(config)}
    found = find_cluster(None, "p", env, lambda: tmp_path)
    assert found.certificate == MINE
    assert credential_place(found, env) == "cert_file me.crt of profile 'p'"
    assert credential_place(AT, ENV) == "HEADRACE_CERT=env.crt"
    config.write_text(f'[p]\nbootstrap = "{THERE}"\ncert_file = "me.crt"\n')
    with pytest.raises(InvalidConfig, match="given together"):
        find_cluster(None, "p", env, lambda: tmp_path)


def test_whoever_opens_connections_of_their_own_shows_it_too(files: Files) -> None:
    security = security_of(files.address)
    assert security.pem == files.pem
    assert security.metadata is not None
    assert security.metadata(THERE) == ()


def test_what_is_no_pair_is_told_at_once(files: Files, tmp_path: Path) -> None:
    def refused(cert: str, key: str) -> str:
        with pytest.raises(InvalidConfig) as raised:
            trust_in(files.ca, ClientCertificateFiles(cert, key))
        return str(raised.value)

    (tmp_path / "other").mkdir()
    other = Files(tmp_path / "other")
    assert "are no certificate and its key" in refused(files.files.cert, other.files.key)
    assert "are no certificate and its key" in refused(str(files.ca), files.files.key)
    assert "none.key cannot be read" in refused(files.files.cert, str(tmp_path / "none.key"))
    assert "none.crt cannot be read" in refused(str(tmp_path / "none.crt"), files.files.key)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        files.pair.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    said = refused(files.files.cert, str(locked))
    assert "without a password" in said


def test_another_one_in_the_files_is_another_credential(files: Files) -> None:
    held = CertificateShown(files.files, tls=True)
    began = held.number
    assert held.metadata(THERE) == ()
    assert not held.changed_since(began)
    files.write()
    assert held.changed_since(began)
    began = held.number
    files.write()
    assert held.metadata(THERE) == ()
    assert held.number != began, "each call looks"


async def test_who_has_another_one_connects_anew_at_the_next_call(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = GrpcTransport(files.address)
    first = transport._channel(THERE)
    assert transport._channel(THERE) is first
    assert transport._channels._security.pem == files.pem
    files.write()
    transport._credentials.metadata(THERE)
    second = transport._channel(THERE)
    assert second is not first
    assert transport._channels._security.pem == files.pem
    good = files.pem
    Path(files.files.cert).write_bytes(b"half written")
    transport._credentials.metadata(THERE)
    assert transport._channel(THERE) is second
    assert transport._channels._security.pem == good, "that of before stays in use"
    looks: list[None] = []
    monkeypatch.setattr(GrpcTransport, "_look_at_cas", lambda _: looks.append(None))
    transport._channel(THERE)
    assert not looks, "until the files change again"
    await transport.close()


def test_clients_take_it(files: Files) -> None:
    cert, key = files.files.cert, files.files.key
    with AdminClient(THERE, ssl_ca_location=str(files.ca), cert_file=cert, key_file=key) as admin:
        assert "PRIVATE" not in repr(admin)


@pytest.mark.parametrize("way", ["a call", "a stream", "a member's stream"])
async def test_cas_are_read_again_though_one_node_alone_is_not_trusted(files: Files, way: str) -> None:
    """Others are connected since before they changed, and answer."""
    transport = GrpcTransport(files.address)
    transport._channel(THERE)
    files.ca.write_bytes(files.ca.read_bytes() + Authority("more nodes").ca.certificate_pem)
    assert transport._channels._security.pem != files.pem

    async def untrusted() -> NoReturn:
        raise TlsFailed("the certificate there leads to no CA that is trusted here")

    if way == "a call":
        with pytest.raises(TlsFailed):
            await transport._call("broker 1", untrusted)
    elif way == "a stream":
        assert not transport._refusals()(TlsFailed("so it is"))
    else:
        call: Any = SimpleNamespace(read=untrusted, cancel=lambda: None)
        stream = GrpcMembershipStream(call, "coordinator 0", transport._tasks, transport._refusals())
        with pytest.raises(TlsFailed):
            await stream.receive()
    await asyncio.sleep(0)
    assert transport._channels._security.pem == files.pem
    await transport.close()
