"""The cluster of the tests of Streams."""

from __future__ import annotations

from tests.integration.streams.conftest import cluster

__all__ = ["cluster"]
