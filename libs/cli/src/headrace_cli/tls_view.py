"""What ``headrace tls`` shows: what nodes serve until when, how an address speaks, and what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace_cli.output import moment_for_people
from headrace_common.core.served_certificates import WARN_CA_MS, warns_from_ms

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.admin_certificate_types import CertificateBundle, NodeCertificates
    from headrace_cli.tls_probe import Probe
    from headrace_common.core.ids import Endpoint

Row = dict[str, Any]
COLUMNS: Final = ("node", "what", "until", "days", "issuer", "trusts", "note")
_DAY_MS: Final = 86_400_000
_SHOWN: Final = 12
"""Digits of a fingerprint, as people compare them."""
_NAMED_MAX: Final = 3


def rows_of(nodes: Iterable[NodeCertificates], now_ms: int) -> list[Row]:
    """For people: one row for each bundle."""
    rows: list[Row] = []
    for node in nodes:
        if node.fault is not None:
            rows.append({"node": node.node, "note": f"cannot be asked: {node.fault}"})
        elif not node.bundles:
            rows.append({"node": node.node, "note": "plain text"})
        rows.extend(_row(node.node, bundle, now_ms) for bundle in node.bundles)
    return rows


def as_data(nodes: Iterable[NodeCertificates]) -> list[Row]:
    """For programs, as REST answers."""
    from headrace_common.rpc.json_form import json_of

    return [json_of(node.wire) for node in nodes]


def complaints(nodes: Iterable[NodeCertificates], now_ms: int) -> list[str]:
    """What makes the command fail: of each node the first thing that is wrong."""
    found: list[str] = []
    for node in nodes:
        wrong = [f"it cannot be asked: {node.fault}"] if node.fault else []
        for bundle in node.bundles:
            if bundle.not_after_ms < now_ms:
                wrong.append(f"its certificate ended {moment_for_people(bundle.not_after_ms)}")
            if bundle.issuer.not_after_ms < now_ms:
                wrong.append(f"the CA of its certificate ended {moment_for_people(bundle.issuer.not_after_ms)}")
            if bundle.refused is not None:
                wrong.append(f"it refused its files: {bundle.refused}")
            if bundle.behind:
                wrong.append("a listener could not take its new certificate")
        found.extend(f"{node.node}: {one}" for one in wrong[:1])
    return found


def short(fingerprint: str) -> str:
    """Enough of it to tell it from others."""
    return fingerprint[:_SHOWN]


def probe_of(at: Endpoint, found: Probe, ca: Path | None, clock: str) -> Row:
    """How an address speaks."""
    demands = {True: "demanded of clients", False: "not demanded of clients", None: "not known"}
    told: Row = {
        "address": str(at),
        "tls": found.tls or f"no: {found.fault}",
        "plain_text": "answered" if found.plain else "not answered",
    }
    if not found.chain:
        return told
    first, *rest = found.chain
    return told | {
        "certificates": demands[found.demands],
        "subject": first.subject,
        "names": list(first.names),
        "uris": list(first.uris),
        "issuer": first.issuer,
        "serial": first.serial,
        "fingerprint": first.fingerprint,
        "not_before": moment_for_people(first.not_before_ms),
        "not_after": moment_for_people(first.not_after_ms),
        "clock": clock or "valid now",
        "chain": [one.subject for one in rest],
        "verified": "not tried: name the CAs with --ca" if ca is None else f"{found.verified or 'yes'} (by {ca})",
    }


def probe_complaint(found: Probe, name: str, ca: Path | None, clock: str) -> str:
    """Why a client that trusts ``ca`` would be refused; empty: it would not."""
    if found.tls is None:
        return f"it does not speak TLS: {found.fault}" if found.plain else f"no TLS came about: {found.fault}"
    if clock:
        return f"its certificate: {clock}"
    if found.verified:
        return f"its certificate does not verify under {ca} for {name}: {found.verified}"
    return ""


def _row(node: str, bundle: CertificateBundle, now_ms: int) -> Row:
    trusted: Sequence[str] = [short(ca.fingerprint) for ca in bundle.trusted[:_NAMED_MAX]]
    more = len(bundle.trusted) + bundle.trusted_more - len(trusted)
    return {
        "node": node,
        "what": bundle.name,
        "until": moment_for_people(bundle.not_after_ms),
        "days": (bundle.not_after_ms - now_ms) // _DAY_MS,
        "issuer": short(bundle.issuer.fingerprint),
        "trusts": " ".join(trusted) + (f" and {more} more" if more else ""),
        "note": _note(bundle, now_ms),
    }


def _note(bundle: CertificateBundle, now_ms: int) -> str:
    if bundle.refused is not None:
        return f"refused its files: {bundle.refused}"
    if bundle.not_after_ms < now_ms:
        return "over"
    if bundle.behind:
        return "a listener still shows the one before"
    if now_ms >= warns_from_ms(bundle.certificate.not_before_ms, bundle.not_after_ms):
        return "ends soon"
    issuer = bundle.issuer
    if now_ms >= warns_from_ms(issuer.not_before_ms, issuer.not_after_ms, WARN_CA_MS):
        return f"its CA ends {moment_for_people(issuer.not_after_ms)}"
    return ""
