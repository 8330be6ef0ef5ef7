"""What touches a cluster: one module per task, over the SDK."""
