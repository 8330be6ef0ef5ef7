"""The administrator's key: the program that shows a new one, and the one that makes the Secret with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from services.controller.tests.kit.secrets_api import SecretsApi

from headrace_common.core.access.api_keys import parse_key
from headrace_controller import admin_key
from headrace_controller.admin_key_secret import API_KEY, VERIFIER, main
from headrace_controller.core.configured import parse_admin_keys

NAME = "headrace-admin"


def run(api: SecretsApi, account: Path) -> tuple[str, str]:
    """The key, and the line that verifies it, of the Secret that is there then."""
    assert main([NAME, "--label", "app.kubernetes.io/instance=headrace"], api.env, account) == 0
    texts = api.secrets[NAME]["stringData"]
    assert texts.keys() == {API_KEY, VERIFIER}
    return texts[API_KEY], texts[VERIFIER]


def verifies(line: str, key: str) -> bool:
    """Whether controllers that read the line know who shows the key."""
    [kept] = parse_admin_keys(line)
    given = parse_key(key)
    return kept.id == given.id and kept.matches(given.secret)


def test_the_secret_has_a_key_and_what_controllers_know_it_by(
    api: SecretsApi, account: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, verifier = run(api, account)
    assert (key[-1], verifier[-1]) == ("\n", "\n"), "a shell reads lines"
    assert verifies(verifier, key.strip())
    assert parse_key(key.strip()).secret not in verifier
    assert api.secrets[NAME]["metadata"] == {"name": NAME, "labels": {"app.kubernetes.io/instance": "headrace"}}
    said = capsys.readouterr()
    assert said.out == f"Secret {NAME}: made\n"
    assert key.strip() not in said.out + said.err


def test_one_that_is_there_stays(api: SecretsApi, account: Path) -> None:
    assert run(api, account) == run(api, account)


def test_each_has_another_key(api: SecretsApi, account: Path) -> None:
    first, _ = run(api, account)
    del api.secrets[NAME]
    assert run(api, account)[0] != first


def test_where_it_may_not_it_says_what_to_do(
    api: SecretsApi, account: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.answer = 403, {"reason": "Forbidden"}
    assert main([NAME], api.env, account) == 1
    said = capsys.readouterr().err
    assert f"the keys {API_KEY} and {VERIFIER}" in said
    assert "security.admin.existingSecret" in said


def test_a_new_key_is_printed_with_the_line_for_controllers(capsys: pytest.CaptureFixture[str]) -> None:
    assert admin_key.main([]) == 0
    key, verifier = capsys.readouterr().out.splitlines()
    assert verifies(verifier, key)
    assert admin_key.main([]) == 0
    assert capsys.readouterr().out.splitlines()[0] != key
    assert admin_key.main(["--help"]) == 2, "it takes nothing"
    assert capsys.readouterr().out == ""
