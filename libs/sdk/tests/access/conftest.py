"""For tests of what clients show to a closed cluster."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user who has no credential."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
