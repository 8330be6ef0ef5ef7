"""
``python -m headrace_controller.node_token_secret NAME``: have a Secret with a node token there. For Kubernetes.

It only ever makes one, so it needs the right to create Secrets and no other: what is there is neither read nor changed.
Prints one line, without the token; 0 if the Secret is there now, 1 if it cannot be made.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace_common.core.errors import Busy, HeadraceError, InvalidConfig, Rejected
from headrace_common.runtime.token_file import new_token

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its account's token, the API server's CA and the name of its namespace."""
KEY: Final = "node-token"
"""Of the Secret; the file that pods mount has this name too."""
ANSWER_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 20.0


class ApiServerFailed(Busy):
    """The API server cannot be asked, or answers with something else than yes or no."""


class SecretRefused(Rejected):
    """The API server does not let this account make the Secret."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The API server of the Kubernetes cluster that a pod runs in, and how the pod shows who it is."""

    host: str
    port: int
    ca: Path
    namespace: str
    bearer: str = field(repr=False)

    @staticmethod
    def of_pod(env: Mapping[str, str], account: Path) -> ApiServer:
        """
        What the kubelet tells a pod.

        Raises:
            InvalidConfig: this is no pod with an account.
        """
        try:
            return ApiServer(
                host=env["KUBERNETES_SERVICE_HOST"],
                port=int(env["KUBERNETES_SERVICE_PORT"]),
                ca=account / "ca.crt",
                namespace=(account / "namespace").read_text().strip(),
                bearer=(account / "token").read_text().strip(),
            )
        except (KeyError, ValueError) as error:
            raise InvalidConfig(f"this is no pod: KUBERNETES_SERVICE_HOST or _PORT is not right: {error}") from error
        except OSError as error:
            raise InvalidConfig(f"this pod has no account: {error.filename}: {error.strerror}") from error

    def create(self, secret: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        """
        Ask once for a Secret to be made; the status and what was answered. No proxy is asked, no redirect followed.

        Raises:
            ApiServerFailed: there is no answer, or none in JSON.
        """
        body = json.dumps(secret)
        headers = {"Authorization": f"Bearer {self.bearer}", "Content-Type": "application/json"}
        try:
            context = ssl.create_default_context(cafile=str(self.ca))
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=context)
            try:
                connection.request("POST", f"/api/v1/namespaces/{self.namespace}/secrets", body, headers)
                answer = connection.getresponse()
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiServerFailed(f"the API server at {self.host}:{self.port} gives no answer: {error}") from error
        if not isinstance(found, dict):
            raise ApiServerFailed(f"the API server at {self.host}:{self.port} answers with no object")
        return answer.status, found


def make_secret(server: ApiServer, name: str, labels: Mapping[str, str]) -> bool:
    """
    Have a Secret of this name there; whether it was made. One that is there stays as it is, whatever it holds.

    Raises:
        ApiServerFailed: the API server cannot be asked now; nothing is known of the Secret.
        SecretRefused: it does not let this account make it.
    """
    status, answer = server.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": name, "labels": dict(labels)},
            "stringData": {KEY: f"{new_token()}\n"},
        }
    )
    if status == http.HTTPStatus.CREATED:
        return True
    reason = answer.get("reason")
    if status == http.HTTPStatus.CONFLICT and reason == "AlreadyExists":
        return False
    # Not its message: a policy of admission may repeat there what it was given.
    said = f"the API server does not make the Secret {name} in {server.namespace}: {status} {reason}"
    if status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY}:
        raise SecretRefused(f"{said}; make it yourself, with the key {KEY}, and name it in nodeToken.existingSecret")
    raise ApiServerFailed(said)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or the end of the process with a usage text."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace_controller.node_token_secret",
        description="Make a Secret with a new node token, unless there is one of that name.",
    )
    parser.add_argument("name", help="name of the Secret")
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="label of it; can be repeated"
    )
    given = parser.parse_args(argv)
    pairs = [text.partition("=") for text in given.label]
    if not all(key and sign for key, sign, _ in pairs):
        parser.error("--label takes KEY=VALUE")
    given.labels = {key: value for key, _, value in pairs}
    return given


def main(argv: Sequence[str], env: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """Do it; the exit code."""
    given = parse_arguments(argv)
    try:
        made = make_secret(ApiServer.of_pod(env, account), given.name, given.labels)
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Secret {given.name}: {'made' if made else 'is there, and stays as it is'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
