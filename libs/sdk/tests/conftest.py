"""
Clusters of the lab for these tests, and the rule that all their producers are checked for: what is guarded in an intake
is touched with the token held.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import _intake
from headrace._core.chunk import NOWHERE
from headrace_lab.loop import LabLoop

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


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests on a cluster of the lab run on its loop."""
    del config
    in_lab = "labs" in getattr(item, "fixturenames", ()) and item.get_closest_marker("real_time") is None
    return {"lab": lambda: LabLoop(7)} if in_lab else {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def labs(request: pytest.FixtureRequest) -> Iterator[Labs]:
    """Makes clusters: in virtual time where the test is a coroutine, else on a thread."""
    loop = None
    if asyncio.iscoroutinefunction(request.function):
        loop = request.getfixturevalue("_function_scoped_runner").get_loop()
    loop = loop if isinstance(loop, LabLoop) else None
    with ExitStack() as made:
        yield lambda *args, **settings: made.enter_context(closing(LabCluster(*args, loop=loop, **settings)))
