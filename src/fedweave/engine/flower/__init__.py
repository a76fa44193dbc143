"""Clients of a real fleet, over Flower: what travels (wire), who is there (roster), the engine, and both apps."""
