"""The graph that a program describes: checked, named and cut into sub-topologies."""
