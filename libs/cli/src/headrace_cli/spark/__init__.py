"""Spark on this machine: which Java it can use, which jobs are installed, and how one of them is submitted."""
