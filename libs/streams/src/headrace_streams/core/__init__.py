"""Decides what rows become: operators, state, time. No clock, chance, thread, file or RPC."""
