"""Whether a cluster keeps what it acknowledged: a load in Jepsen's manner, its history, and checkers of anomalies."""
