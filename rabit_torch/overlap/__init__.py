"""Updates that wait until a parameter is read."""
