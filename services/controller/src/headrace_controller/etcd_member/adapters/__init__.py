"""One file per technology."""
