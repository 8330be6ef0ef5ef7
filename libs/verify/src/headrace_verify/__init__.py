"""Whether a cluster keeps what it acknowledged: a load, its history, and checkers of anomalies."""
