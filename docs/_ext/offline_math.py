"""Formulas as MathML, which browsers draw themselves: a page needs no script and no network for them."""

import html
import re

from docutils import nodes
from latex2mathml.converter import convert


def inline(writer, node):
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(writer, node):
    below = re.sub(r"\\(min|max)_(?:\{([^{}]*)\}|(\w))", _below, node.astext())
    writer.body.append(f'<div class="math">{convert(below, display="block")}</div>')
    raise nodes.SkipNode


def _below(found):
    """What is minimised over, under the word and not beside it, as TeX sets it."""
    return f"\\underset{{{found[2] or found[3]}}}{{\\{found[1]}}}"


def plain(writer, node):
    writer.body.append(html.escape(node.astext()))
    raise nodes.SkipNode


def setup(app):
    app.add_node(nodes.math, override=True, html=(inline, None), text=(plain, None))
    app.add_node(nodes.math_block, override=True, html=(block, None), text=(plain, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
