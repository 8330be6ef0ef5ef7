"""
The API server of the Kubernetes cluster that a pod runs in, asked as the pod's account. Called by what makes objects
there: the node token's Secret, and Connect's Spark applications.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace_common.core.errors import Busy, HeadraceError, InvalidConfig, Rejected

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its account's token, the API server's CA and the name of its namespace."""
ANSWER_BYTES_MAX: Final = 4 << 20
TIMEOUT_S: Final = 20.0
_ACCEPTED: Final = "application/json, application/jwk-set+json"
"""The second is JSON too: without it the keys of accounts' tokens are answered with 406."""
_REFUSED: Final = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY)


class ApiServerFailed(Busy):
    """The API server cannot be asked, or answers with something else than an object."""


class ApiServerRefused(Rejected):
    """It does not let this account do that."""


def refusal(said: str, status: int, answer: Mapping[str, Any], instead: str) -> HeadraceError:
    """
    What is to be raised after ``answer``: ``ApiServerRefused`` with what to do ``instead``, or ``ApiServerFailed``
    where it may be asked again. Without its message: a policy of admission may repeat there what it was given.
    """
    said = f"the API server does not {said}: {status} {answer.get('reason')}"
    if status in _REFUSED:
        return ApiServerRefused(f"{said}; {instead}")
    return ApiServerFailed(said)


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where it is, and where the pod's account is. Calls block; any thread may make them."""

    host: str
    port: int
    namespace: str
    """Of the pod."""
    account: Path
    timeout_s: float = TIMEOUT_S
    """For each step of a call."""

    @staticmethod
    def of_pod(env: Mapping[str, str], account: Path = ACCOUNT, timeout_s: float = TIMEOUT_S) -> ApiServer:
        """
        What the kubelet tells a pod.

        Raises:
            InvalidConfig: this is no pod with an account.
        """
        try:
            host, port = env["KUBERNETES_SERVICE_HOST"], int(env["KUBERNETES_SERVICE_PORT"])
            server = ApiServer(host, port, (account / "namespace").read_text().strip(), account, timeout_s)
            server._bearer()
        except (KeyError, ValueError) as error:
            raise InvalidConfig(f"this is no pod: KUBERNETES_SERVICE_HOST or _PORT is not right: {error}") from error
        except OSError as error:
            raise InvalidConfig(f"this pod has no account: {error.filename}: {error.strerror}") from error
        return server

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Mapping[str, Any]]:
        """
        One request; the status and the object that was answered. No proxy is asked, no redirect followed.

        Raises:
            ApiServerFailed: there is no answer, or none in JSON. What was asked for may have been done.
        """
        try:
            # Read each time: the kubelet renews it.
            headers = {"Authorization": f"Bearer {self._bearer()}", "Accept": _ACCEPTED}
            if body is not None:
                headers["Content-Type"] = "application/json"
            context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout_s, context=context)
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiServerFailed(f"the API server at {self.host}:{self.port} gives no answer: {error}") from error
        if not isinstance(found, dict):
            raise ApiServerFailed(f"the API server at {self.host}:{self.port} answers with no object")
        return answer.status, found

    def _bearer(self) -> str:
        """Raises: OSError."""
        return (self.account / "token").read_text().strip()
