"""Sphinx settings."""

import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))  # docstrings.py, tables.py

from rabit.version import __version__

project = "rabit"
version = release = __version__
copyright = "the authors of rabit"
extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings"]
html_theme = "furo"
html_title = f"rabit {version}"
html_extra_path = ["llms.txt"]
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")
html_show_sphinx = False
exclude_patterns = ["_build", "changes"]
myst_enable_extensions = ["deflist", "substitution"]
myst_substitutions = {"version": version}
myst_heading_anchors = 4

default_role = "py:obj"
add_module_names = False
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True


class Base:
    """Stands for a class of MXNet's."""

    __module__ = "mxnet"


# MXNet shares no environment with NumPy 2; rabit_mxnet is only looked at here.
sys.modules["mxnet"] = mock.MagicMock(**{"optimizer.Optimizer": Base, "gluon.Trainer": Base})
sys.modules["rabit_mxnet.library"] = mock.MagicMock()


def add_public_strategies(app, page, source):
    """Each public name of rabit.strategies has an entry on its page."""
    if page == "reference/api/strategies":
        import tables

        source[0] = tables.public_strategies(source[0])


def setup(app):
    app.connect("source-read", add_public_strategies)
