"""Environments of connectors: what is refused, and that nothing is left of one that failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from libs.connect.tests.wheels import write_wheel

from headrace_common.core.errors import InvalidConfig
from headrace_connect.runtime.installing import Index, install


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "x" * 101])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match="is no name of an environment"):
        install(tmp_path, name, ["x"], Index())
    assert not list(tmp_path.iterdir())


def test_one_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    with pytest.raises(InvalidConfig, match="is there already"):
        install(tmp_path, "shop", ["x"], Index())
    assert (tmp_path / "shop").is_dir()


def test_nothing_is_left_of_what_cannot_be_installed(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "plain", "1.0", {"plain.py": ""})
    index = Index(links=(str(wheels),), offline=True)
    with pytest.raises(InvalidConfig, match=r"pip cannot install nothing-like-it:(.|\n)*nothing-like-it"):
        install(tmp_path / "all", "shop", ["nothing-like-it"], index)
    with pytest.raises(InvalidConfig, match="plain: there is no connector in it"):
        install(tmp_path / "all", "shop", ["plain"], index)
    assert not list((tmp_path / "all").iterdir())
