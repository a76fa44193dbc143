"""One vector per client, in memory or on disk, and files that are written whole or not at all."""
