"""What a program writes: App, Stream, windows, aggregates."""
