"""For tests of and against coordinators; nothing here runs in production."""
