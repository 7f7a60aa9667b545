"""The programs that start ranks."""
