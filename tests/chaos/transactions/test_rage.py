"""How long a storm lasts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from . import storm
from .storm import Storm


@pytest.fixture
def calm() -> Storm:
    nobody: Any = SimpleNamespace(local=SimpleNamespace(wait_ready=lambda: None), tend=lambda: None)
    return Storm(nobody, nobody, random.Random(1), faults={})


def test_it_goes_on_while_there_is_too_little_to_judge_by(calm: Storm) -> None:
    answers = [True, True, False]
    calm.rage(0, too_few=lambda: answers.pop(0))
    assert answers == []


def test_it_does_not_go_on_for_ever(calm: Storm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "LONGER_S", 0.1)
    calm.rage(0, too_few=lambda: True)
    assert calm.told[-1].endswith("the storm is over")


def test_it_ends_early_when_there_was_enough(calm: Storm) -> None:
    answers = [False, True]
    calm.rage(600, lambda: answers.pop(0))
    assert answers == []
