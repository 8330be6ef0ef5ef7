"""
``python -m headrace_controller.certificate_secrets NAME --role broker=HOST,HOST …``: have the certificates of a cluster
there. For Kubernetes, at each install and upgrade and once a day.

The Secret ``NAME-ca`` has the CA and its key, and no pod mounts it; the ConfigMap ``NAME-ca`` has the CA alone, for
clients. Each role has a Secret ``NAME-ROLE-tls`` with its pair and the CA. With ``--etcd HOST,HOST`` the same for etcd,
of another CA, ``NAME-etcd-ca``: nodes' certificates are worth nothing there. Its members have ``NAME-etcd-tls``, and
who may use it ``NAME-etcd-client-tls``.

Where somebody else makes those of the nodes there is no ``--role``, and no CA of ours. ``--ca-of SECRET`` has the
ConfigMap ``NAME-ca`` say what that Secret has as ``ca.crt``.

What is missing is made, and what has less than a third of its life left, or does not name all hosts, is made anew; pods
take it without a restart. What somebody else has made stays as it is. Whoever changes a CA puts both into its Secret,
the one that signs first; all others follow. Prints a line for each, without keys; 0 if all are there now, 1 if not.
"""

from __future__ import annotations

import argparse
import base64
import http
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.runtime.certificates import (
    LEFT_AT_LEAST,
    Leaf,
    Pair,
    leaf_of,
    make_ca,
    make_pair,
    parse_pair,
    serves,
)
from headrace_common.runtime.kubernetes import ACCOUNT, ApiServer, ApiServerFailed, refusal

MADE: Final = "headrace.io/certificate"
"""Label of what is made here, and may be made anew here; its value is ``made``."""
LEAF_LIFE: Final = timedelta(days=90)
OTHERS: Final = "of somebody else, and stays as it is"
TRIES_MAX: Final = 3
"""An object that somebody else changes meanwhile is looked at again."""


class CertificatesRefused(Rejected):
    """What is there cannot be used."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Whose certificates they are."""

    name: str
    labels: Mapping[str, str]
    trust_domain: str


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs."""

    pair: Pair
    bundle: bytes
    """All CAs that are trusted, in PEM; it comes first."""


@dataclass(frozen=True, slots=True)
class Objects:
    """Those of one kind in the pod's namespace."""

    server: ApiServer
    kind: str
    """Such as ``Secret``."""

    def find(self, name: str) -> Mapping[str, Any] | None:
        """
        Raises:
            ApiServerFailed: the API server cannot be asked now.
            ApiServerRefused: it does not let this account.
        """
        status, answer = self.server.ask("GET", f"{self._path}/{name}")
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        if status != http.HTTPStatus.OK:
            raise self._refused("show", name, status, answer)
        return answer

    def write(self, found: Mapping[str, Any] | None, name: str, wanted: Mapping[str, Any]) -> bool:
        """
        Make it, or replace what was ``found``; False: somebody else was faster.

        Raises:
            ApiServerFailed, ApiServerRefused: as ``find``.
        """
        if found is None:
            status, answer = self.server.ask("POST", self._path, wanted)
        else:
            version = found["metadata"]["resourceVersion"]
            wanted = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}
            status, answer = self.server.ask("PUT", f"{self._path}/{name}", wanted)
        if status in {http.HTTPStatus.CREATED, http.HTTPStatus.OK}:
            return True
        if status == http.HTTPStatus.CONFLICT and answer.get("reason") in {"AlreadyExists", "Conflict"}:
            return False
        raise self._refused("make", name, status, answer)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.server.namespace}/{self.kind.lower()}s"

    def _refused(self, what: str, name: str, status: int, answer: Mapping[str, Any]) -> HeadraceError:
        instead = "make certificates yourself, and name them in tls.existing"
        return refusal(f"{what} the {self.kind} {name} in {self.server.namespace}", status, answer, instead)


def keep(
    server: ApiServer,
    cluster: Cluster,
    hosts: Mapping[str, Sequence[str]],
    etcd_hosts: Sequence[str],
    now: datetime,
    ca_of: str | None = None,
) -> Iterator[str]:
    """
    Have all of them there; a line for each.

    Args:
        hosts: of each role, where its processes are reached; none: nodes have no certificates of ours.
        etcd_hosts: where members of etcd are; none: of etcd there are no certificates.
        ca_of: the Secret of somebody else whose CA clients trust.

    Raises:
        ApiServerFailed: the API server cannot be asked now; those whose line was given are there.
        ApiServerRefused: this account may not make what is missing.
        CertificatesRefused: what is there cannot be used.
    """
    if hosts:
        ca, said = _keep_ca(server, cluster, f"{cluster.name}-ca", "nodes", now)
        yield said
        yield _keep_bundle(server, cluster, ca.bundle.decode())
        for role, names in hosts.items():
            yield _keep_pair(server, cluster, ca, leaf_of(role, names, cluster.trust_domain), now)
    if etcd_hosts:
        ca, said = _keep_ca(server, cluster, f"{cluster.name}-etcd-ca", "etcd", now)
        yield said
        for leaf in (Leaf("etcd", frozenset(etcd_hosts)), Leaf("etcd-client")):
            yield _keep_pair(server, cluster, ca, leaf, now)
    if ca_of:
        yield _keep_bundle(server, cluster, _bundle_of(server, ca_of))


def _bundle_of(server: ApiServer, name: str) -> str:
    secret = Objects(server, "Secret").find(name)
    bundle = b"" if secret is None else _part(secret, "ca.crt")
    if not bundle:
        raise CertificatesRefused(
            f"the Secret {name} is not there yet, or its ca.crt is empty: an issuer that tells no CA needs a ConfigMap "
            "of yours, tls.existing.ca"
        )
    return bundle.decode()


def _keep_ca(server: ApiServer, cluster: Cluster, name: str, whose: str, now: datetime) -> tuple[Authority, str]:
    secrets = Objects(server, "Secret")
    for _ in range(TRIES_MAX):
        found = secrets.find(name)
        if found is not None:
            return _authority_in(found, now)
        ca = make_ca(f"{cluster.name} CA of {whose}", now)
        parts = {"ca.crt": ca.certificate_pem, "ca.key": ca.key_pem}
        if secrets.write(None, name, _secret(cluster, name, "Opaque", parts)):
            return Authority(ca, ca.certificate_pem), f"Secret {name}: made"
    raise ApiServerFailed(f"the Secret {name} is made and removed again all the time")


def _authority_in(secret: Mapping[str, Any], now: datetime) -> tuple[Authority, str]:
    name = secret["metadata"]["name"]
    ca = _pair_in(secret, "ca")
    if ca is None or ca.certificate.public_key() != ca.key.public_key():
        raise CertificatesRefused(
            f"the Secret {name} holds no CA with its key (ca.crt, ca.key: ECDSA, PEM); put them back from a copy. "
            "Without one, remove it, and start all pods again with what is made then"
        )
    begins, ends = ca.certificate.not_valid_before_utc, ca.certificate.not_valid_after_utc
    ending = ends - now < (ends - begins) * LEFT_AT_LEAST
    said = f"its CA ends at {ends:%Y-%m-%d}; make another one, docs/security.md says how" if ending else "is there"
    return Authority(ca, _part(secret, "ca.crt")), f"Secret {name}: {said}"


def _keep_bundle(server: ApiServer, cluster: Cluster, text: str) -> str:
    """What clients trust."""
    name, maps = f"{cluster.name}-ca", Objects(server, "ConfigMap")
    for _ in range(TRIES_MAX):
        found = maps.find(name)
        if found is not None and not _is_ours(found):
            return f"ConfigMap {name}: {OTHERS}"
        if found is not None and (found.get("data") or {}).get("ca.crt") == text:
            return f"ConfigMap {name}: is there"
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named(cluster, name), "data": {"ca.crt": text}}
        if maps.write(found, name, made):
            return f"ConfigMap {name}: made"
    raise ApiServerFailed(f"the ConfigMap {name} is changed by somebody else all the time")


def _keep_pair(server: ApiServer, cluster: Cluster, ca: Authority, leaf: Leaf, now: datetime) -> str:
    name, secrets = f"{cluster.name}-{leaf.name}-tls", Objects(server, "Secret")
    for _ in range(TRIES_MAX):
        found = secrets.find(name)
        if found is not None and not _is_ours(found):
            return f"Secret {name}: {OTHERS}"
        pair = None if found is None else _pair_in(found, "tls")
        if pair is None or not serves(pair, ca.pair, leaf, now):
            pair = make_pair(ca.pair, leaf, now, LEAF_LIFE)
        elif found is not None and _part(found, "ca.crt") == ca.bundle:
            return f"Secret {name}: is there, until {_end(pair)}"
        parts = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem, "ca.crt": ca.bundle}
        if secrets.write(found, name, _secret(cluster, name, "kubernetes.io/tls", parts)):
            return f"Secret {name}: made, until {_end(pair)}"
    raise ApiServerFailed(f"the Secret {name} is changed by somebody else all the time")


def _end(pair: Pair) -> str:
    return f"{pair.certificate.not_valid_after_utc:%Y-%m-%d}"


def _is_ours(found: Mapping[str, Any]) -> bool:
    return (found["metadata"].get("labels") or {}).get(MADE) == "made"


def _pair_in(secret: Mapping[str, Any], key: str) -> Pair | None:
    """What is in ``KEY.crt`` and ``KEY.key``; None: no pair is."""
    return parse_pair(_part(secret, f"{key}.crt"), _part(secret, f"{key}.key"))


def _part(secret: Mapping[str, Any], key: str) -> bytes:
    return base64.b64decode((secret.get("data") or {}).get(key, ""))  # the API server takes nothing else


def _secret(cluster: Cluster, name: str, kind: str, parts: Mapping[str, bytes]) -> Mapping[str, Any]:
    data = {key: base64.b64encode(part).decode() for key, part in parts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": _named(cluster, name), "data": data}


def _named(cluster: Cluster, name: str) -> dict[str, Any]:
    return {"name": name, "labels": {**cluster.labels, MADE: "made"}}


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or the end of the process with a usage text."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace_controller.certificate_secrets",
        description="Make the certificates of a cluster, and renew those that have little of their life left.",
    )
    parser.add_argument("name", help="what the names of Secrets start with")
    parser.add_argument(
        "--role", action="append", default=[], metavar="ROLE=HOST,HOST", help="hosts of a role; can be repeated"
    )
    parser.add_argument("--ca-of", metavar="SECRET", help="of somebody else: clients trust its ca.crt")
    parser.add_argument("--etcd", default="", metavar="HOST,HOST", help="hosts of etcd's members, which get a CA too")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="of all; can be repeated")
    parser.add_argument("--trust-domain", default="headrace", metavar="NAME", help="as tls_trust_domain of services")
    given = parser.parse_args(argv)
    for name in ("role", "label"):
        pairs = [text.partition("=") for text in getattr(given, name)]
        if not all(key and sign for key, sign, _ in pairs):
            parser.error(f"--{name} takes {'ROLE=HOST,HOST' if name == 'role' else 'KEY=VALUE'}")
        setattr(given, name, {key: value for key, _, value in pairs})
    if not (given.role or given.etcd or given.ca_of):
        parser.error("it needs one of --role, --etcd and --ca-of")
    if given.role and given.ca_of:
        parser.error("--ca-of is of certificates that somebody else makes, --role of ours")
    return given


def _split(text: str) -> list[str]:
    return [host for host in text.split(",") if host]


def main(argv: Sequence[str], env: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """Do it; the exit code."""
    given = parse_arguments(argv)
    hosts = {role: _split(text) for role, text in given.role.items()}
    cluster, etcd = Cluster(given.name, given.label, given.trust_domain), _split(given.etcd)
    try:
        server = ApiServer.of_pod(env, account)
        for line in keep(server, cluster, hosts, etcd, datetime.now(UTC), given.ca_of):
            sys.stdout.write(f"{line}\n")
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
