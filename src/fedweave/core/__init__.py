"""The nouns and verbs of a federated round, checked settings, and addressed randomness."""
