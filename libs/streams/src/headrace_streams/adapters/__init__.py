"""RocksDB and the SDK behind the ports."""
