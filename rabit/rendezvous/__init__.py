"""Which rank this process is, and where the ranks of its job meet."""
