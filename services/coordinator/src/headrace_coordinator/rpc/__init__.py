"""Decode, one call to the engine, encode."""
