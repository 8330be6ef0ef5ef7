"""Pure logic of the clients: no gRPC, no clock, no task. Events in, effects out."""
