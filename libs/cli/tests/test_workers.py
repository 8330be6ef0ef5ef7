"""Which worker ``headrace connect`` asks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace_cli.workers import DEFAULT_URL, find_url

URL = "http://127.0.0.1:20001"


def write(here: Path, **told: Any) -> None:
    (here / ".headrace").mkdir(exist_ok=True)
    own = {"data_dir": os.path.realpath(here / ".headrace"), "connect_url": URL}
    (here / ".headrace" / "cluster.json").write_text(json.dumps(own | told))


def test_that_of_the_local_cluster_of_this_directory(tmp_path: Path) -> None:
    assert find_url(tmp_path) == DEFAULT_URL
    write(tmp_path)
    assert find_url(tmp_path) == URL
    (tmp_path / "copy").mkdir()
    os.symlink(tmp_path / ".headrace", tmp_path / "copy" / ".headrace")
    assert find_url(tmp_path / "copy") == URL


@pytest.mark.parametrize("told", [{"connect_url": None}, {"connect_url": 5}, {"data_dir": "/elsewhere"}])
def test_the_default_where_it_has_none_or_speaks_of_another(tmp_path: Path, told: dict[str, Any]) -> None:
    write(tmp_path, **told)
    assert find_url(tmp_path) == DEFAULT_URL


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff"])
def test_the_default_where_the_file_says_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path)
    (tmp_path / ".headrace" / "cluster.json").write_bytes(text.encode("latin-1"))
    assert find_url(tmp_path) == DEFAULT_URL
