"""What every source must pass, with a tap in memory."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import pytest
from libs.connect.tests.connectors.singer import tap_shop
from libs.connect.tests.connectors.singer.taps import ShopTap, settings, source_of

from headrace_connect.plugin import Source
from headrace_connect.testing import SourceCase, check_source


class ShopCase(SourceCase):
    """Rows of two streams that come by turns, with a STATE after every few; a run begins at the last one."""

    rows = tap_shop.ROWS

    def __init__(self) -> None:
        self.tap = ShopTap()

    def make(self) -> Source[Any]:
        return source_of(self.tap, settings(config={"state_every": "4"}))

    def go_away(self) -> bool:
        self.tap.away = True
        return True

    def come_back(self) -> None:
        self.tap.away = False

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        assert key is not None
        assert value is not None
        assert json.loads(key) == {"id": json.loads(value)["id"]}
        return int(json.loads(value)["id"])


@pytest.mark.timeout(600)
def test_the_suite() -> None:
    check_source(ShopCase)
