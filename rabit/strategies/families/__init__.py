"""The rows of the catalog, a module for each family of methods."""
