"""Which cluster is meant, how errors end a command, and what the command line refuses."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.commanding import command, pairs
from headrace_cli.exits import CommandFailed, ExitCode, exit_code_of, hint_of
from headrace_cli.output import Output
from headrace_cli.session import Session, open_session
from headrace_common.core import errors

runner = CliRunner()


def meant(tmp_path: Path, bootstrap: str | None = None, profile: str | None = None, **env: str) -> Session:
    return open_session(bootstrap, profile, None, False, {"XDG_CONFIG_HOME": str(tmp_path), **env}, tmp_path)


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    (tmp_path / "headrace").mkdir()
    text = (
        '[one]\nbootstrap = "one:1"\noutput = "json"\n[two]\nbootstrap = "two:2"\n'
        '[bad]\nboot = "x"\n[odd]\noutput = "xml"\n'
    )
    (tmp_path / "headrace" / "config.toml").write_text(text)
    return tmp_path


def test_the_nearer_word_wins(profiles: Path) -> None:
    env = {"HEADRACE_BOOTSTRAP": "env:1", "HEADRACE_PROFILE": "two"}
    assert meant(profiles, "flag:1", "one", **env).bootstrap == "flag:1"
    assert meant(profiles, None, "one", **env).bootstrap == "one:1"
    assert meant(profiles, **env).bootstrap == "env:1"
    assert meant(profiles, HEADRACE_PROFILE="two").bootstrap == "two:2"
    assert meant(profiles).bootstrap == "127.0.0.1:9292"
    (profiles / ".headrace").mkdir()
    told = {
        "cluster_id": "c",
        "data_dir": os.path.realpath(profiles / ".headrace"),
        "bootstrap_servers": ["a:1", "b:2"],
    }
    (profiles / ".headrace" / "cluster.json").write_text(json.dumps(told))
    assert meant(profiles).bootstrap == "a:1,b:2"


def test_a_profile_may_say_how_to_print(profiles: Path) -> None:
    assert meant(profiles, profile="one").output is Output.JSON
    assert meant(profiles, profile="two").output is Output.TABLE


@pytest.mark.parametrize(
    ("name", "said"), [("three", "there are: bad, odd, one, two"), ("bad", "may have"), ("odd", "xml")]
)
def test_a_profile_that_cannot_be_used_is_refused(profiles: Path, name: str, said: str) -> None:
    with pytest.raises(errors.HeadraceError) as refused:
        meant(profiles, profile=name)
    assert said in str(refused.value)
    assert exit_code_of(refused.value) is ExitCode.USAGE


def test_a_damaged_cluster_file_is_wrong_usage_and_named_without_another_hint(tmp_path: Path) -> None:
    (tmp_path / ".headrace").mkdir()
    (tmp_path / ".headrace" / "cluster.json").write_text("{")
    with pytest.raises(errors.InvalidConfig, match=r"cluster\.json is damaged; `headrace up`") as refused:
        meant(tmp_path)
    assert exit_code_of(refused.value) is ExitCode.USAGE
    assert hint_of(refused.value) == ""
    assert meant(tmp_path, "flag:1").bootstrap == "flag:1"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidTopic("x"), ExitCode.USAGE),
        (errors.UnknownTopicOrPartition("x"), ExitCode.NOT_FOUND),
        (errors.TopicAlreadyExists("x"), ExitCode.FAILED),
        (errors.NetworkFailed("x"), ExitCode.UNREACHABLE),
        (errors.MetadataUnavailable("x"), ExitCode.UNREACHABLE),
        (errors.LeaderNotAvailable("x"), ExitCode.UNREACHABLE),
        (errors.RequestTimedOut("x"), ExitCode.TIMED_OUT),
        (errors.StorageFailed("x"), ExitCode.FAILED),
        (errors.Internal("x"), ExitCode.FAILED),
        (CommandFailed("x", ExitCode.NOT_FOUND), ExitCode.NOT_FOUND),
    ],
)
def test_exit_codes_are_stable(error: errors.HeadraceError, code: ExitCode) -> None:
    assert exit_code_of(error) == code


def test_every_error_of_the_cluster_has_a_next_step() -> None:
    for code in errors.ErrorCode:
        if code is not errors.ErrorCode.NONE:
            assert hint_of(errors.error_for(code, "something"))
    assert hint_of(errors.NotFound("start one with `headrace up`")) == ""


@pytest.mark.parametrize("known", ["it has counts, totals", "it has none", "there are: counts, totals"])
def test_an_error_that_names_what_there_is_has_no_hint(known: str) -> None:
    assert hint_of(errors.NotFound(f"billing has no state 'n'; {known}")) == ""


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (errors.InvalidConfig("retention.ms takes a number, not 'x'"), "`headrace topic set NAME`"),
        (errors.InvalidConfig("nope is not a topic setting"), "`headrace topic set NAME`"),
        (errors.InvalidConfig("log.cleaner.enable takes true or false"), "`headrace cluster configs --all`"),
        (errors.InvalidConfig("--bootstrap: 'x' is not an address"), "--help shows what the command takes"),
        (errors.UnknownTopicOrPartition("topic 't' has partitions 0 to 2; there is no 99"), "`headrace topic describe"),
        (errors.UnknownTopicOrPartition("topic 't' does not exist"), "`headrace topic list`"),
    ],
)
def test_a_hint_fits_what_was_wrong(error: errors.HeadraceError, hint: str) -> None:
    assert hint in hint_of(error)


def failing(error: BaseException) -> typer.Typer:
    made = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

    @command(made)
    def fail(session: Session) -> None:
        raise error

    return made


def test_an_error_is_a_sentence_a_next_step_and_a_code_never_a_traceback() -> None:
    result = runner.invoke(failing(errors.unknown_topic("x")), [])
    assert result.exit_code == 3
    assert result.stderr == (
        "error: topic 'x' does not exist; check its name, or create it with: headrace topic create\n"
        "`headrace topic list` shows the topics.\n"
    )
    assert result.stdout == ""


def test_an_error_cannot_command_the_terminal() -> None:
    result = runner.invoke(failing(errors.NotFound("group 'a\x1b[2Jb\x9b' is gone")), [])
    assert result.stderr.startswith("error: group 'a\\x1b[2Jb\\x9b' is gone\n")


def test_debug_shows_where_an_error_comes_from() -> None:
    error = errors.NetworkFailed("nobody there")
    assert runner.invoke(failing(error), ["--debug"]).exception is error


def test_ctrl_c_is_130_and_a_missing_file_is_named(tmp_path: Path) -> None:
    assert runner.invoke(failing(KeyboardInterrupt()), []).exit_code == 130
    result = runner.invoke(app, ["produce", "t", str(tmp_path / "missing"), "-b", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert str(tmp_path / "missing") in result.stderr


def test_a_cluster_that_is_not_there_is_said_at_once_with_what_to_do(unused_port: int) -> None:
    for argv in (["topic", "list"], ["produce", "t", "-v", "x"], ["consume", "t"], ["cluster", "health"]):
        result = runner.invoke(app, [*argv, "-b", f"127.0.0.1:{unused_port}"])
        assert result.exit_code == ExitCode.UNREACHABLE
        assert f"127.0.0.1:{unused_port}: Connection refused" in result.stderr
        assert "`headrace up` starts one" in result.stderr
    assert runner.invoke(app, ["topic", "list", "-b", "nonsense"]).exit_code == ExitCode.USAGE


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_pairs() -> None:
    assert pairs(["a=1", "b=x=y", "c="], "K=V") == {"a": "1", "b": "x=y", "c": ""}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(typer.BadParameter):
            pairs(wrong, "K=V")


@pytest.mark.parametrize(
    "argv",
    [
        ["topic", "create"],
        ["topic", "trim", "t"],
        ["topic", "trim", "t", "--all", "--before", "3"],
        ["topic", "delete", "t"],
        ["produce", "t", "-k", "a", "--key-separator", ":"],
        ["consume", "t", "--from", "soon"],
        ["consume", "t", "-f", "%q"],
        ["bench", "produce", "--mode", "fast"],
        ["up", "--flush", "never"],
        ["up", "--port", "broker-1=x"],
        ["cluster", "health", "-o", "xml"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_2_and_reaches_no_cluster(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, argv)
    assert result.exit_code == 2, result.output
    assert list(tmp_path.iterdir()) == []


def test_every_command_has_help() -> None:
    for group in ([], ["topic"], ["cluster"], ["broker"], ["bench"], ["debug"]):
        text = runner.invoke(app, [*group, "--help"]).stdout
        assert "Usage:" in text
    for name in ("up", "down", "status", "demo", "produce", "consume"):
        assert runner.invoke(app, [name, "--help"]).exit_code == 0
