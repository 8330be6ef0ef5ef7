"""One module for each technology: the cluster's topics and groups, and host processes."""
