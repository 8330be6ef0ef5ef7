"""A host changes positions in the target of a sink."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.host_messages import PositionForm, Rewind
from headrace_connect.plugin import Guarantee, NoSettings, Sink
from headrace_connect.runtime.host_answers import answer
from headrace_connect.settings import Secrets


class Topics:
    """Topics and their partitions."""

    there: Mapping[str, int] = {"orders": 2, "returns": 1, "other": 1}

    async def names(self) -> list[str]:
        return list(self.there)

    async def partitions(self, topic: str) -> int:
        return self.there.get(topic, 0)


class KeepsThem(Sink[NoSettings]):
    """Keeps positions, and cannot change them."""

    guarantee = Guarantee.POSITIONS


async def rewind(config: Mapping[str, str], *positions: PositionForm, forget_others: bool = False) -> Any:
    given: Any = SimpleNamespace(process=SimpleNamespace(topics=Topics()), secrets=Secrets())
    return await answer(Rewind(1, config, positions, forget_others), given)


def shop(directory: Path) -> dict[str, str]:
    return {
        "name": "shop",
        "connector.class": "sql-sink",
        "topics": "orders",
        "connection.url": f"sqlite:///{directory}/x.db",
    }


def positions(directory: Path) -> dict[tuple[str, int], int | None]:
    with closing(sqlite3.connect(directory / "x.db")) as db:
        return {(topic, number): at for topic, number, at in db.execute(
            "select topic, partition, position from headrace_positions"
        )}  # fmt: skip


async def test_some_are_set_and_some_forgotten(tmp_path: Path) -> None:
    given = [PositionForm("orders", 0, 5), PositionForm("orders", 1, 6), PositionForm("gone", 0, 7)]
    assert await rewind(shop(tmp_path), *given) == {"changed": 3}, "also where there are no tables yet"
    assert positions(tmp_path) == {("orders", 0): 5, ("orders", 1): 6, ("gone", 0): 7}
    assert await rewind(shop(tmp_path), PositionForm("orders", 0, None), PositionForm("orders", 1, 2)) == {"changed": 2}
    assert positions(tmp_path) == {("orders", 0): None, ("orders", 1): 2, ("gone", 0): 7}


async def test_all_that_it_reads_and_what_is_named_is_forgotten(tmp_path: Path) -> None:
    await rewind(shop(tmp_path), *(PositionForm(of, 0, 5) for of in ("orders", "other", "gone")))
    done = await rewind(shop(tmp_path), PositionForm("gone", 0, None), forget_others=True)
    assert done == {"changed": 3}, "two partitions of orders, and one that is not there any more"
    assert positions(tmp_path) == {("orders", 0): None, ("other", 0): 5, ("gone", 0): None}


async def test_nothing_to_change_asks_nobody(tmp_path: Path) -> None:
    assert await rewind(shop(tmp_path)) == {"changed": 0}
    assert not (tmp_path / "x.db").exists()


async def test_a_sink_that_cannot_says_what_to_do() -> None:
    config = {"name": "k", "connector.class": f"{__name__}:KeepsThem", "topics": "orders"}
    with pytest.raises(InvalidConfig, match=r"KeepsThem has no rewind.*by hand while the connector is stopped"):
        await rewind(config, PositionForm("orders", 0, 1))
