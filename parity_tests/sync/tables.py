"""The tables of README and docs that follow from the contract: written between two lines that name them."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path

from attn_np import contract, weights
from attn_np.contract._letters import LETTERS
from attn_np.contract._names import NAMES
from attn_np.weights import layouts
from parity_tests.sync import choice
from parity_tests.sync.exercises import graded

COMMAND = "make sync"
RESULTS = Path(__file__).resolve().parents[1] / "peers" / "results.json"


def table(*rows: tuple[str, ...]) -> str:
    """A table in Markdown; the first row is its head."""
    head, *body = rows
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def catalogue() -> str:
    """Each family with the names of its variants, linked to their papers."""
    families: dict[str, list[str]] = {}
    papers = {name: contract.get(name).Config for name in contract.variants()}
    for name, config in papers.items():
        families.setdefault(config.family, []).append(linked(name, config.paper))
    for name, (variant, preset) in contract.presets().items():
        families[papers[variant].family].append(linked(name, preset.paper))
    rows = [(family, ", ".join(names)) for family, names in sorted(families.items())]
    return table(("Family", "Variants, each with a link to its paper"), *rows)


def linked(name: str, paper: str) -> str:
    """A name, with a link to the first paper that its contract names on arXiv."""
    found = re.search(r"arXiv:([\d.]+\d)", paper)
    return f"[`{name}`](https://arxiv.org/abs/{found[1]})" if found else f"`{name}`"


def letters() -> str:
    """What each axis letter means."""
    return table(("Letter", "Axis"), *((f"`{letter}`", meaning) for letter, meaning in LETTERS.items()))


def refusals() -> str:
    """Each error of a file's content and when it is raised: the first line of its docstring."""
    kinds = {name: getattr(weights, name) for name in sorted(weights.__all__)}
    found = {
        name: (inspect.getdoc(kind) or "").partition("\n")[0]
        for name, kind in kinds.items()
        if inspect.isclass(kind) and issubclass(kind, weights.WeightFileError) and kind is not weights.WeightFileError
    }
    return table(("Error", "When"), *((f"`{name}`", line) for name, line in found.items()))


def origins() -> str:
    """Every layout; where a library was measured against it, which one and the worst error in bounds."""
    held = json.loads(RESULTS.read_text("utf-8"))
    rows = []
    for name in layouts.names():
        layout, found = layouts.get(name), held.get(name)
        variants = ", ".join(f"`{v}`" for v in dict.fromkeys(map(layout.variant_of, layout.tables)))
        worst = f"{max(found['library'], found['ours']):.3g}" if found else "–"
        measured = ", ".join(found["libraries"]) if found else "–"
        rows.append((f"`{name}`", layout.origin, variants, measured, worst))
    return table(("`layout=`", "Origin", "Variants", "Held against", "Worst error/bound"), *rows)


def field_names() -> str:
    """What papers, libraries and models call things, and what that is here."""
    rows = ((", ".join(known.names), known.spelled().replace(": docs/names.md", ", below")) for known in NAMES)
    return table(("Name", "Here"), *sorted(rows, key=lambda row: row[0].lower()))


# By file and name.
TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "catalogue"): catalogue,
    ("docs/conventions.md", "letters"): letters,
    ("docs/names.md", "names"): field_names,
    ("docs/weights.md", "refusals"): refusals,
    ("docs/weights.md", "layouts"): origins,
    ("docs/which_one.md", "costs"): lambda: table(*choice.costs()),
    ("docs/which_one.md", "measured"): lambda: table(*choice.measured()),
}


def with_table(text: str, name: str, rows: str) -> str:
    """A file's text with a table in its place.

    Raises:
        LookupError: the text has no place for it.
    """
    begin, end = f"<!-- {name}: written by `{COMMAND}` -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise LookupError(f"expected the lines {begin.strip()} and {end.strip()}, got no such lines; put them back")
    return f"{before}{begin}\n{rows}\n\n{end}{after}"


LESSONS = sorted((Path(__file__).parents[2] / "docs" / "course").glob("[0-9]*.md"))
TABLES |= {(f"docs/course/{path.name}", "graded exercises"): graded(int(path.name[:2])) for path in LESSONS}


def with_tables(root: Path) -> dict[Path, str]:
    """The files below a folder that have tables, as they should be; a file that is not there is left out."""
    texts: dict[Path, str] = {}
    for (file, name), rows in TABLES.items():
        path = root / file
        if path.exists():
            texts[path] = with_table(texts.get(path) or path.read_text("utf-8"), name, rows())
    return texts
