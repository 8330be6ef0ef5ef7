"""Pure: events in, effects out. No I/O, no clock."""
