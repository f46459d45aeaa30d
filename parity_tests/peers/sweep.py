"""Every model type that the installed `transformers` registers: whether its layers load and agree.

`python -m parity_tests.peers.sweep` goes over the types of causal language models, of encoders, of encoder-decoders and
of models that see or hear. A type that a layout names is built small, with drawn weights, and held against the layers
that its file makes: in a whole pass, filled up at the left and at the right, in pieces with a cache and at other
positions, where it has these. `--write` puts the counts and the table into docs/model_types.md.
"""

import importlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from attn_np.weights._known_types import KNOWN_TYPES
from attn_np.weights._pretrained import layout_of_model_type
from attn_np.weights._text_models import TEXT_MODELS
from parity_tests import peers
from parity_tests.peers import _measure
from parity_tests.peers._derived import AUTO, INSIDE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model_types.md"
CAUSAL = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
EVERY = "MODEL_MAPPING_NAMES"
SECTION = "## Types that no layout names"  # which `foreign.py` writes
AGREES, REFUSED, NOT_YET = "agrees", "refused", "not yet"


UNCOMPARED = "named, but not compared"


@dataclass(frozen=True)
class Row:
    """What is known of a type.

    Attributes:
        model_type: the type.
        verdict: one of AGREES, REFUSED and NOT_YET.
        words: the layout that reads it, or why it is refused.
        worst: the largest error of the library or of ours, in bounds.
    """

    model_type: str
    verdict: str
    words: str = ""
    worst: float | None = None


def registered(mapping: str) -> tuple[str, ...]:
    """The types of one of the library's mappings."""
    return tuple(getattr(importlib.import_module(AUTO), mapping))


def peers_of_types() -> dict[str, list[tuple[str, peers.Model]]]:
    """By type, the families and models that are compared."""
    found: dict[str, list[tuple[str, peers.Model]]] = {}
    for (family, _), peer in peers.peers().items():
        if isinstance(peer, peers.Model):
            found.setdefault(peer.type_name(), []).append((family, peer))
    return found


def judged(model_type: str, models: list[tuple[str, peers.Model]]) -> Row:
    """A type whose models are built and compared."""
    worst = 0.0
    for _, model in models:
        with tempfile.TemporaryDirectory() as folder:
            rows = list(_measure.measured(model, Path(folder)))
        worst = max([worst, *(x for _, ratios in rows for x in ratios.values())], default=worst)
        if not rows or worst > 1:
            return Row(model_type, NOT_YET, f"differs, {worst:.3g} bounds", worst)
    return Row(model_type, AGREES, models[0][0], worst)


def rows(types: tuple[str, ...]) -> Iterator[Row]:
    """What is known of some types, each that a layout names compared with the library."""
    models, known = peers_of_types(), layout_of_model_type()
    aliases = same_config()
    for model_type in types:
        name = aliases.get(model_type, model_type)
        if name in models:
            yield Row(model_type, **{k: x for k, x in vars(judged(name, models[name])).items() if k != "model_type"})
        elif model_type in KNOWN_TYPES:
            yield Row(model_type, REFUSED, KNOWN_TYPES[model_type].differs)
        elif model_type in known or model_type in TEXT_MODELS:
            yield Row(model_type, NOT_YET, UNCOMPARED)
        else:
            yield Row(model_type, NOT_YET)


def same_config() -> dict[str, str]:
    """Types whose configs are written under another type's name, to that name."""
    mapping = importlib.import_module("transformers").CONFIG_MAPPING
    return {kind: mapping[kind].model_type for kind in mapping if mapping[kind].model_type != kind}


def page(causal: list[Row], others: list[Row]) -> str:
    """The text of the page."""
    agreeing, refused, rest = (of_verdict(causal, verdict) for verdict in (AGREES, REFUSED, NOT_YET))
    beside = of_verdict(others, AGREES)
    reasons = sorted(refused + of_verdict(others, REFUSED), key=lambda row: row.model_type)
    intro = (
        "`python -m parity_tests.peers.sweep --write` writes this page. It builds each type of model small, with "
        "random weights, saves it as its library does, and holds the layers that `load_pretrained` makes of the file "
        f"against the model; here with transformers {version('transformers')}. Both compute in float64, the model also "
        "where it asks for float32: norms, angles, the softmax. Decoders are compared in a whole pass, with padding at "
        "the left and at the right, decoding in chunks with a cache, and, where they rotate, at `positions` that skip "
        "numbers; encoders with padding at both sides. Of a model that mixes attention with other layers those that "
        "attend are compared, and of a model that sees or hears the text model."
    )
    counts = (
        f"Of the {len(causal)} types of causal language models that the library registers, {len(agreeing)} load and "
        f"agree, {len(refused)} are refused with a reason, and {len(rest)} have no layout yet. Of its other types "
        f"{len(beside)} load and agree."
    )
    return "\n".join(
        [
            *("# Model types", "", wrapped(intro), "", wrapped(counts), ""),
            *table_of(agreeing, "Causal language models"),
            *table_of(beside, "Encoders, encoder-decoders, and models that see or hear"),
            *("## Refused, and why", "", "| `model_type` | No layer here does what it does |", "| --- | --- |"),
            *(f"| `{row.model_type}` | {row.words} |" for row in reasons),
            *("", "## Causal language models without a layout", ""),
            wrapped(", ".join(f"`{row.model_type}`" for row in rest if row.words != UNCOMPARED)),
            "",
            *(
                f"`{row.model_type}` is read, but not compared: it needs a further library. Its text model is above.\n"
                for row in rest
                if row.words == UNCOMPARED
            ),
        ]
    )


def of_verdict(rows: list[Row], verdict: str) -> list[Row]:
    return [row for row in rows if row.verdict == verdict]


def table_of(found: list[Row], title: str) -> list[str]:
    """A section with the types that agree, by layout."""
    by_layout: dict[str, list[Row]] = {}
    for row in found:
        by_layout.setdefault(row.words, []).append(row)
    lines = []
    for layout, members in sorted(by_layout.items()):
        names, worst = ", ".join(f"`{row.model_type}`" for row in members), max(row.worst or 0 for row in members)
        lines.append(f"| `{layout}` | {names} | {worst:.3g} |")
    head = ["| Layout | `model_type` | Worst error/bound |", "| --- | --- | --- |"]
    return [f"## {title}", "", *head, *lines, ""]


def wrapped(words: str, width: int = 120) -> str:
    """Words in lines."""
    import textwrap

    return "\n".join(textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False))


def main(arguments: list[str]) -> int:
    """Judge every type, or those that are named, and print a line for each; with `--write` write the page."""
    warnings.filterwarnings("ignore")
    importlib.import_module("transformers").logging.set_verbosity_error()
    # The three trees agree by `make parity`, and `make peers` asks JAX as well: here two are enough.
    _measure.TREES = ("attn_np", "attn_torch")
    named = tuple(x for x in arguments if not x.startswith("-"))
    causal = registered(CAUSAL)
    beside = tuple(kind for kind in dict.fromkeys((*registered(EVERY), *TEXT_MODELS)) if kind not in {*causal, *INSIDE})
    results: tuple[list[Row], list[Row]] = ([], [])
    for types, found in zip((causal, beside), results, strict=True):
        for row in rows(tuple(kind for kind in types if not named or kind in named)):
            found.append(row)
            if types is causal or row.verdict != NOT_YET:
                print(f"{row.model_type:28} {row.verdict:8} {row.words}", flush=True)
    for what, found in zip(("causal", "other"), results, strict=True):
        counts = {verdict: sum(row.verdict == verdict for row in found) for verdict in (AGREES, REFUSED, NOT_YET)}
        print(f"{what}: {len(found)} types, " + ", ".join(f"{verdict} {count}" for verdict, count in counts.items()))
    if "--write" in arguments:
        rest = PAGE.read_text("utf-8").partition(SECTION)
        PAGE.write_text("\n".join([page(*results), rest[1] + rest[2]]), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
