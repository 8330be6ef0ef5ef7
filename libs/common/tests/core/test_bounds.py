"""One declaration of a setting: its check, its message, its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from headrace_common.core.bounds import check, find_problem, setting, takes
from headrace_common.core.errors import InvalidConfig


@dataclass(frozen=True)
class Kettle:
    litres: int = setting(2, low=1, high=5)
    watts: int = setting(2_000, low=100)
    patience_s: float = setting(0.5, high=60)
    colour: str = setting("red", choices=("red", "blue"))
    lid: int | None = setting(None, low=0)
    name: str = "kettle"


FIELDS = {declared.name: declared for declared in fields(Kettle)}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("litres", "1 to 5"),
        ("watts", "100 or more"),
        ("patience_s", "60 or less"),
        ("colour", "red, blue"),
        ("lid", "0 or more"),
        ("name", ""),
    ],
)
def test_what_a_setting_takes(name: str, told: str) -> None:
    assert takes(FIELDS[name]) == told


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("litres", 1, None),
        ("litres", 5, None),
        ("litres", 0, "litres takes 1 to 5, not 0"),
        ("litres", 6, "litres takes 1 to 5, not 6"),
        ("litres", True, "litres takes a whole number, not True"),
        ("litres", 1.5, "litres takes a whole number, not 1.5"),
        ("litres", None, "litres takes a whole number, not None"),
        ("patience_s", 0.25, None),
        ("patience_s", float("nan"), "patience_s takes a number, not nan"),
        ("patience_s", "1", "patience_s takes a number, not '1'"),
        ("patience_s", 61, "patience_s takes 60 or less, not 61"),
        ("colour", "green", "colour takes red, blue, not 'green'"),
        ("lid", None, None),
        ("lid", -1, "lid takes 0 or more, not -1"),
        ("name", 7, None),
    ],
)
def test_what_is_wrong_with_a_value(name: str, value: Any, said: str | None) -> None:
    assert find_problem(FIELDS[name], value) == said


def test_all_that_is_wrong_is_said_at_once() -> None:
    check(Kettle())
    with pytest.raises(InvalidConfig) as wrong:
        check(Kettle(litres=0, colour="green"), (True, "fine"), (False, "a kettle needs a plug"))
    assert str(wrong.value) == "litres takes 1 to 5, not 0; colour takes red, blue, not 'green'; a kettle needs a plug"
