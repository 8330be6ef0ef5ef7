"""What a task that writes does about a key that a coordinator does not know yet."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CredentialsExpired, HeadraceError, Unauthenticated
from headrace.finding import ClusterAddress
from headrace_common.core.secret import Secret
from headrace_spark.adapters import clients, sdk_writing
from headrace_spark.adapters.clients import LOOK_AGAIN_MS, LOOKS_MAX
from headrace_spark.adapters.sdk_writing import SdkSink
from headrace_spark.core.units import Owned

UNKNOWN = Unauthenticated("there is no API key k1")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(sdk_writing, "pause", found.append)
    monkeypatch.setattr(clients, "_clients", type(clients._clients)())
    return found


def sink(monkeypatch: pytest.MonkeyPatch, *answers: HeadraceError | tuple[int, int], key: str | None = "k1") -> SdkSink:
    left = list(answers)

    class Owner:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def init(self, claim: int) -> tuple[int, int]:
            answer = left.pop(0)
            if isinstance(answer, HeadraceError):
                raise answer
            return answer

        def close(self) -> None: ...

    monkeypatch.setattr(sdk_writing, "UnitOwner", Owner)
    return SdkSink(ClusterAddress(("b:1",), api_key=None if key is None else Secret(key)), {})


def test_it_is_shown_again(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    assert sink(monkeypatch, UNKNOWN, UNKNOWN, (3, 6)).claim("q", 9) == Owned("q", 3, 6)
    assert pauses == [LOOK_AGAIN_MS] * 2


def test_some_times(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    with pytest.raises(Unauthenticated):
        sink(monkeypatch, *[UNKNOWN] * LOOKS_MAX, (3, 6)).claim("q", 9)
    assert len(pauses) == LOOKS_MAX - 1


def test_not_where_it_is_over_or_the_tasks_own(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    with pytest.raises(CredentialsExpired):
        sink(monkeypatch, CredentialsExpired("over"), (3, 6)).claim("q", 9)
    clients._clients.clear()
    with pytest.raises(Unauthenticated):
        sink(monkeypatch, UNKNOWN, (3, 6), key=None).claim("q", 9)
    assert pauses == []
