"""The run folder: experiment, manifest, rows, states, audit log and lock."""
