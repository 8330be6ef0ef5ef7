"""What nodes say of their certificates, as the messages of ``certificates.proto`` and back."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_common.core.served_certificates import Certificate, Served
from headrace_proto.v1 import certificates_pb2 as pb


def served_to_proto(served: Iterable[Served]) -> list[pb.CertificateBundle]:
    return [
        pb.CertificateBundle(
            name=one.name,
            certificate=_certificate(one.certificate),
            not_after_ms=one.not_after_ms,
            issuer=_certificate(one.issuer),
            trusted=map(_certificate, one.trusted),
            trusted_more=one.trusted_more,
            refused=one.refused,
            behind=one.behind,
        )
        for one in served
    ]


def served_from_proto(told: Iterable[pb.CertificateBundle]) -> tuple[Served, ...]:
    return tuple(
        Served(
            name=one.name,
            certificate=_certificate_of(one.certificate),
            not_after_ms=one.not_after_ms,
            issuer=_certificate_of(one.issuer),
            trusted=tuple(map(_certificate_of, one.trusted)),
            trusted_more=one.trusted_more,
            refused=one.refused,
            behind=one.behind,
        )
        for one in told
    )


def _certificate(one: Certificate) -> pb.Certificate:
    return pb.Certificate(
        subject=one.subject,
        issuer=one.issuer,
        names=one.names,
        uris=one.uris,
        serial=one.serial,
        fingerprint=one.fingerprint,
        not_before_ms=one.not_before_ms,
        not_after_ms=one.not_after_ms,
    )


def _certificate_of(told: pb.Certificate) -> Certificate:
    return Certificate(
        subject=told.subject,
        issuer=told.issuer,
        names=tuple(told.names),
        uris=tuple(told.uris),
        serial=told.serial,
        fingerprint=told.fingerprint,
        not_before_ms=told.not_before_ms,
        not_after_ms=told.not_after_ms,
    )
