"""Pure logic of the broker: what is accepted, where it goes, what is committed, what may be deleted."""
