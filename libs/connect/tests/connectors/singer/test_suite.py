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

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once

    def make(self) -> Source[Any]:
        return source_of(ShopTap(self._at_once), settings(config={"state_every": "4"}))

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        assert key is not None
        assert value is not None
        assert json.loads(key) == {"id": json.loads(value)["id"]}
        return int(json.loads(value)["id"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("at_once", [2, 7])
def test_the_suite(at_once: int) -> None:
    check_source(lambda: ShopCase(at_once))
