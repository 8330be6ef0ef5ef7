"""
Scenarios of TLS. A release whose certificates the chart makes: under load a broker gets another address, all
certificates are made anew, and then the CA is another one, in its three steps. One with another CA of etcd, whose
members are three, while the kubelet renews the token that the load shows. And one whose certificates cert-manager
makes, which has to run in the cluster.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from headrace_common.runtime.certificates import make_ca

from .kills import CONTROLLED_GAP_S
from .kube import wait_until
from .life import own
from .loading import TOKEN_S
from .results import Result
from .stage import Stage

ROLES: Final = ("broker", "controller", "coordinator", "admin")
TAKEN_S: Final = 240.0
"""The longest until all pods have what is in a Secret: the kubelet looks every minute or so, services every 10 s."""
CLIENTS_S: Final = 120.0
"""The longest until a pod sees a changed ConfigMap."""
ETCD_S: Final = 180.0
"""The longest until members of etcd and controllers have what is in their Secrets; nothing says when."""
EXPIRED_S: Final = 15.0
"""How long the load goes on after its first token has run out."""
BOTH, SIGNS, ALONE = "all trust both", "the new one signs", "the old one is trusted no more"
_TLS: Final = "/etc/headrace/tls"
ETCDCTL: Final = (
    *("--endpoints", "https://localhost:2379", "--cacert", f"{_TLS}/ca.crt"),
    *("--cert", f"{_TLS}/tls.crt", "--key", f"{_TLS}/tls.key"),
)
_TAKEN: Final = "new certificates are in use"


def renewed(stage: Stage, result: Result) -> None:
    """Nothing is lost, and clients see no error."""
    with own(stage, "tls") as here:
        here.release.install()
        result.figure("install: all pods ready", here.release.wait_rolled_out())
        with here.loaded(result) as load:
            pod = f"{here.release.stateful('broker')}-1"
            uid = here.uid(pod)
            with result.window("a broker gets another address"):
                here.kube.delete("pod", pod, "--wait=false")
                here.wait_replaced(pod, uid)
                here.settle(result, load, "a broker gets another address")
            with result.window("certificates are made anew"):
                for role in (*ROLES, "etcd", "etcd-client"):
                    here.kube.delete("secret", f"{here.release.fullname}-{role}-tls")
                result.figure("certificates are made anew: all pods have them", _keep(here))
            with result.window("another CA"):
                for step in _another_ca(here, "ca"):
                    result.figure(f"another CA: {step}: all pods have it", _keep(here))
                    time.sleep(CLIENTS_S if step == BOTH else 0)
            here.settle(result, load, "another CA")


def etcd_renewed(stage: Stage, result: Result) -> None:
    """As docs/security.md says it: etcd's members, which read their CA at a start alone, are started twice."""
    with own(stage, "etcd-tls") as here:
        here.release.install()
        result.figure("install: all pods ready", here.release.wait_rolled_out())
        etcd = here.release.stateful("etcd")
        with here.loaded(result) as load:
            first = load.token()
            with result.window("another CA of etcd", gap_target=CONTROLLED_GAP_S):
                for step in _another_ca(here, "etcd-ca"):
                    _run_job(here)
                    time.sleep(ETCD_S)
                    if step != SIGNS:
                        here.kube.kubectl("rollout", "restart", f"statefulset/{etcd}")
                        result.figure(f"another CA of etcd: {step}: members started", here.release.wait_rolled_out())
            members = here.kube.execute(f"{etcd}-0", "etcdctl", *ETCDCTL, "endpoint", "health", "--cluster")
            result.notes.append(f"etcd's members say: {members.strip()}")
            if members.count("is healthy") != here.release.replicas("etcd"):
                result.problems.append(f"not all members of etcd are well: {members}")
            here.settle(result, load, "another CA of etcd")
            with result.window("the first token of the load has run out"):
                wait_until("the first token has run out", lambda: time.time() > first["exp"] + EXPIRED_S, TOKEN_S, 1.0)
                issued = load.token()["iat"]
            result.figure("the kubelet renewed the token after", issued - first["iat"])
            if issued <= first["iat"]:
                result.problems.append("the kubelet has not renewed the token of the load")


def _another_ca(here: Stage, suffix: str) -> Iterator[str]:
    """The steps of another CA, each with the Secret as it is then; what was made of it is up to who asks."""
    secret = f"{here.release.fullname}-{suffix}"
    old = base64.b64decode(here.kube.get("secret", secret)["data"]["ca.crt"])
    new = make_ca("another CA", datetime.now(UTC))
    steps: dict[str, dict[str, bytes]] = {
        BOTH: {"ca.crt": old + new.certificate_pem},
        SIGNS: {"ca.crt": new.certificate_pem + old, "ca.key": new.key_pem},
        ALONE: {"ca.crt": new.certificate_pem},
    }
    for step, parts in steps.items():
        data = {key: base64.b64encode(part).decode() for key, part in parts.items()}
        here.kube.kubectl("patch", "secret", secret, "--type=merge", "--patch", json.dumps({"data": data}))
        yield step
        here.say(f"{suffix}: {step}")


def _keep(here: Stage) -> float:
    """Run what keeps certificates; seconds until all pods have what it made."""
    return _taken(here, lambda: _run_job(here))


def _run_job(here: Stage) -> None:
    job = f"certificates-{time.time_ns()}"
    here.kube.kubectl("create", "job", f"--from=cronjob/{here.release.fullname}-certificates", job)
    here.kube.kubectl("wait", "--for=condition=Complete", f"job/{job}", "--timeout=90s", seconds=100)


def _taken(here: Stage, make: Callable[[], None]) -> float:
    """Make new certificates; seconds until all pods have them."""
    names = [pod["metadata"]["name"] for role in ROLES for pod in here.release.pods(role)]
    before = {name: _takings(here, name) for name in names}
    began = time.monotonic()
    make()
    waiting = set(names)

    def look() -> bool:
        waiting.difference_update([name for name in waiting if _takings(here, name) > before[name]])
        return not waiting

    wait_until("all pods have their new certificates", look, TAKEN_S, 2.0)
    return time.monotonic() - began


def _takings(here: Stage, pod: str) -> int:
    return here.kube.kubectl("logs", pod).count(_TAKEN)


# --- cert-manager ----------------------------------------------------------------------------------------------------

_CERTIFICATES: Final = "certificates.cert-manager.io"
_ISSUERS: Final[tuple[dict[str, Any], ...]] = (
    {"kind": "Issuer", "metadata": {"name": "root"}, "spec": {"selfSigned": {}}},
    {
        "kind": "Certificate",
        "metadata": {"name": "issuer"},
        "spec": {
            "secretName": "issuer",
            "isCA": True,
            "commonName": "the nodes",
            "privateKey": {"algorithm": "ECDSA", "size": 256},
            "issuerRef": {"name": "root"},
        },
    },
    {"kind": "Issuer", "metadata": {"name": "ca"}, "spec": {"ca": {"secretName": "issuer"}}},
)


def issued(stage: Stage, result: Result) -> None:
    """Nodes come up by what cert-manager makes, and take what it renews without a restart; clients see no error."""
    with own(stage, "issuer") as here:
        if _CERTIFICATES not in here.kube.kubectl("api-resources", "-o", "name"):
            result.notes.append("not run: there is no cert-manager in the cluster")
            return
        here.kube.apply(*({"apiVersion": "cert-manager.io/v1", **one} for one in _ISSUERS))
        here.kube.kubectl("wait", "--for=condition=Ready", "issuer/ca", "--timeout=90s", seconds=100)
        here.release.values += ["--set", "tls.certManager.issuerRef.name=ca"]
        here.release.install()
        result.figure("cert-manager: all pods ready", here.release.wait_rolled_out())
        made = here.kube.get("secret", selector=here.release.selector)
        result.notes.append(f"Secrets: {', '.join(sorted(one['metadata']['name'] for one in made))}")
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in here.release.pods()}
        with here.loaded(result) as load:
            for what, renew in (("renewed", _renew), ("deleted", _delete)):
                with result.window(f"cert-manager: certificates are {what}"):
                    seconds = _taken(here, partial(renew, here))
                    result.figure(f"cert-manager: certificates are {what}: all pods have new ones", seconds)
            here.settle(result, load, "cert-manager")
        after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in here.release.pods()}
        if after != uids or here.release.restarts():
            result.problems.append(f"pods are others, or were restarted: {uids} {after} {here.release.restarts()}")


def _renew(here: Stage) -> None:
    """As ``cmctl renew``."""
    for role in ROLES:
        name = f"{here.release.fullname}-{role}-tls"
        found = here.kube.get(_CERTIFICATES, name)["status"]["conditions"]
        others = [one for one in found if one["type"] != "Issuing"]
        issuing = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test"}
        patch = {"status": {"conditions": [*others, issuing]}}
        words = ("--subresource=status", "--type=merge", "--patch", json.dumps(patch))
        here.kube.kubectl("patch", _CERTIFICATES, name, *words)


def _delete(here: Stage) -> None:
    here.kube.delete("secret", *(f"{here.release.fullname}-{role}-tls" for role in ROLES))
