"""
Encrypts backups to certificates, and opens them by a key: CMS EnvelopedData (RFC 5652), which ``openssl cms`` opens.

The content is under AES-256-CBC, its key under RSA, for each certificate. That keeps it from who has no key. It does
not say who made it: whoever has the certificate can make another. All in memory; plain text is never on a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs7 import (
    PKCS7EnvelopeBuilder,
    PKCS7Options,
    pkcs7_decrypt_pem,
)

from headrace_common.core.errors import Rejected, UnsupportedVersion
from headrace_controller.core.backup_file import Backup, BackupDamaged, decode, encode, identity_in
from headrace_controller.core.encrypted_backup import (
    decode_encrypted,
    encode_encrypted,
    facts_of,
    is_encrypted,
)

CERTIFICATES_MAX: Final = 8
_FILE_BYTES_MAX: Final = 256 * 1024
_RSA_BITS_MIN: Final = 2048
_HOW: Final = "openssl req -x509 -newkey rsa:3072 -keyout backup.key -out backup.crt -subj /CN=backups -days 3650"


class CertificateUnfit(Rejected):
    """No backup can be encrypted to this certificate; give one with an RSA key of 2048 bits or more."""


class BackupKeyMissing(Rejected):
    """The backup is encrypted, and the key that opens it was not given."""


class Recipients:
    """Certificates; the owner of the key of any of them can read what is encrypted to them."""

    def __init__(self, certificates: list[x509.Certificate]) -> None:
        """
        Raises:
            CertificateUnfit: there is none, there are more than 8, or one has no RSA key that will do.
        """
        if not 1 <= len(certificates) <= CERTIFICATES_MAX:
            raise CertificateUnfit(f"give 1 to {CERTIFICATES_MAX} certificates, not {len(certificates)}")
        for certificate in certificates:
            _check(certificate)
        self._certificates = certificates

    @staticmethod
    def read(path: Path) -> Recipients:
        """
        Those of a file in PEM.

        Raises:
            CertificateUnfit: it holds none that will do, or a private key.
            OSError: it cannot be read.
        """
        content = _content(path)
        if b"PRIVATE KEY-----" in content:
            raise CertificateUnfit(
                f"{path} holds a private key, which has to be far from the backups; give its certificate"
            )
        try:
            return Recipients(x509.load_pem_x509_certificates(content))
        except ValueError as error:
            raise CertificateUnfit(f"{path} holds no certificate in PEM; make one: {_HOW}") from error
        except CertificateUnfit as error:
            raise CertificateUnfit(f"{path}: {error}") from error

    def names(self) -> list[str]:
        """As people and ``openssl x509 -fingerprint -sha256`` tell them apart."""
        return [_name(certificate) for certificate in self._certificates]

    def seal(self, backup: Backup) -> bytes:
        """
        What a file is to hold.

        Raises:
            UnsupportedVersion: the library here does not do what it takes.
        """
        plain = encode(backup)
        try:
            builder = PKCS7EnvelopeBuilder().set_data(plain).set_content_encryption_algorithm(algorithms.AES256)
            for certificate in self._certificates:
                builder = builder.add_recipient(certificate)
            envelope = builder.encrypt(Encoding.PEM, [PKCS7Options.Binary])
        except UnsupportedAlgorithm as error:
            raise UnsupportedVersion(f"backups cannot be encrypted on this machine: {error}") from error
        pem = tuple(c.public_bytes(Encoding.PEM).decode() for c in self._certificates)
        return encode_encrypted(facts_of(backup, identity_in(plain), pem), envelope)


class BackupKey:
    """The private key that opens backups."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key

    @staticmethod
    def read(path: Path, ask: Callable[[str], str]) -> BackupKey:
        """
        That of a file in PEM.

        Args:
            ask: for its password, if it has one; it is told what for.

        Raises:
            Rejected: it holds no RSA key, or the password is not its own.
            OSError: it cannot be read.
        """
        content = _content(path)
        try:
            try:
                key = load_pem_private_key(content, None)
            except TypeError:  # it has a password
                key = load_pem_private_key(content, ask(f"password of {path}: ").encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise Rejected(f"{path} cannot be read as a private key in PEM, or its password is another one") from error
        if not isinstance(key, rsa.RSAPrivateKey):
            raise Rejected(
                f"{path} is no RSA key, and backups are encrypted to those alone; give the certificate's key"
            )
        return BackupKey(key)

    def open(self, envelope: bytes, certificates: list[x509.Certificate]) -> bytes:
        """
        The plain text of an envelope for these certificates.

        Raises:
            BackupKeyMissing: this is the key of none of them.
            BackupDamaged: it cannot be opened, whoever has the key.
        """
        own = self._key.public_key()
        mine = next((certificate for certificate in certificates if certificate.public_key() == own), None)
        if mine is None:
            raise BackupKeyMissing(f"the key is another one; the backup is encrypted to {_all(certificates)}")
        try:
            return pkcs7_decrypt_pem(envelope, mine, self._key, [])
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BackupDamaged(f"the envelope of the backup cannot be opened ({error}); take another one") from error


def read_backup(content: bytes, key: BackupKey | None) -> Backup:
    """
    The backup that a file's content is, encrypted or not.

    Raises:
        BackupKeyMissing: it is encrypted, and ``key`` is not the one.
        BackupDamaged, UnsupportedVersion: as ``decode``.
    """
    if not is_encrypted(content):
        return decode(content)
    facts, envelope = decode_encrypted(content)
    try:
        certificates = [x509.load_pem_x509_certificate(pem.encode()) for pem in facts.certificates]
    except ValueError as error:
        raise BackupDamaged(f"the backup's certificates cannot be read ({error}); take another one") from error
    if key is None:
        raise BackupKeyMissing(
            f"the backup is encrypted to {_all(certificates)}; give its key with --decrypt-with FILE"
        )
    plain = key.open(envelope, certificates)
    backup = decode(plain)
    if facts != facts_of(backup, identity_in(plain), facts.certificates):
        raise BackupDamaged("what is written on the backup is not what is in it; take another one")
    return backup


def _check(certificate: x509.Certificate) -> None:
    key = certificate.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise CertificateUnfit(
            f"the key of {_name(certificate)} is no RSA key, and envelopes are made for those alone; make one: {_HOW}"
        )
    if key.key_size < _RSA_BITS_MIN:
        raise CertificateUnfit(
            f"the key of {_name(certificate)} has {key.key_size} bits, not {_RSA_BITS_MIN} or more; make one: {_HOW}"
        )


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX)


def _all(certificates: list[x509.Certificate]) -> str:
    return " and to ".join(map(_name, certificates)) or "nobody"


def _name(certificate: x509.Certificate) -> str:
    subject = certificate.subject.rfc4514_string() or "a certificate without a name"
    return f"{subject} (SHA-256 {certificate.fingerprint(hashes.SHA256()).hex()})"
