"""A real fleet of clients, over Flower."""
