"""
Programs that have a Secret with something new there. For Kubernetes; called by ``node_token_secret`` and
``admin_key_secret``.

They only ever make one, so they need the right to create Secrets and no other: what is there is neither read nor
changed.
"""

from __future__ import annotations

import argparse
import http
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.kubernetes import ApiServer, refusal


@dataclass(frozen=True, slots=True)
class NewSecret:
    """What a program makes."""

    program: str
    """Its module."""
    holds: str
    """What is new, in a few words."""
    new: Callable[[], Mapping[str, str]]
    """The Secret's texts by their keys, others with each call."""
    instead: str
    """What is to be done where the program may not."""


def make_secret(server: ApiServer, kind: NewSecret, name: str, labels: Mapping[str, str]) -> bool:
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
        "stringData": dict(kind.new()),
    }
    status, answer = server.ask("POST", f"/api/v1/namespaces/{server.namespace}/secrets", secret)
    if status == http.HTTPStatus.CREATED:
        return True
    if status == http.HTTPStatus.CONFLICT and answer.get("reason") == "AlreadyExists":
        return False
    raise refusal(f"make the Secret {name} in {server.namespace}", status, answer, kind.instead)


def parse_arguments(kind: NewSecret, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or the end of the process with a usage text."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {kind.program}",
        description=f"Make a Secret with {kind.holds}, unless there is one of that name.",
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


def run(kind: NewSecret, argv: Sequence[str], env: Mapping[str, str], account: Path) -> int:
    """Do it, and print one line without what is secret; the exit code: 0 if the Secret is there now, 1 if not."""
    given = parse_arguments(kind, argv)
    try:
        made = make_secret(ApiServer.of_pod(env, account), kind, given.name, given.labels)
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Secret {given.name}: {'made' if made else 'is there, and stays as it is'}\n")
    return 0
