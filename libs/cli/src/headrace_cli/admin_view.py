"""What commands ask the admin service, as plain rows for people and programs. The only user of ``AdminClient``."""
