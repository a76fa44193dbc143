"""Local training in PyTorch."""
