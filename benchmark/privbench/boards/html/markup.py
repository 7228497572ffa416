"""From markdown and matplotlib's SVG to HTML that runs nothing and fetches nothing."""

from __future__ import annotations

import functools
import re
import xml.etree.ElementTree as ET

from markdown_it import MarkdownIt
from markupsafe import Markup

from privbench.boards.front import GREY
from privbench.ground.text import terminal

#: What texts of boards use; links, pictures and HTML are left out, so they are plain text.
_RULES = ("backticks", "emphasis", "entity", "escape", "fence", "heading", "list", "table")


def block(text: str) -> Markup:
    """Return paragraphs, lists and tables of markdown as HTML."""
    return Markup(_reader().render(terminal(text)))  # noqa: S704 - it escapes all but its own tags


def inline(text: str) -> Markup:
    """Return one line of markdown as HTML."""
    return Markup(_reader().renderInline(terminal(text)))  # noqa: S704 - as above


@functools.cache
def _reader() -> MarkdownIt:
    return MarkdownIt("zero").enable(list(_RULES))


def figure(svg: str, name: str, label: str) -> Markup:
    """Return a figure of a board for the middle of a page: its text has the page's colour and font.

    It has no style of its own, and its ids clash with no others.

    Args:
        svg: the text of the file.
        name: starts the ids; another one for each figure of a page.
        label: what it shows, for those who do not see it.
    """
    root = ET.fromstring(svg)  # noqa: S314 - our own file
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for one in root.iter():
        one.tag = _local(one.tag)
        given = {_local(at): text for at, text in one.attrib.items()}
        one.attrib = {at: _own(text, at, name) for at, text in given.items() if at != "font-family"}
    root.attrib |= {"role": "img", "aria-label": terminal(label)}
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704 - it escapes all text


def _local(name: str) -> str:
    return name.rsplit("}", 1)[-1]


def _own(text: str, attribute: str, name: str) -> str:
    """The value of an attribute, where an id and what points to one begin with a name."""
    if attribute == "id":
        return f"{name}-{text}"
    if text == GREY:
        return "currentColor"
    return (
        re.sub(r"^url\(#", f"url(#{name}-", re.sub("^#", f"#{name}-", text))
        if (attribute == "href" or text.startswith("url("))
        else text
    )
