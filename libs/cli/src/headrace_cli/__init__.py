"""The ``headrace`` command, and the cluster on one machine."""
