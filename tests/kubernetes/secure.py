"""
Scenario of TLS: a release whose certificates the chart makes. Under load a broker gets another address, all
certificates are made anew, and then the CA is another one, in its three steps.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from headrace_common.runtime.certificates import Pair, make_ca

from .kube import wait_until
from .life import own
from .results import Result
from .stage import Stage

ROLES: Final = ("broker", "controller", "coordinator", "admin")
TAKEN_S: Final = 240.0
"""The longest until all pods have what is in a Secret: the kubelet looks every minute or so, services every 10 s."""
CLIENTS_S: Final = 120.0
"""The longest until a pod sees a changed ConfigMap."""
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
            old, new = _ca(here), make_ca("another CA", datetime.now(UTC))
            with result.window("another CA"):
                steps: dict[str, tuple[bytes, Pair | None]] = {
                    "all trust both": (old + new.certificate_pem, None),
                    "the new one signs": (new.certificate_pem + old, new),
                    "the old one is trusted no more": (new.certificate_pem, None),
                }
                for step, (bundle, signs) in steps.items():
                    key = {} if signs is None else {"ca.key": signs.key_pem}
                    _put(here, {"ca.crt": bundle, **key})
                    result.figure(f"another CA: {step}: all pods have it", _keep(here))
                    time.sleep(CLIENTS_S if old in bundle and signs is None else 0)  # then clients trust both
                    here.say(step)
            here.settle(result, load, "another CA")


def _ca(here: Stage) -> bytes:
    return base64.b64decode(here.kube.get("secret", f"{here.release.fullname}-ca")["data"]["ca.crt"])


def _put(here: Stage, parts: Mapping[str, bytes]) -> None:
    data = {key: base64.b64encode(part).decode() for key, part in parts.items()}
    patch = json.dumps({"data": data})
    here.kube.kubectl("patch", "secret", f"{here.release.fullname}-ca", "--type=merge", "--patch", patch)


def _keep(here: Stage) -> float:
    """Run what keeps certificates; seconds until all pods have what it made."""
    names = [pod["metadata"]["name"] for role in ROLES for pod in here.release.pods(role)]
    before = {name: _takings(here, name) for name in names}
    began = time.monotonic()
    job = f"certificates-{time.time_ns()}"
    here.kube.kubectl("create", "job", f"--from=cronjob/{here.release.fullname}-certificates", job)
    here.kube.kubectl("wait", "--for=condition=Complete", f"job/{job}", "--timeout=90s", seconds=100)
    waiting = set(names)

    def look() -> bool:
        waiting.difference_update([name for name in waiting if _takings(here, name) > before[name]])
        return not waiting

    wait_until("all pods have their new certificates", look, TAKEN_S, 2.0)
    return time.monotonic() - began


def _takings(here: Stage, pod: str) -> int:
    return here.kube.kubectl("logs", pod).count(_TAKEN)
