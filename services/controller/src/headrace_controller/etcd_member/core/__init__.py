"""Pure decisions: no I/O, clock or chance."""
