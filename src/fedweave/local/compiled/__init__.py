"""Local training by compiled kernels (Numba): small chains of layers, a whole client in one call."""
