"""The program that makes the Secret with the node token, against an API server that speaks TLS and keeps Secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.api_server import BEARER, make_certificates
from services.controller.tests.kit.secrets_api import SecretsApi

from headrace_common.runtime.token_file import read_tokens
from headrace_controller.node_token_secret import KEY, main

NAME = "headrace-node-token"


def run(api: SecretsApi, account: Path, *arguments: str) -> int:
    return main([NAME, *arguments], api.env, account)


def token_in(secret: dict[str, Any]) -> str:
    return str(secret["stringData"][KEY])


def test_it_makes_a_secret_that_nodes_can_read(
    api: SecretsApi, account: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(api, account, "--label", "app.kubernetes.io/instance=headrace") == 0
    assert api.paths == ["/api/v1/namespaces/streams/secrets"]
    secret = api.secrets[NAME]
    assert secret["metadata"] == {"name": NAME, "labels": {"app.kubernetes.io/instance": "headrace"}}
    (tmp_path / KEY).write_text(token_in(secret))
    [token] = read_tokens(tmp_path / KEY)
    said = capsys.readouterr()
    assert said.out == f"Secret {NAME}: made\n"
    assert token.decode() not in said.out + said.err


def test_one_that_is_there_stays(api: SecretsApi, account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(api, account) == 0
    before = token_in(api.secrets[NAME])
    assert run(api, account) == 0
    assert token_in(api.secrets[NAME]) == before
    assert capsys.readouterr().out.endswith("is there, and stays as it is\n")


def test_each_has_another_token(api: SecretsApi, account: Path) -> None:
    run(api, account)
    first = token_in(api.secrets.pop(NAME))
    run(api, account)
    assert token_in(api.secrets[NAME]) != first


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((403, {"reason": "Forbidden"}), "nodeToken.existingSecret"),
        ((422, {"reason": "Invalid"}), "nodeToken.existingSecret"),
        ((409, {"reason": "Conflict"}), "409 Conflict"),  # of a quota: nothing is there
        ((500, {"reason": "InternalError"}), "500 InternalError"),
        ((307, {}), "307"),
        ((201, b"<html>"), "no answer"),
        ((201, []), "no object"),
    ],
    ids=lambda given: str(given)[:24],
)
def test_another_answer_is_a_failure_that_is_told(
    api: SecretsApi, account: Path, answer: tuple[int, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.answer = answer
    assert run(api, account) == 1
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
    assert len(api.paths) == 1, "no redirect is followed"


def test_what_was_sent_is_not_repeated(api: SecretsApi, account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy of admission may quote the whole object."""
    sent: list[str] = []

    def quoting(method: str, path: str, bearer: str | None, secret: Any) -> tuple[int, Any]:
        sent.append(token_in(secret).strip())
        return 403, {"reason": "Forbidden", "message": f"denied: {secret}"}

    api.post = quoting  # type: ignore[method-assign]
    assert run(api, account) == 1
    said = capsys.readouterr()
    assert sent[0] not in said.err
    assert BEARER not in said.err


def test_a_server_of_another_ca_gets_nothing(
    api: SecretsApi, account: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_certificates(tmp_path / "others")
    (account / "ca.crt").write_bytes(other.ca.read_bytes())
    assert run(api, account) == 1
    assert api.paths == []
    assert "no answer" in capsys.readouterr().err


def test_outside_of_a_pod_it_says_so(api: SecretsApi, account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([NAME], {}, account) == 1
    assert "this is no pod" in capsys.readouterr().err
    (account / "token").unlink()
    assert run(api, account) == 1
    assert "has no account" in capsys.readouterr().err
    assert api.paths == []


@pytest.mark.parametrize("wrong", [[], [NAME, "--label", "a"], [NAME, "--label", "=a"], [NAME, "more"]])
def test_arguments_that_are_none_are_refused(wrong: list[str], account: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong, {}, account)
    assert ended.value.code == 2
