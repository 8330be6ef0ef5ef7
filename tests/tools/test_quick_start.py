"""Processes that tests of a stage start do without pandas and compile no dataclass twice; tests do as users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
QUICK_START = str(ROOT / "tests/quick_start")
LOOK = "import sys, pyarrow; print(pyarrow.array([1]).to_pylist(), 'pandas' in sys.modules)"


@pytest.fixture
def configure(pytestconfig: pytest.Config) -> Any:
    """What the conftest of the root does; by its path, as many modules are named conftest."""
    plugin = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert plugin is not None
    return plugin.pytest_configure


def asked(marks: str) -> Any:
    """As much of pytest's config as is read, in a worker."""
    return SimpleNamespace(option=SimpleNamespace(markexpr=marks), workerinput={})


@pytest.mark.parametrize("marks", ["integration and not spark", "chaos", "chaos and not spark"])
def test_a_stage_of_processes_has_them_start_quickly(
    configure: Any, marks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    for _ in range(2):
        configure(asked(marks))
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [QUICK_START, "before"]
    assert {path.name for path in Path(QUICK_START).glob("*.py")} == {"dataclasses.py", "pandas.py"}


@pytest.mark.parametrize("marks", ["", "spark", "not integration and not chaos and not spark"])
def test_others_have_it(configure: Any, marks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    configure(asked(marks))
    assert os.environ["PYTHONPATH"] == "before"


@pytest.mark.parametrize(("path", "loaded"), [(QUICK_START, False), ("", True)])
def test_arrow_does_without(path: str, loaded: bool) -> None:
    """The second shows that there is something to spare."""
    given = os.environ.get("PYTHONPATH", "")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (path, given)))}
    ran = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["[1]", str(loaded)]


PROGRAM = """
import dataclasses, json, sys

@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Pair:
    left: int
    right: str = "b"

for number in range(20):
    dataclasses.make_dataclass(f"Made{number}", [f"x{number}"], frozen=True)

compiled = getattr(dataclasses, "_new", None)
frozen = False
try:
    Pair(1).left = 2
except dataclasses.FrozenInstanceError:
    frozen = True
number = None if compiled is None else len(compiled)
told = [repr(Pair(1)), Pair(1) == Pair(1, "b"), hash(Pair(1)) == hash(Pair(1)), Pair(1) < Pair(2), frozen]
print(json.dumps([told, dataclasses.asdict(dataclasses.replace(Pair(1), right="c")), number]))
"""


def test_methods_of_dataclasses_are_compiled_by_the_first_process_alone(tmp_path: Path) -> None:
    quick = shutil.copytree(QUICK_START, tmp_path / "quick", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pairs.py").write_text(PROGRAM)

    def run(*path: Path) -> Any:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*path, tmp_path)))}
        command = [sys.executable, "-m", "pairs"]
        return json.loads(subprocess.run(command, env=env, capture_output=True, timeout=120, check=True).stdout)

    plain, first, second = run(), run(quick), run(quick)
    assert plain[2] is None
    assert first[:2] == second[:2] == plain[:2]
    assert first[2] > 0
    assert second[2] == 0

    (kept,) = (quick / "__pycache__").glob("methods.pairs.*")
    kept.write_bytes(kept.read_bytes()[:100])
    assert run(quick) == first, "what is damaged is made anew"
    assert run(quick) == second
