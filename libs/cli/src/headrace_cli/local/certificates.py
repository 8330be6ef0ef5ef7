"""
Makes the certificates of a local cluster's etcd: a CA of this data directory, one pair for its members, one for those
who may use it. The supervisor calls ``renew`` at each start, before any process runs.

What is there is kept as long as it is sound and lasts; whatever is missing, torn, of another CA or old is made anew.
All processes start after that, so nobody is left with what was replaced.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace_cli.local.etcd import EtcdFiles
from headrace_cli.local.failures import LocalClusterFailed

CA_DAYS: Final = 3_650
LEAF_DAYS: Final = 1_095
"""A cluster that is started today runs for a third of that at least, without being started again."""
LEFT_AT_LEAST: Final = 1 / 3
"""Of a certificate's life; with less it is made anew."""
CLOCK_SKEW: Final = timedelta(days=1)
"""Certificates begin that much earlier: a clock that is set back a little does not end a cluster."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def renew(files: EtcdFiles, hosts: Collection[str], now: datetime) -> list[str]:
    """
    Have everything there that etcd and controllers need; the names of the files that were made.

    Args:
        hosts: where members listen, as addresses or names.

    Raises:
        LocalClusterFailed: files cannot be written.
    """
    try:
        files.directory.mkdir(mode=0o700, exist_ok=True)
        return _renew(files, frozenset(hosts), now)
    except OSError as error:
        raise LocalClusterFailed(
            f"cannot write etcd's certificates to {error.filename or files.directory}: {error.strerror}"
        ) from error


def _renew(files: EtcdFiles, hosts: frozenset[str], now: datetime) -> list[str]:
    made: list[str] = []
    ca = _read(files.ca)
    if ca is None or not _lasts(ca, ca, now):
        ca = _issue_ca(now)
        _write(files.ca, ca)
        made.append(files.ca.name)
    for path, names in ((files.member, hosts), (files.controller, frozenset[str]())):
        leaf = _read(path)
        if leaf is None or not _lasts(leaf, ca, now) or not names <= _names(leaf.certificate):
            _write(path, _issue(ca, path.stem, names, now))
            made.append(path.name)
    return made


def _lasts(pair: Pair, ca: Pair, now: datetime) -> bool:
    """Whether it is of this CA, belongs to its key, and has enough of its life left."""
    certificate = pair.certificate
    if certificate.public_key() != pair.key.public_key():
        return False
    try:
        certificate.verify_directly_issued_by(ca.certificate)
    except (InvalidSignature, TypeError, ValueError):
        return False
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc - life * LEFT_AT_LEAST


def _issue_ca(now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("headrace local CA")
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        **dict.fromkeys(
            (
                *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
                *("key_agreement", "encipher_only", "decipher_only"),
            ),
            False,
        ),
    )
    builder = _begin(name, name, key, now, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Pair(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)


def _issue(ca: Pair, name: str, hosts: frozenset[str], now: datetime) -> Pair:
    """For a client alone if it has no ``hosts``; members of etcd are clients of each other too."""
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = _begin(_name(name), ca.certificate.subject, key, now, LEAF_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in sorted(hosts)])
        builder = builder.add_extension(names, critical=False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value) for name in names)


def _read(path: Path) -> Pair | None:
    """None: one of the two is missing, or is none."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key = serialization.load_pem_private_key(EtcdFiles.key(path).read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return None
    return Pair(certificate, key) if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _write(path: Path, pair: Pair) -> None:
    """A start that is cut between the two leaves a pair that does not match, and the next start makes it anew."""
    secret = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for target, text in (
        (EtcdFiles.key(path), secret),
        (path, pair.certificate.public_bytes(serialization.Encoding.PEM)),
    ):
        draft = target.with_name(f"{target.name}.draft")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
        draft.replace(target)
