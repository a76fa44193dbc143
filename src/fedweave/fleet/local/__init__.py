"""Local fleets: in one process, or as processes on the loopback interface."""
