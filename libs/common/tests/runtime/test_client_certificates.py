"""Whom a certificate names that a client shows, and which name nobody."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
from libs.common.tests.kit.authority import Authority

from headrace_common.core.access.client_certificates import ClientCertificate, read_certificate, write_certificate
from headrace_common.runtime import client_certificates
from headrace_common.runtime.certificates import Leaf
from headrace_common.runtime.client_certificates import ClientCertificates, read_client_certificate

CA = Authority()


def made(uris: tuple[str, ...] = (), names: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> bytes:
    """A certificate that says all these."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]))
        .issuer_name(CA.ca.certificate.subject)
        .public_key(CA.ca.key.public_key())
        .serial_number(7)
        .not_valid_before(CA.now)
        .not_valid_after(CA.now + timedelta(days=1))
    )
    alternative: list[Any] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    alternative += [x509.DNSName(host) for host in hosts]
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    return builder.sign(CA.ca.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("uris", "names", "owner"),
    [
        (("spiffe://a/b",), ("c",), "Cert:spiffe://a/b"),
        (("urn:a:b:c",), (), "Cert:urn:a:b:c"),
        ((), ("c",), "Cert:c"),
        ((), ("CN of, a=machine",), "Cert:CN of, a=machine"),
        (("spiffe://headrace/brokers",), (), "Cert:spiffe://headrace/brokers"),
        (("spiffe://headrace.example/broker",), (), "Cert:spiffe://headrace.example/broker"),
    ],
)
def test_it_is_of_its_uri_else_of_its_common_name(uris: Any, names: Any, owner: str) -> None:
    read = read_client_certificate(made(uris, names, ("machine.example",)), "headrace")
    assert (str(read.owner), read.fault) == (owner, "")
    assert read.expires_ms == int((CA.now + timedelta(days=1)).timestamp()) * 1_000
    assert read.check(0) == read.owner


@pytest.mark.parametrize(
    ("pem", "says"),
    [
        (made(("spiffe://a/b", "spiffe://a/c")), "has 2 of URI"),
        (made(names=("a", "b")), "has 2 of common name"),
        (made(hosts=("machine.example",)), "names nobody"),
        (made(), "names nobody"),
        (made(("spiffe://headrace/broker/3",), ("billing",)), "of a node of the cluster"),
        (made(("spiffe://a/*",)), "has a URI that names nobody"),
        (made((f"spiffe://a/{'b' * 300}",)), "it has 1 to 255"),
        (b"", "cannot be read"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
        (made(("spiffe://a/b",)).replace(b"MII", b"MIJ", 1), "cannot be read"),
    ],
)
def test_one_that_names_nobody_or_several_is_nobodys(pem: bytes, says: str) -> None:
    read = read_client_certificate(pem, "headrace")
    assert read.owner is None
    assert says in read.fault


def test_what_a_node_tells_another_of_it_is_all_that_decides() -> None:
    read = read_client_certificate(made(("spiffe://a/b",)), "headrace")
    assert read_certificate(write_certificate(read)) == read


def test_each_is_read_once_and_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def read(pem: bytes, trust_domain: str) -> ClientCertificate:
        seen.append(pem)
        return ClientCertificate(None, "", 0, "")

    class Context:
        def __init__(self, **shown: Any) -> None:
            self._shown = shown

        def auth_context(self) -> dict[str, Any]:
            return self._shown

    monkeypatch.setattr(client_certificates, "read_client_certificate", read)
    monkeypatch.setattr(client_certificates, "KNOWN_MAX", 2)
    certificates = ClientCertificates("headrace")
    for pem in (b"a", b"a", b"b", b"c", b"b", b"a"):
        certificates.of(Context(x509_pem_cert=[pem]))
    assert seen == [b"a", b"b", b"c", b"a"]
    certificates.of(Context())
    assert seen[-1] == b"", "who has shown none is nobody"


def test_common_names_of_pairs_are_read_as_they_were_made() -> None:
    pair = CA.make(Leaf("Größe"))
    assert str(read_client_certificate(pair.certificate_pem, "headrace").owner) == "Cert:Größe"
