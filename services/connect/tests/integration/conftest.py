"""A cluster of real processes."""

from tests.integration.streams.conftest import cluster

__all__ = ["cluster"]
