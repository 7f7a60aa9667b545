"""What can be seen of ranks from outside: records, stacks, processes and hosts, as one JSON document."""
