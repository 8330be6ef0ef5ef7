"""Runs the core: follows topics, shares the work, leads, and has tasks run in hosts."""
