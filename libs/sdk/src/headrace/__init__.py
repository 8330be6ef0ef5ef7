"""Headrace for Python: ``Producer``, ``Consumer`` and ``AdminClient``; ``headrace.aio`` has the same for asyncio."""
