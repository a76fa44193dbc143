"""Claims, scales, parallel runs and measured runs, shared by all papers."""
