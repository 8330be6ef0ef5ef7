"""Which certificates a process may use, and what it says of those it may not."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from libs.common.tests.kit.authority import BROKER, Authority, of_client

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime import tls
from headrace_common.runtime.certificates import Leaf, Pair, make_pair
from headrace_common.runtime.tls import Bundle, Wanted, read_bundle
from headrace_common.runtime.tls_config import TlsFiles

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
WANTED = Wanted(frozenset({"broker.headrace", "127.0.0.1"}), frozenset({"spiffe://headrace/broker"}))


@pytest.fixture
def authority() -> Authority:
    return Authority(now=NOW)


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    return authority.files(tmp_path / "tls")


def read(files: TlsFiles, wanted: Wanted = WANTED, now: datetime = NOW) -> Bundle:
    return read_bundle(files, wanted, int(now.timestamp() * 1_000))


def refused(files: TlsFiles, wanted: Wanted = WANTED, now: datetime = NOW) -> str:
    with pytest.raises(InvalidConfig) as raised:
        read(files, wanted, now)
    return str(raised.value)


def test_what_is_sound_is_one_value(authority: Authority, files: TlsFiles) -> None:
    pair = authority.make()
    authority.write(files, pair)
    bundle = read(files)
    assert bundle.pem.chain == files.cert.read_bytes()
    assert bundle.pem.key == files.key.read_bytes()
    assert bundle.pem.ca == files.ca.read_bytes()
    assert bundle.fingerprint == pair.certificate.fingerprint(hashes.SHA256()).hex()
    assert bundle.not_after == NOW + timedelta(days=1)
    assert "PRIVATE" not in repr(bundle)
    assert bundle.certificate.names == ("127.0.0.1", "broker.headrace")
    assert (bundle.certificate.subject, bundle.certificate.uris) == ("CN=broker", ("spiffe://headrace/broker",))
    assert bundle.certificate.issuer == bundle.issuer.subject == bundle.issuer.issuer == "CN=CA of a test"
    assert bundle.ca_not_after == authority.ca.certificate.not_valid_after_utc
    assert bundle.begins == NOW - timedelta(days=1)
    assert isinstance(pair.key.curve, ec.SECP256R1)


def test_a_chain_may_have_a_ca_between_and_more_than_one_ca_is_trusted(files: TlsFiles, authority: Authority) -> None:
    between = intermediate(authority)
    pair = make_pair(between, BROKER, NOW, timedelta(days=9))
    files.cert.write_bytes(pair.certificate_pem)
    files.key.write_bytes(pair.key_pem)
    assert "does not lead to a CA of" in refused(files)
    files.cert.write_bytes(pair.certificate_pem + between.certificate_pem)
    old = Authority("another")
    files.ca.write_bytes(old.ca.certificate_pem + authority.ca.certificate_pem)
    bundle = read(files)
    assert bundle.not_after == NOW + timedelta(days=5), "the first that ends"
    assert bundle.begins == NOW, "of the same"
    assert bundle.ca_not_after == NOW + timedelta(days=50), "the one that it leads to, not the other that is trusted"
    assert (bundle.issuer.subject, [one.subject for one in bundle.cas]) == ("CN=above", ["CN=another", "CN=above"])
    files.ca.write_bytes(authority.ca.certificate_pem)
    assert (read(files).distrusts(bundle), bundle.distrusts(read(files))) == (True, False)


def intermediate(authority: Authority) -> Pair:
    from cryptography import x509

    key = ec.generate_private_key(ec.SECP256R1())
    # The CA of tests allows no other below it, so one of another kind is made here.
    authority.ca = root_above()
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "between")]))
        .issuer_name(authority.ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=5))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return Pair(builder.sign(authority.ca.key, hashes.SHA256()), key)


def root_above() -> Pair:
    from cryptography import x509

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "above")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(6)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=50))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
def test_a_file_that_is_not_there_is_named(files: TlsFiles, name: str) -> None:
    path: Path = getattr(files, name)
    path.unlink()
    assert refused(files) == f"cannot read the TLS file {path}: No such file or directory"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def rubbish(path: Path) -> None:
    path.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def large(path: Path) -> None:
    path.write_bytes(bytes(tls.FILE_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("cert", cut, "has no certificate, or is half written"),
        ("cert", empty, "has no certificate, or is half written"),
        ("cert", rubbish, "has something that is no certificate"),
        ("cert", large, "has more than 1048576 bytes"),
        ("ca", cut, "has no certificate, or is half written"),
        ("ca", rubbish, "has something that is no certificate"),
        ("key", cut, "is no key in PEM, or is half written"),
        ("key", empty, "is no key in PEM, or is half written"),
    ],
)
def test_a_damaged_file_is_named(files: TlsFiles, name: str, damage: Callable[[Path], None], says: str) -> None:
    path: Path = getattr(files, name)
    damage(path)
    text = refused(files)
    assert says in text
    assert str(path) in text


def test_a_second_certificate_that_is_half_written_is_seen(files: TlsFiles, authority: Authority) -> None:
    files.cert.write_bytes(files.cert.read_bytes() + authority.ca.certificate_pem[:100])
    assert "is half written" in refused(files)


def test_a_key_of_another_certificate(files: TlsFiles, authority: Authority) -> None:
    files.key.write_bytes(authority.make().key_pem)
    assert "does not belong to the certificate" in refused(files)


def test_a_key_with_a_password_or_of_another_kind(files: TlsFiles) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    forms = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    files.key.write_bytes(key.private_bytes(*forms, serialization.BestAvailableEncryption(b"secret")))
    assert "is encrypted" in refused(files)
    files.key.write_bytes(key.private_bytes(*forms, serialization.NoEncryption()))
    assert "is not of ECDSA P-256" in refused(files)


def test_a_certificate_of_another_ca(files: TlsFiles) -> None:
    files.ca.write_bytes(Authority(now=NOW).ca.certificate_pem)
    text = refused(files)
    assert f"{files.cert} does not lead to a CA of {files.ca}" in text


def test_a_certificate_that_a_leaf_has_signed(files: TlsFiles, authority: Authority) -> None:
    leaf = authority.make()
    pair = make_pair(leaf, BROKER, NOW, timedelta(days=1))
    files.cert.write_bytes(pair.certificate_pem + leaf.certificate_pem)
    files.key.write_bytes(pair.key_pem)
    assert "does not lead to a CA" in refused(files)


def test_a_clock_that_is_wrong_is_told_with_both_times(files: TlsFiles, authority: Authority) -> None:
    late, early = NOW + timedelta(days=2), NOW - timedelta(days=3)
    assert refused(files, now=late) == (
        f"the certificate {files.cert} is not valid after 2026-11-02T12:00:00Z; this machine says 2026-11-03T12:00:00Z"
    )
    assert refused(files, now=early) == (
        f"the certificate {files.cert} is not valid before 2026-10-31T12:00:00Z; this machine says 2026-10-29T12:00:00Z"
    )
    authority.write(files, authority.make(life=timedelta(days=9_000)))
    later = NOW + timedelta(days=8_000)
    assert f"the certificate {files.ca} is not valid after 2036-" in refused(files, now=later)


@pytest.mark.parametrize(
    ("leaf", "wanted", "says"),
    [
        (BROKER, Wanted(frozenset({"admin.headrace"})), "lacks the name admin.headrace; it has 127.0.0.1, broker"),
        (Leaf("x"), Wanted(frozenset({"a"}), server=False), "lacks the name a; it has none"),
        (
            BROKER,
            Wanted(uris=frozenset({"spiffe://headrace/admin"})),
            "must be of spiffe://headrace/admin and nobody else; it is of",
        ),
        (Leaf("x"), Wanted(uris=frozenset({"spiffe://headrace/admin"}), server=False), "it is of none"),
        (of_client(), Wanted(), "is not one of servers"),
    ],
)
def test_a_certificate_that_says_something_else(
    files: TlsFiles, authority: Authority, leaf: Leaf, wanted: Wanted, says: str
) -> None:
    authority.write(files, authority.make(leaf))
    assert says in refused(files, wanted)


def test_what_clients_show_needs_no_name(files: TlsFiles, authority: Authority) -> None:
    authority.write(files, authority.make(of_client()))
    assert read(files, Wanted(uris=frozenset({"spiffe://headrace/coordinator"}), server=False))


def test_a_key_that_others_may_read_is_narrowed(files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    files.key.chmod(0o644)
    read(files)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert "was open to other users" in caplog.text


@pytest.mark.parametrize(("mode", "taken"), [(0o644, False), (0o604, False), (0o640, True), (0o440, True)])
def test_a_key_of_another_user_may_be_of_our_group_and_no_more(
    files: TlsFiles, mode: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.key.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if taken:
        read(files)
    else:
        assert "may be read by every user of this machine" in refused(files)
    assert stat.S_IMODE(files.key.stat().st_mode) == mode


def test_files_that_are_swapped_while_they_are_read_are_of_one_time(
    files: TlsFiles, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = authority.files(tmp_path / "other")
    link = tmp_path / "data"
    link.symlink_to(files.cert.parent)
    linked = TlsFiles(*(link / path.name for path in (files.cert, files.key, files.ca)))
    read_one, swaps = tls._read_one, [1]

    def swap(path: Path) -> bytes:
        text = read_one(path)
        if swaps and path == linked.cert:  # as Kubernetes does it
            swaps.pop()
            (tmp_path / "new").symlink_to(other.cert.parent)
            (tmp_path / "new").replace(link)
        return text

    monkeypatch.setattr(tls, "_read_one", swap)
    assert read(linked).pem.chain == other.cert.read_bytes()


def test_files_that_change_all_the_time_are_said_to(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    read_one = tls._read_one

    def touch(path: Path) -> bytes:
        os.utime(files.ca, ns=(0, files.ca.stat().st_mtime_ns + 1))
        return read_one(path)

    monkeypatch.setattr(tls, "_read_one", touch)
    assert "are being written just now" in refused(files)
