"""What all reproductions share."""
