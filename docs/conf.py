"""Sphinx configuration. Nothing is fetched: formulas and pictures are drawn at build time."""

import re
import sys
import tomllib
from pathlib import Path

from sphinx.util import logging

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "attn-parity"
author = "the attn-parity authors"
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["version"]

extensions = [
    "myst_parser",
    "sphinx_design",
    "sphinx.ext.githubpages",
    "formulas",
    "variants",
    "course",
    "viewer",
    "slim",
]
exclude_patterns = ["_build", "zh/README.md"]  # the site has a landing page of its own
nitpicky = True

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "attn-parity"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_math_renderer = "mathtext"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

# What makes a browser fetch something: a page must be readable without a network.
FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"")


def stays_at_home(app, exception):
    """Warn of every page that would fetch something from elsewhere; `make docs` fails on warnings."""
    for page in Path(app.outdir).rglob("*.html") if exception is None else ():
        for found in FETCHED.findall(page.read_text("utf-8")):
            logging.getLogger(__name__).warning("%s fetches from the network: %s", page.name, found)


def setup(app):
    app.connect("build-finished", stays_at_home)
