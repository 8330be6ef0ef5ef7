"""What a service process needs around its engine: clock, tasks, logs, metrics, traces, serving and draining."""
