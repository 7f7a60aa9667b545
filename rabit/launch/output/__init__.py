"""What ranks print."""
