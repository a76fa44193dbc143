"""What a client does: the same in the simulator, in a worker process, on Ray and on a node of a real fleet."""
