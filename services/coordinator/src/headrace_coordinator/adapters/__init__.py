"""Logs of shards on brokers, or in memory."""
