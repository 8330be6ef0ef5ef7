"""``headrace`` for asyncio: the same names as in the sync package."""
