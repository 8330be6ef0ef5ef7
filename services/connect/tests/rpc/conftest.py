"""REST over the twin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from services.connect.tests.kit.rest import Rest, served


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with served() as made:
        yield made
