"""The server of a fleet: who is there, what is asked, and what is believed."""
