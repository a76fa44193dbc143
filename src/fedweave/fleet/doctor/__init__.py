"""Check a running fleet from outside: what its ports answer, and what to mend."""
