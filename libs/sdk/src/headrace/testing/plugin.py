"""The pytest plugin: fixtures only. Nothing is imported or started before a test asks for one."""

from __future__ import annotations
