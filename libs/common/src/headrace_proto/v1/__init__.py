"""Generated from ``proto/``; run ``make proto`` to renew, never edit."""
