"""Tables with one vector per client, in memory or on disk, and atomic files."""
