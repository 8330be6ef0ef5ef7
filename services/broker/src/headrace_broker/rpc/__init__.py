"""gRPC servicers: decode, one engine call, encode."""
