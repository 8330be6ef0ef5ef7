"""Finding the app in a program, and what a program that fails is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_streams import App, upkeep
from headrace_streams.core.errors import NotAllowed
from headrace_streams.plan.compare import Change, Fate
from headrace_streams.program import load


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\n1 / 0\n", r"ZeroDivisionError\('division by zero'\) at .*failing\.py:2"),
        ("import sys\nsys.exit(0)\n", r"SystemExit\(0\) at .*failing\.py:2"),
        ("import nothing_of_this_name\n", r"ModuleNotFoundError.* at .*failing\.py:1"),
        ("\ndef\n", r"SyntaxError: invalid syntax at .*failing\.py:2$"),
    ],
)
def test_a_program_that_fails_is_named_with_the_line(tmp_path: Path, text: str, error: str) -> None:
    program = tmp_path / "failing.py"
    program.write_text(text)
    with pytest.raises(NotAllowed, match=rf"failing\.py cannot be loaded: {error}"):
        load(str(program))


def test_a_program_with_an_app(tmp_path: Path) -> None:
    program = tmp_path / "billing.py"
    program.write_text("from headrace_streams import App\nbilling = App('billing')\n")
    assert load(str(program)).name == "billing"
    assert load(f"{program}:billing").name == "billing"
    with pytest.raises(NotAllowed, match=r"no App called 'x'; it has billing: name one, as in .*billing\.py:billing"):
        load(f"{program}:x")


def test_a_program_that_runs_its_app_when_it_is_loaded_is_told_where(tmp_path: Path) -> None:
    """It would run with other settings, begin again after SIGTERM, and ``describe`` would run it."""
    program = tmp_path / "billing.py"
    program.write_text("from headrace_streams import App\napp = App('billing')\napp.run()\n")
    with pytest.raises(NotAllowed, match=r"billing\.py:3 runs billing as soon as .* below if __name__ == '__main__':"):
        load(str(program))
    with pytest.raises(InvalidConfig):
        App("billing").run(commit_rows=0)


def test_no_name_is_no_program() -> None:
    with pytest.raises(NotAllowed, match=r"'' names no program: give a file or a module, as billing\.py"):
        load("")


def test_an_app_is_compared_with_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``headrace streams plan`` does it."""
    asked: list[object] = []
    change = Change(Fate.SAFE, "the state 'n' is new and begins empty")

    def compared(*given: object) -> list[Change]:
        asked.append(given)
        return [change]

    monkeypatch.setattr(upkeep, "compared", compared)
    app = App("billing")
    assert app.plan("somewhere:9292") == [change]
    app.plan()
    assert asked == [(app, "somewhere:9292"), (app, None)]
