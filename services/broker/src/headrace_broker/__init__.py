"""The partition broker: keeps partition logs in RocksDB and serves them over gRPC."""
