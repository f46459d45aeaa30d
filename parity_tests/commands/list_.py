"""attn-parity list: the catalogue of variants, and the stages of one."""

import re
from difflib import get_close_matches
from typing import Annotated

import typer
from rich.table import Table

from attn_np import contract
from attn_np.contract import _names as names
from attn_np.weights import layouts
from attn_np.weights._known_types import KNOWN_TYPES, NO_LAYOUT_YET
from parity_tests.commands._shared import behind_preset, console, listed

# Up to how many letters a text must begin a model's name: "yi" is no part of others.
SHORT = 3


def main(
    variant: Annotated[
        str | None, typer.Argument(help="List the stages of this variant, or of a preset's, which taps= may name.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    like: Annotated[
        str | None, typer.Option(help='What the field calls it, such as "RWKV": what that is here.')
    ] = None,
) -> None:
    """The catalogue: every variant with its family, class and name in full; or the stages of one variant."""
    if like is not None:
        show_names(like)
        return
    if variant in contract.presets():
        console.print(f"{variant} is {behind_preset(variant)}; the stages of {contract.presets()[variant][0]}:")
        variant = contract.presets()[variant][0]
    if variant is not None:
        listed(variant, contract.variants(), "the name of a variant")
        console.print(stages(variant))
        return
    families = tuple(sorted({contract.get(variant).Config.family for variant in contract.variants()}))
    if family is not None:
        listed(family, families, "the name of a family")
    out = Table(box=None, pad_edge=False)
    for name in ("variant", "family", "class", "what it is"):
        out.add_column(name, no_wrap=name != "what it is")
    for variant in contract.variants():
        config = contract.get(variant).Config
        if family in (None, config.family):
            out.add_row(f"[bold]{variant}[/]", config.family, config.class_name, config.title)
            for name, (behind, preset) in contract.presets().items():
                if behind == variant:
                    what = f"{preset.title}: {behind_preset(name)}"
                    out.add_row(f"  {name}", config.family, config.class_name, what)
    console.print(out)


def show_names(text: str) -> None:
    """What the names that hold a text are here; an error where none does."""
    models = models_like(text)
    found = names.holding(text) if models else names.like(text)
    if not found and not models:  # "falcon-7b"
        models = models_like(re.split("[^a-z0-9]", text.lower())[0])
    if not found and not models:
        every = {name.lower(): name for known in names.NAMES for name in known.names}
        near = ", ".join(every[name] for name in get_close_matches(text.lower(), every))
        fix = f"try {near}" if near else "docs/names.md has them all"
        raise typer.BadParameter(f"expected a name that the field has, got {text!r}; {fix}", param_hint="--like")
    out = Table(box=None, pad_edge=False)
    out.add_column("name")
    out.add_column("here")
    for known in found:
        out.add_row(", ".join(known.names), known.spelled().replace("`", ""))
    for name, said in models:
        out.add_row(name, said)
    console.print(out)


def models_like(text: str) -> list[tuple[str, str]]:
    """Models by `model_type` whose name holds a text, or begins with a short one; how to load layers, or why not."""
    wanted, found = names.normalized(text), list[tuple[str, str]]()

    def has(model_type: str) -> bool:
        name = names.normalized(model_type)
        return wanted != "" and (name.startswith(wanted) or (len(wanted) > SHORT and wanted in name))

    for layout in map(layouts.get, layouts.names()):
        types = sorted(filter(has, layout.model_types))
        if types:
            variants = ", ".join(sorted({layout.variant_of(table) for table in layout.tables}))
            found.append((f"model_type {', '.join(types)}", f"load_pretrained(folder): layers of {variants}"))
    found += [(f"model_type {name}", f"not read: {known.differs}") for name, known in KNOWN_TYPES.items() if has(name)]
    return found + [(f"model_type {name}", "not read yet") for name in sorted(filter(has, NO_LAYOUT_YET))]


def stages(variant: str) -> Table:
    """The float arrays on the tape of a variant's forward pass in order, with their axes and the examples that have
    them.
    """
    from parity_tests.explain.patterns import axes_of
    from parity_tests.judge.cases import Case, draw
    from parity_tests.judge.consequences import outputs_of

    found: dict[str, tuple[str, list[str]]] = {}
    examples = contract.examples(variant)
    for example, config in examples.items():
        case, tape = Case(variant, example, "full", "float64"), {}
        outputs_of(case, draw(case), tape)
        arrays = {
            n: x for n, x in tape.items() if x is not None and x.dtype.kind == "f" and not n.startswith("zeroed_")
        }
        for name in [n for n in arrays if n not in ("x", *config.arguments())]:
            found.setdefault(name, (axes_of(case, name, arrays[name].ndim), []))[1].append(example)
    out = Table(box=None, pad_edge=False)
    for column in ("stage", "axes", "in the examples"):
        out.add_column(column)
    for name, (axes, having) in found.items():
        out.add_row(name, axes, "all" if len(having) == len(examples) else ", ".join(having))
    return out
