"""The commands, one module per group. Modules import what they need inside functions, so that help is quick."""
