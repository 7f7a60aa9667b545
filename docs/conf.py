"""Sphinx settings."""

project = "rabit"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build", "changes"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
