"""The command line, the file and the environment of rabitrun."""
