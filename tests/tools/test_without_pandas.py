"""Processes that tests of a stage start make tables without pandas; tests themselves have it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_PANDAS = str(ROOT / "tests/without_pandas")
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
def test_a_stage_of_processes_spares_them_pandas(configure: Any, marks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    for _ in range(2):
        configure(asked(marks))
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [WITHOUT_PANDAS, "before"]
    assert Path(WITHOUT_PANDAS, "pandas.py").exists()


@pytest.mark.parametrize("marks", ["", "spark", "not integration and not chaos and not spark"])
def test_others_have_it(configure: Any, marks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    configure(asked(marks))
    assert os.environ["PYTHONPATH"] == "before"


@pytest.mark.parametrize(("path", "loaded"), [(WITHOUT_PANDAS, False), ("", True)])
def test_arrow_does_without(path: str, loaded: bool) -> None:
    """The second shows that there is something to spare."""
    given = os.environ.get("PYTHONPATH", "")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (path, given)))}
    ran = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["[1]", str(loaded)]
