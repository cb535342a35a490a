"""How ``make docs`` builds the site: pages in Markdown, the reference from docstrings, nothing fetched when viewed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import fedsgm

project = "fedsgm"
version = release = fedsgm.__version__
copyright = "the authors of fedsgm"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "offline_math"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "fedsgm"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"exclude-members": "tree_flatten, tree_unflatten"}
autodoc_preserve_defaults = True
napoleon_use_ivar = True
nitpicky = False
# What the check of links follows: other sites only where there is a network.
linkcheck_ignore = [r"https?://.*"]
