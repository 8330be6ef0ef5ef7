"""The gRPC face: decode, one engine call, encode."""
