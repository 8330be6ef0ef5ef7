"""asyncio around the core: one method per RPC, and the storage loop that owns every partition."""
