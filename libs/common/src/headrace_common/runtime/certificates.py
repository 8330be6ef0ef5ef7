"""
Makes certificates: a CA, and pairs that it signs. The only place that does; keys are ECDSA P-256.

Called by who keeps the certificates of a local cluster, and by tests. What a process is given to use is read and
checked by ``tls``, whoever made it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace_common.core.image import Role
from headrace_common.core.node_rules import host_of, uri_of

CA_LIFE: Final = timedelta(days=3_650)
LEFT_AT_LEAST: Final = 1 / 3
"""Of a certificate's life; with less it is made anew."""
CLOCK_SKEW: Final = timedelta(days=1)
"""Certificates begin that much earlier: a clock that is set back a little does not end a cluster."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a certificate says of its owner."""

    name: str
    """Its common name, which people read; nothing is decided by it."""
    hosts: frozenset[str] = frozenset()
    """Names and addresses by which a server is reached. Without any it is of a client alone."""
    uri: str | None = None
    """Which node it is of: ``spiffe://TRUSTDOMAIN/ROLE``."""
    client: bool = True
    """Whether it may be shown to servers, as nodes and members of etcd do to each other."""


def leaf_of(role: str, hosts: Iterable[str], trust_domain: str) -> Leaf:
    """
    Of the processes of ``role``, reached at ``hosts``. One that is no role of nodes, as of workers, has no URI, and is
    of servers alone: where nodes are asked for certificates, it is not taken.
    """
    node = role in {node.value for node in Role}
    return Leaf(role, frozenset({*hosts, host_of(role)}), uri_of(trust_domain, role) if node else None, client=node)


def make_ca(name: str, now: datetime, life: timedelta = CA_LIFE) -> Pair:
    """A new CA, which signs leaves and no other CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
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
    builder = _begin(subject, key, (subject, key), now, life)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Pair(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)


def make_pair(ca: Pair, leaf: Leaf, now: datetime, life: timedelta) -> Pair:
    """A new pair that ``ca`` has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [
        *([ExtendedKeyUsageOID.CLIENT_AUTH] if leaf.client else []),
        *([ExtendedKeyUsageOID.SERVER_AUTH] if leaf.hosts else []),
    ]
    builder = _begin(_name(leaf.name), key, (ca.certificate.subject, ca.key), now, life)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    names = [*map(_general_name, sorted(leaf.hosts))]
    if leaf.uri is not None:
        names.append(x509.UniformResourceIdentifier(leaf.uri))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def lasts(pair: Pair, ca: Pair, now: datetime) -> bool:
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


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """The hosts and URIs that it names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value) for name in names)


def serves(pair: Pair, ca: Pair, leaf: Leaf, now: datetime) -> bool:
    """Whether it says all that ``leaf`` says, and ``lasts``."""
    named = {*leaf.hosts, *([leaf.uri] if leaf.uri else [])}
    return lasts(pair, ca, now) and named <= names_of(pair.certificate)


def parse_pair(certificate: bytes, key: bytes) -> Pair | None:
    """Of two texts in PEM. None: one of the two is none."""
    try:
        read = x509.load_pem_x509_certificate(certificate)
        secret = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        return None
    return Pair(read, secret) if isinstance(secret, ec.EllipticCurvePrivateKey) else None


def read_pair(certificate: Path, key: Path) -> Pair | None:
    """What ``write_pair`` wrote. None: one of the two is missing, or is none."""
    try:
        return parse_pair(certificate.read_bytes(), key.read_bytes())
    except OSError:
        return None


def write_pair(certificate: Path, key: Path, pair: Pair) -> None:
    """
    For this user alone. A write that is cut between the two leaves a pair that does not match.

    Raises:
        OSError: they cannot be written.
    """
    write_private(key, pair.key_pem)
    write_private(certificate, pair.certificate_pem)


def write_private(path: Path, text: bytes) -> None:
    """The whole file or none, for this user alone. Raises: OSError: it cannot be written."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
    draft.replace(path)


def _begin(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey],
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    """With the identifiers of both keys: a CA and the one that replaces it have one name, and both are trusted."""
    issued_by, issuing_key = issuer
    theirs = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuing_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issued_by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(theirs, critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
