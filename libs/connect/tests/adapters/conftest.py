"""A cluster of the lab."""

from libs.sdk.tests.kit.labs import labs, pytest_asyncio_loop_factories

__all__ = ["labs", "pytest_asyncio_loop_factories"]
