"""Training processes: on this machine, or the actors of a Ray cluster."""
