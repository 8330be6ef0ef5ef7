"""Programs that read topics, keep state and write topics: `headrace.streams` is this package."""
