"""A live page over run folders: read-only, on this machine alone, nothing loaded from the network."""
