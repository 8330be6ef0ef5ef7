"""One task per shard: reads its log, feeds the core, writes what it says, answers."""
