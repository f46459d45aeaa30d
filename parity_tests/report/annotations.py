"""Failures as annotations of GitHub's pages: lines of a log that its runners read."""

import os
from pathlib import Path


def wanted() -> bool:
    """Whether this runs where such lines are read."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def escaped(text: str, *, in_property: bool = False) -> str:
    """Text as such a line can hold it: a line break ends it, and in a property a colon or a comma, too."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *([(":", "%3A"), (",", "%2C")] if in_property else [])]
    for sign, code in pairs:
        text = text.replace(sign, code)
    return text


def annotation(path: Path, line: int, title: str, message: str) -> str:
    """One error at a line of a file; the path is given from the root of the checkout, where it is known."""
    root = Path(os.environ.get("GITHUB_WORKSPACE", Path.cwd())).resolve()
    path = path.resolve()
    name = (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
    place = f"file={escaped(name, in_property=True)},line={line},title={escaped(title, in_property=True)}"
    return f"::error {place}::{escaped(message)}"
