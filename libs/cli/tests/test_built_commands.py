"""A line that names its command has a parser for that one alone; what people see is the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNTED = """
import sys
import typer.main
built, make = [], typer.main.get_command_from_info
def counted(*args, **more):
    command = make(*args, **more)
    built.append(command.name)
    return command
typer.main.get_command_from_info = counted
sys.argv = ["headrace", *sys.argv[1:]]
from headrace_cli.__main__ import main
try:
    main()
finally:
    print(len(built), file=sys.stderr)
"""


def run(*argv: str) -> tuple[int, str, int]:
    """Exit code, what was said, and for how many commands a parser was made."""
    ended = subprocess.run(
        [sys.executable, "-c", COUNTED, *argv], capture_output=True, text=True, timeout=60, check=False
    )
    *said, count = ended.stderr.splitlines()
    return ended.returncode, ended.stdout + "\n".join(said), int(count)


@pytest.mark.parametrize(
    "argv", [("cluster", "health", "-h"), ("cluster", "can-remove", "--help"), ("topic", "list", "-h")]
)
def test_a_command_that_is_named_is_the_only_one_that_is_built(argv: tuple[str, ...]) -> None:
    code, said, built = run(*argv)
    assert (code, built) == (0, 1)
    assert f"Usage: headrace {argv[0]} {argv[1]}" in said


def test_a_group_s_help_has_all_of_its_commands() -> None:
    code, said, built = run("cluster", "-h")
    assert code == 0
    assert built > 5
    for name in ("health", "status", "can-remove", "restore-status"):
        assert name in said


@pytest.mark.parametrize("argv", [("-h",), ("clustr", "health"), ("--debug", "cluster", "health", "-h")])
def test_other_lines_have_all_commands_to_choose_from(argv: tuple[str, ...]) -> None:
    assert run(*argv)[2] > 40


def test_a_command_that_a_group_does_not_have_is_told_as_ever() -> None:
    code, said, built = run("cluster", "helth")
    assert code == 2
    assert "helth" in said
    assert built > 5


def test_no_command_loads_what_asks_workers_before_it_asks_one() -> None:
    code = (
        "import sys, headrace_cli.app; print({'urllib.request', 'http.client', 'grpc', 'pyarrow'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "set()\n"
