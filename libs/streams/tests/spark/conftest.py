"""The Spark session is that of the connector's tests."""

from libs.spark.tests.spark.conftest import spark

__all__ = ["spark"]
