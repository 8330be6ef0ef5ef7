"""What tests of Streams share."""
