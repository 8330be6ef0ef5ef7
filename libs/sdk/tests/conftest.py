"""
Clusters of the lab for these tests, and the rule that all their producers are checked for: what is guarded in an intake
is touched with the token held.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from libs.sdk.tests.kit.labs import labs, pytest_asyncio_loop_factories

from headrace import _intake
from headrace._core.chunk import NOWHERE

__all__ = ["labs", "pytest_asyncio_loop_factories"]

BROKEN: list[str] = []
"""Where the rule was broken since the test began; the engine may not live to tell."""


class WatchedToken(_intake.Token):
    """Knows who took it; the fast path of ``send`` takes it past this, and touches no field of the intake."""

    __slots__ = ("owner",)

    def take(self) -> None:
        super().take()
        self.owner = threading.get_ident()

    @property
    def mine(self) -> bool:
        return not hasattr(self, "free") and getattr(self, "owner", None) == threading.get_ident()


class WatchedIntake(_intake.Intake):
    """Refuses to be touched without the token, from the start of the engine on."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.token: WatchedToken = WatchedToken()

    def mend(self) -> None:
        self.token.owner = threading.get_ident()  # after the fast path, which took it past ``take``
        super().mend()

    def __getattribute__(self, name: str) -> Any:
        if name in _intake.GUARDED:
            _check(self, name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _intake.GUARDED:
            _check(self, name)
        super().__setattr__(name, value)


def _check(intake: WatchedIntake, name: str) -> None:
    if getattr(intake, "home", NOWHERE) is not NOWHERE and not intake.token.mine:
        BROKEN.append(f"{name} was touched without the token")
        raise AssertionError(BROKEN[-1])


@pytest.fixture(autouse=True)
def watched_intakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See the module's text."""
    monkeypatch.setattr("headrace.aio._engine.Intake", WatchedIntake)
    BROKEN.clear()
    yield
    assert not BROKEN
