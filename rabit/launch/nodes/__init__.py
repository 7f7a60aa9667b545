"""The ranks of one host, as processes."""
