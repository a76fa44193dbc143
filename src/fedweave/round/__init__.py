"""One federated round: what is asked of whom, and what becomes of the answers."""
