"""What travels between server and clients, and nothing else."""
