"""Sphinx configuration. Nothing is fetched: formulas and pictures are drawn at build time."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "attn-parity"
author = "the attn-parity authors"
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx_design", "formulas", "variants"]
exclude_patterns = ["_build"]
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
