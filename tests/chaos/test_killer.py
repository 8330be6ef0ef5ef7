"""Whom the storm of ``test_kills`` waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace_cli.local import NotRunning
from headrace_cli.local.state import Health

from .test_kills import Killer


class Looks:
    """A cluster of one process, which is in another state at each look; kills meet it only when it runs."""

    def __init__(self, *healths: Health) -> None:
        self.left = list(healths)
        self.now = Health.STOPPED
        self.killed: list[Health] = []

    def process(self, name: str) -> Any:
        self.now = self.left.pop(0)
        return SimpleNamespace(name=name, health=self.now)

    def kill(self, name: str) -> None:
        if self.now is Health.WAITING:
            raise NotRunning(f"{name} does not run now")
        self.killed.append(self.now)


def test_a_victim_that_is_away_is_waited_for_and_one_that_died_young_gets_to_serve() -> None:
    looks = Looks(Health.WAITING, Health.STARTING, Health.STARTING, Health.WAITING, Health.READY, Health.STARTING)
    killer = Killer(looks)  # type: ignore[arg-type]
    for killed in ([Health.STARTING], [Health.STARTING, Health.READY]):
        killer.kill("controller-1")
        assert looks.killed == killed
    killer.kill("controller-1")
    assert looks.killed[2:] == [Health.STARTING], "it has served since it died young"
    assert not looks.left
