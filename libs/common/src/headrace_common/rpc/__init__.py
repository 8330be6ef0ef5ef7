"""gRPC: channel and server options, typed errors over the wire, conversion between messages and core types."""
