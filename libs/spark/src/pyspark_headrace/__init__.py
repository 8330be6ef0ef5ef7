"""
Makes ``format("headrace")`` known to Spark without a registration call.

Spark imports every top-level module whose name begins with ``pyspark_`` and registers its ``DefaultSource``. It does so
in each planner process, before it knows whether the source is used: only Spark itself is imported here.
"""

from headrace_spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
