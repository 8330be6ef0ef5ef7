"""An admin service in memory that makes keys, for tests of what tasks are given to show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_common.core.access.grants import Grant
from headrace_common.core.errors import HeadraceError
from headrace_common.core.secret import Secret
from headrace_spark.adapters import clients, sdk_keys

DAY_MS = 24 * 3_600_000


@dataclass
class Clock:
    ms: float = 1_000_000.0

    def monotonic_ms(self) -> float:
        return self.ms

    def now_ms(self) -> float:
        return self.ms


@dataclass
class Keyring:
    """The admin client of the driver."""

    clock: Clock = field(default_factory=Clock)
    mode: str = "closed"
    key_id: str | None = "own"
    expires_ms: int | None = None
    fails: dict[str, HeadraceError] = field(default_factory=dict)
    """By the name of the call."""
    owned: list[Any] = field(default_factory=list)
    made: list[tuple[Grant, ...]] = field(default_factory=list)
    lifetimes_ms: list[int] = field(default_factory=list)
    deleted: list[list[str]] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)
    """What those show who ask."""

    def client(self, cluster: Any, **settings: Any) -> Keyring:
        self.shown.append(cluster.api_key)
        return self

    def who_am_i(self) -> Any:
        self._may("who_am_i")
        return SimpleNamespace(
            principal="User:driver", key_id=self.key_id, expires_ms=self.expires_ms, mode=self.mode, super_user=False
        )

    def list_keys(self, owner: str) -> list[Any]:
        assert owner == "User:driver"
        self._may("list_keys")
        return self.owned

    def create_key(self, *, lifetime: timedelta, scope: Iterable[Grant], note: str) -> Any:
        self._may("create_key")
        self.made.append(tuple(sorted(scope, key=str)))
        self.lifetimes_ms.append(lifetime // timedelta(milliseconds=1))
        id = f"k{len(self.made)}"
        self.owned.append(SimpleNamespace(id=id, note=note, expires_ms=int(self.clock.ms) + self.lifetimes_ms[-1]))
        return SimpleNamespace(key=Secret(f"hrk_{id}"), description=SimpleNamespace(id=id))

    def delete_keys(self, ids: list[str]) -> None:
        self._may("delete_keys")
        self.deleted.append(ids)
        self.owned = [key for key in self.owned if key.id not in ids]

    def close(self) -> None:
        pass

    def __enter__(self) -> Keyring:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _may(self, call: str) -> None:
        if call in self.fails:
            raise self.fails[call]


def install_keyring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    """Have drivers of this test ask a new one; nothing is left of other tests."""
    made = Keyring()
    monkeypatch.setattr(sdk_keys, "AdminClient", made.client)
    monkeypatch.setattr(sdk_keys, "SystemClock", lambda: made.clock)
    monkeypatch.setattr(sdk_keys, "_shared", type(sdk_keys._shared)())
    monkeypatch.setattr(clients, "_clients", type(clients._clients)())
    monkeypatch.setattr(clients, "_warned", set())
    return made
