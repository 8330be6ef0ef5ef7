"""How the SDK reaches a cluster: a port, gRPC behind it, and an in-memory cluster for fast tests."""
