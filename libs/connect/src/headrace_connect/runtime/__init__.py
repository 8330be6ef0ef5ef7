"""How connectors run: the loops of tasks, over ports."""
