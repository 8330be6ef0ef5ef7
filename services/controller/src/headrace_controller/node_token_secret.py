"""
``python -m headrace_controller.node_token_secret NAME``: have a Secret with a node token there. For Kubernetes.

It only ever makes one, so it needs the right to create Secrets and no other: what is there is neither read nor changed.
Prints one line, without the token; 0 if the Secret is there now, 1 if it cannot be made.
"""

from __future__ import annotations

import argparse
import http
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.kubernetes import ACCOUNT, ApiServer, refusal
from headrace_common.runtime.token_file import new_token

KEY: Final = "node-token"
"""Of the Secret; the file that pods mount has this name too."""


def make_secret(server: ApiServer, name: str, labels: Mapping[str, str]) -> bool:
    """
    Have a Secret of this name there; whether it was made. One that is there stays as it is, whatever it holds.

    Raises:
        ApiServerFailed: the API server cannot be asked now; nothing is known of the Secret.
        ApiServerRefused: it does not let this account make it.
    """
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "labels": dict(labels)},
        "stringData": {KEY: f"{new_token()}\n"},
    }
    status, answer = server.ask("POST", f"/api/v1/namespaces/{server.namespace}/secrets", secret)
    if status == http.HTTPStatus.CREATED:
        return True
    if status == http.HTTPStatus.CONFLICT and answer.get("reason") == "AlreadyExists":
        return False
    instead = f"make it yourself, with the key {KEY}, and name it in nodeToken.existingSecret"
    raise refusal(f"make the Secret {name} in {server.namespace}", status, answer, instead)


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
