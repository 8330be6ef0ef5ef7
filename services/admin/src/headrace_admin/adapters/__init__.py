"""One file per technology behind a port."""
