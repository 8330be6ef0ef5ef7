"""``headrace profile``: what is written into config.toml, and that the rest of it stays."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.profile_file import choose_profile, put_profile

runner = CliRunner()
OWN = '# mine\n\n[one]\nbootstrap = "one:1"  # the first\n\n# before two\n[two]\nbootstrap = "two:1"\n# in two\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HEADRACE_BOOTSTRAP", "HEADRACE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "deep" / "config.toml"
    monkeypatch.setenv("HEADRACE_CONFIG", str(path))
    monkeypatch.chdir(tmp_path)
    return path


def done(*argv: str) -> str:
    result = runner.invoke(app, ["profile", *argv])
    assert result.exit_code == 0, result.output
    return result.stdout + result.stderr


def test_a_profile_is_made_chosen_shown_and_left_again(config: Path) -> None:
    assert "makes one" in done("list")
    done("set", "staging", "--bootstrap", "b1:1,b2:2")
    assert config.stat().st_mode & 0o077 == 0
    assert "clients here find 127.0.0.1:9292 (the default)" in done("list")
    done("use", "staging")
    assert "clients here find b1:1,b2:2 (profile 'staging')" in done("list")
    done("set", "staging", "--print-as", "json")
    said = json.loads(runner.invoke(app, ["profile", "show", "staging", "-o", "json"]).stdout)
    assert said == {"name": "staging", "bootstrap": "b1:1,b2:2", "output": "json"}
    done("set", "staging", "--cert-file", "me.crt", "--key-file", "me.key")
    said = json.loads(runner.invoke(app, ["profile", "show", "staging", "-o", "json"]).stdout)
    assert (said["cert_file"], said["key_file"]) == ("me.crt", "me.key")
    done("use", "--none")
    assert "(the default)" in done("list")


def test_a_profile_is_removed_and_all_else_stays(config: Path) -> None:
    config.parent.mkdir()
    config.write_text(choose_profile(OWN, "two"))
    assert "no profile is chosen any more" not in done("remove", "one")
    two = '# before two\n[two]\nbootstrap = "two:1"\n# in two\n'
    assert config.read_text() == f'# mine\nprofile = "two"\n\n{two}'
    assert "no profile is chosen any more" in done("remove", "two")
    assert tomllib.loads(config.read_text()) == {}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["show", "x"], "there is no profile 'x'"),
        (["use", "x"], "there is no profile 'x'"),
        (["remove", "x"], "there is no profile 'x'"),
        (["use"], "name a profile"),
        (["use", "x", "--none"], "name a profile"),
        (["set", "x"], "needs an address"),
        (["set", "x", "--bootstrap", "nonsense"], "'nonsense' is not an address"),
        (["set", "profile", "--bootstrap", "a:1"], "cannot be a profile's name"),
        (["set", "a]b", "--bootstrap", "a:1"], "cannot be a profile's name"),
        (["set", "a", "--bootstrap", "a:1", "--cert-file", "me.crt"], "cert_file and key_file are given together"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(config: Path, argv: list[str], said: str) -> None:
    result = runner.invoke(app, ["profile", *argv])
    assert result.exit_code == 2
    assert said in result.stderr
    assert not config.exists()


def test_what_else_is_in_the_file_stays() -> None:
    changed = choose_profile(put_profile(OWN, "one", {"bootstrap": "x:1", "output": "json"}), "two")
    assert tomllib.loads(changed) == {
        "profile": "two",
        "one": {"bootstrap": "x:1", "output": "json"},
        "two": {"bootstrap": "two:1"},
    }
    for comment in ("# mine", "# before two", "# in two"):
        assert comment in changed
    assert tomllib.loads(choose_profile(changed, None)) == tomllib.loads(put_profile(OWN, "one", changed_one(changed)))


def changed_one(text: str) -> dict[str, str]:
    section: dict[str, str] = tomllib.loads(text)["one"]
    return section


def test_choosing_twice_leaves_one_choice() -> None:
    assert choose_profile(choose_profile("", "a"), "b") == 'profile = "b"\n'
    assert choose_profile('[profile]\nbootstrap = "a:1"\n', None) == '[profile]\nbootstrap = "a:1"\n'
