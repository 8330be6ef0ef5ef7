"""Groups, offsets and shards as pure state machines: events in, effects out."""
