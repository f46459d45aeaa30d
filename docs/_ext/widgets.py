"""Widgets of the lessons: `<!-- widget: softmax -->` below a picture is one that a reader can change, in the site.

Each is a file of `_static/widgets` beside the script that they share. As Markdown, and where no script runs, a page has
its picture alone.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "_static" / "widgets"
MARKER = re.compile(r"^<!-- widget: (\w+) -->$", re.MULTILINE)


def names() -> list[str]:
    """The widgets that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.js") if path.stem != "shared")


def html(name: str, folder: str = "../_static/widgets") -> str:
    """The element of a widget and its scripts, whose folder is given as the page sees it.

    Raises:
        ValueError: there is no such widget.
    """
    if name not in names():
        raise ValueError(f"widget: expected one of {', '.join(names())}, got {name}; add {name}.js to {FOLDER.name}")
    scripts = "".join(f'<script src="{folder}/{file}.js"></script>' for file in ("shared", name))
    style = f'<link rel="stylesheet" href="{folder}/widgets.css">'
    return f'{style}<div class="widget" data-widget="{name}"></div>{scripts}'


def with_widgets(text: str) -> str:
    """A page with its widgets at their markers."""
    return MARKER.sub(lambda found: f"```{{raw}} html\n{html(found[1])}\n```", text)
