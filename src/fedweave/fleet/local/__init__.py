"""Fleets on this machine: in one process, or as processes on loopback."""
