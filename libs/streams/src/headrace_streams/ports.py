"""What tasks need from outside."""
