"""Keys and certificates for encrypted backups."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def certify(key: Key, name: str = "backups") -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.datetime(2001, 1, 1)  # noqa: DTZ001  as the library has it
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), start)
    return builder.not_valid_after(start + datetime.timedelta(days=1)).sign(key, hashes.SHA256())


def key_file(path: Path, key: Key, under: KeySerializationEncryption | None = None) -> Path:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, under or NoEncryption()))
    return path


def certificate_file(path: Path, *certificates: x509.Certificate) -> Path:
    path.write_bytes(b"".join(c.public_bytes(Encoding.PEM) for c in certificates))
    return path
