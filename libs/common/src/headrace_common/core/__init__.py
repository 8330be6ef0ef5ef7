"""Pure logic: no I/O, no clock, no chance, no protobuf. Everything may import it; it imports nothing of ours."""
