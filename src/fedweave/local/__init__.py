"""What a client does."""
