"""The operations on NumPy arrays."""
