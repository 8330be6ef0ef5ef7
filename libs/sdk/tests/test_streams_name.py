"""``headrace.streams`` is ``headrace_streams``, where that is installed."""

from __future__ import annotations

import sys

import pytest

from headrace import streams


def test_without_the_package_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace_streams", None)
    with pytest.raises(ImportError, match="not installed here; install it with: pip install headrace-streams"):
        _ = streams.App


def test_what_fails_in_the_package_is_no_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", _broken)
    with pytest.raises(ModuleNotFoundError, match="no narwhals"):
        _ = streams.App


def test_it_has_what_the_package_has() -> None:
    package = pytest.importorskip("headrace_streams")
    assert streams.App is package.App
    with pytest.raises(AttributeError):
        _ = streams.Apps


def _broken(name: str) -> None:
    raise ModuleNotFoundError("no narwhals", name="narwhals")
