"""What holds for every command: options before and behind its name, one voice of errors, help that is not cut."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.commanding import errors_end_the_command
from headrace_cli.exits import ExitCode

runner = CliRunner()


@pytest.mark.parametrize(
    "argv",
    [
        ["-b", "127.0.0.1:1", "topic", "list"],
        ["topic", "-b", "127.0.0.1:1", "list"],
        ["topic", "list", "-b", "127.0.0.1:1"],
        ["-b", "127.0.0.1:2", "topic", "-b", "127.0.0.1:3", "list", "-b", "127.0.0.1:1"],
        ["-b", "127.0.0.1:1", "produce", "t", "-v", "x"],
    ],
)
def test_options_may_stand_before_the_command_and_the_nearest_counts(argv: list[str]) -> None:
    result = runner.invoke(app, argv)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "no broker can be reached (127.0.0.1:1:" in result.stderr


def test_how_to_print_may_stand_before_the_command_too(tmp_path: pytest.TempPathFactory) -> None:
    result = runner.invoke(app, ["-o", "json", "job", "list"])
    assert result.stdout.startswith("{")


def test_an_address_for_a_command_that_asks_no_cluster_is_refused() -> None:
    result = runner.invoke(app, ["-b", "127.0.0.1:1", "job", "list"])
    assert result.exit_code == ExitCode.USAGE
    assert "asks no cluster" in result.stderr


@pytest.mark.parametrize(
    ("argv", "said", "path"),
    [
        (["topic", "list", "-b"], "option '-b' requires an argument", "headrace topic list"),
        (["topic", "create"], "missing argument 'name'", "headrace topic create"),
        (["nonsense"], "no such command 'nonsense'", "headrace"),
        (["topic", "nonsense"], "no such command 'nonsense'", "headrace topic"),
        (["up", "--flush", "never"], "flush takes group, always, os", None),
        (["produce", "t", "-k", "a", "--key-separator", ":"], "give --key or --key-separator", "headrace produce"),
    ],
)
def test_errors_have_one_voice(argv: list[str], said: str, path: str | None, tmp_path: pytest.TempPathFactory) -> None:
    result = runner.invoke(app, argv)
    assert result.exit_code == ExitCode.USAGE
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert len(rest) == 1
    if path is not None:
        assert rest == [f"`{path} -h` shows what it takes."]


def test_help_is_not_cut_in_a_pipe() -> None:
    for argv in ([], ["topic"], ["cluster"], ["group"], ["broker"]):
        text = runner.invoke(app, [*argv, "-h"]).stdout
        assert "..." not in text.partition("Commands:")[2], argv


@pytest.mark.parametrize("name", ["\udcff\udcfe", "t\udcff"])
def test_a_name_that_is_no_utf_8_is_wrong_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, errors_end_the_command(debug=False):
        name.encode()
    assert ended.value.exit_code == ExitCode.USAGE
    assert "is not UTF-8 text" in capsys.readouterr().err
