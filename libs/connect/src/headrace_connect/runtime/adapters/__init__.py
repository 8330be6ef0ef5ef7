"""Ports of tasks on the clients for asyncio."""
