"""Pure: records of the config and status topics, what should run, what the leader writes. Knows no I/O."""
