"""Test doubles and contract suites that several members use. Never imported by product code."""
