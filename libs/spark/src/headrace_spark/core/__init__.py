"""Decisions without Spark, network, clock or chance: events in, effects out."""
