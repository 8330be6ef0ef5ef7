"""The asyncio side of the controller: who follows, who is active, and what the active one does."""
