"""Bytes of records to columns and back."""
