"""
Decides which certificates a process may use: reads its files and checks them as one.

A ``Bundle`` was checked when it was made: the key belongs to the certificate, which leads to a CA of the bundle, is
valid now, and says the names that it must. Nothing else reaches gRPC or a context of asyncio, which find out about a
wrong one when a peer connects, or not at all. ``tls_watch`` looks at the files again and again.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.served_certificates import Certificate
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime.certificates import names_of
from headrace_common.runtime.private_files import narrow
from headrace_common.runtime.tls_config import TlsFiles

FILE_BYTES_MAX: Final = 1 << 20
TOLD_MAX: Final = 100
"""CAs that are told of, and names of a certificate."""
_TEXT_MAX: Final = 1_000
SAYS: Final = "; this machine says "
"""Before the time of the machine in an error."""
_READS_MAX: Final = 3
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a certificate has to say."""

    names: frozenset[str] = frozenset()
    """Names and addresses that it must have."""
    uris: frozenset[str] = frozenset()
    """One of these it must be of, and of nobody else: ``spiffe://TRUSTDOMAIN/ROLE``. None: it does not matter."""
    server: bool = True
    """Whether it is shown to clients."""
    client: bool = True
    """Whether it is shown to servers."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Certificates that were found sound. Made by ``read_bundle``; never changes."""

    pem: Pem
    fingerprint: str
    """SHA-256 of the certificate, hexadecimal."""
    not_after: datetime
    """When the first of its chain ends."""
    trusted: frozenset[bytes]
    """SHA-256 of each CA in ``pem``."""
    certificate: Certificate
    """What the first of its chain says."""
    names: frozenset[str]
    """All hosts and URIs that it names."""
    issuer: Certificate
    """The CA that its chain leads to."""
    cas: tuple[Certificate, ...]
    """What those of ``trusted`` say, the first ``TOLD_MAX``."""
    begins: datetime
    """When the first of its chain that ends begins."""
    ca_not_after: datetime
    """When the CA of its chain ends; of a listener whose clients show certificates, the first of their CAs."""

    def distrusts(self, other: Bundle) -> bool:
        """Whether ``other`` trusts a CA that this one does not."""
        return not other.trusted <= self.trusted


def read_bundle(files: TlsFiles, wanted: Wanted, now_ms: int) -> Bundle:
    """
    Read and check ``files``. A key that others may read is narrowed, if it is ours. Blocks.

    Raises:
        InvalidConfig: they cannot be used; the text says which file, and why.
    """
    _keep_private(files.key)
    cert, key, ca, *of_clients = _read(files)
    now = datetime.fromtimestamp(now_ms / 1_000, UTC)
    chain, trusted = _parse(files.cert, cert), _parse(files.ca, ca)
    _check_pair(files, chain[0], key)
    for certificate in chain:
        _check_time(files.cert, certificate, now)
    root = _check_chain(files, chain, trusted, now)
    _check_says(files.cert, chain[0], wanted)
    ca_not_after = root.not_valid_after_utc
    if files.client_ca is not None:
        (ca,), own = of_clients, trusted
        trusted = _parse(files.client_ca, ca)
        _check_client_cas(files.client_ca, trusted, own, now)
        ca_not_after = min(certificate.not_valid_after_utc for certificate in trusted)
    first = min(chain, key=lambda certificate: certificate.not_valid_after_utc)
    return Bundle(
        Pem(ca, cert, key),
        chain[0].fingerprint(hashes.SHA256()).hex(),
        first.not_valid_after_utc,
        frozenset(certificate.fingerprint(hashes.SHA256()) for certificate in trusted),
        certificate=describe(chain[0]),
        names=names_of(chain[0]),
        issuer=describe(root),
        cas=tuple(describe(certificate) for certificate in trusted[:TOLD_MAX]),
        begins=first.not_valid_before_utc,
        ca_not_after=ca_not_after,
    )


def _read(files: TlsFiles) -> list[bytes]:
    """All of them as they were at one time: Kubernetes swaps them all at once, by a link, while we read."""
    paths = (files.cert, files.key, files.ca, *(() if files.client_ca is None else (files.client_ca,)))
    path = files.cert
    try:
        for _ in range(_READS_MAX):
            before = [_version(path := one) for one in paths]
            read = [_read_one(path := one) for one in paths]
            if before == [_version(path := one) for one in paths]:
                return read
    except OSError as error:
        raise InvalidConfig(f"cannot read the TLS file {path}: {error.strerror}") from error
    raise InvalidConfig(f"the TLS files {', '.join(map(str, paths))} are being written just now")


def _version(path: Path) -> tuple[int, int, int, int]:
    at = path.stat()
    return at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size


def _read_one(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise InvalidConfig(f"the TLS file {path} has more than {FILE_BYTES_MAX} bytes; it is no file of certificates")
    return text


def _keep_private(key: Path) -> None:
    """
    Take the rights of others from a key that is ours. One that another user owns, as in the volume of a Secret, may be
    readable by a group of ours, but by nobody else.
    """
    narrowed = narrow(key)
    if narrowed.count:
        _log.warning("the key was open to other users, and is not any more", extra={"path": str(key)})
    try:
        mode = key.stat().st_mode
    except OSError:
        return  # whoever reads it says so
    if mode & stat.S_IRWXO:
        raise InvalidConfig(
            f"the key {key} may be read by every user of this machine, and its rights cannot be changed by user "
            f"{os.geteuid()}; use chmod 0640 or 0600 there (a Secret's volume has defaultMode)"
        )


def _parse(path: Path, text: bytes) -> list[x509.Certificate]:
    if not text.count(_BEGIN) == text.count(_END) > 0:
        raise InvalidConfig(f"the TLS file {path} has no certificate, or is half written")
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise InvalidConfig(f"the TLS file {path} has something that is no certificate ({error})") from error


def _check_pair(files: TlsFiles, certificate: x509.Certificate, text: bytes) -> None:
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except TypeError:
        raise InvalidConfig(f"the key {files.key} is encrypted; store it without a password") from None
    except ValueError:  # its text may show parts of the key
        raise InvalidConfig(f"the key {files.key} is no key in PEM, or is half written") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidConfig(f"the key {files.key} is not of ECDSA P-256; have the certificate made for such a key")
    if key.public_key() != certificate.public_key():
        raise InvalidConfig(
            f"the key {files.key} does not belong to the certificate {files.cert}; one of them is half of a change"
        )


def _check_time(path: Path, certificate: x509.Certificate, now: datetime) -> None:
    before, after = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < before:
        raise InvalidConfig(f"the certificate {path} is not valid before {_show(before)}{SAYS}{_show(now)}")
    if now > after:
        raise InvalidConfig(f"the certificate {path} is not valid after {_show(after)}{SAYS}{_show(now)}")


def _check_chain(
    files: TlsFiles, chain: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate], now: datetime
) -> x509.Certificate:
    """The CA that it leads to."""
    valid = [ca for ca in trusted if ca.not_valid_before_utc <= now <= ca.not_valid_after_utc]
    if not valid:
        _check_time(files.ca, trusted[0], now)
    issuer = ExtensionPolicy.permit_all().require_present(x509.BasicConstraints, Criticality.AGNOSTIC, _is_ca)
    verifier = (
        PolicyBuilder()
        .store(Store(valid))
        .time(now)
        .extension_policies(ca_policy=issuer, ee_policy=ExtensionPolicy.permit_all())
        .build_client_verifier()
    )
    try:
        return verifier.verify(chain[0], list(chain[1:])).chain[-1]
    except VerificationError as error:
        raise InvalidConfig(f"the certificate {files.cert} does not lead to a CA of {files.ca} ({error})") from error


def _check_client_cas(
    path: Path, trusted: Sequence[x509.Certificate], own: Sequence[x509.Certificate], now: datetime
) -> None:
    """Whoever these sign is a client: nobody else's certificate, and none of the nodes'."""
    of_nodes = {_spki(ca) for ca in own}
    for ca in trusted:
        if _spki(ca) in of_nodes:
            raise InvalidConfig(
                f"the file {path} has a CA of the nodes' certificates, which would make each node a client; clients "
                "have a CA of their own there"
            )
        try:
            ca_too = ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            ca_too = False
        if not ca_too:
            raise InvalidConfig(
                f"the file {path} has a certificate that is no CA ({ca.subject.rfc4514_string()}); it takes those that "
                "sign the certificates of clients"
            )
    if not any(ca.not_valid_before_utc <= now <= ca.not_valid_after_utc for ca in trusted):
        _check_time(path, trusted[0], now)


def _spki(certificate: x509.Certificate) -> bytes:
    """Its key, by which a CA is the same one under another name."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return certificate.public_key().public_bytes(serialization.Encoding.DER, form)


def _is_ca(_: Policy, __: x509.Certificate, constraints: x509.BasicConstraints) -> None:
    if not constraints.ca:
        raise ValueError("it was signed by a certificate that is no CA")


def _check_says(path: Path, certificate: x509.Certificate, wanted: Wanted) -> None:
    names = names_of(certificate)
    missing = wanted.names - names
    if missing:
        raise InvalidConfig(
            f"the certificate {path} lacks the name {', '.join(sorted(missing))}; it has {_list(names)}"
        )
    if wanted.uris:
        uris = _uris_of(certificate)
        if len(uris) != 1 or uris[0] not in wanted.uris:  # gRPC takes an identity from one that has one URI
            raise InvalidConfig(
                f"the certificate {path} must be of {min(wanted.uris, key=len)} and nobody else; it is of {_list(uris)}"
            )
    uses = {
        ExtendedKeyUsageOID.SERVER_AUTH: ("servers", wanted.server),
        ExtendedKeyUsageOID.CLIENT_AUTH: ("clients", wanted.client),
    }
    try:
        allowed = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # any
    for use, (whose, needed) in uses.items():
        if needed and use not in allowed:
            raise InvalidConfig(f"the certificate {path} is not one of {whose} (extended key usage)")


def describe(certificate: x509.Certificate) -> Certificate:
    """What it says, in bounds. What it says in a way that nobody can read is left out."""
    try:
        uris = _uris_of(certificate)
        names = sorted(names_of(certificate).difference(uris))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        uris, names = [], []
    return Certificate(
        subject=certificate.subject.rfc4514_string()[:_TEXT_MAX],
        issuer=certificate.issuer.rfc4514_string()[:_TEXT_MAX],
        names=tuple(name[:_TEXT_MAX] for name in names[:TOLD_MAX]),
        uris=tuple(uri[:_TEXT_MAX] for uri in uris[:TOLD_MAX]),
        serial=f"{certificate.serial_number:x}",
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        not_before_ms=_ms_of(certificate.not_valid_before_utc),
        not_after_ms=_ms_of(certificate.not_valid_after_utc),
    )


def _ms_of(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)


def _uris_of(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _list(names: Sequence[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _show(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
