"""Pages of the viewer, made while the site is built: two sentences of a real model, one variant of each family."""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from attn_np import contract
from parity_tests.judge.cases import Case, draw
from parity_tests.judge.checkpoint import EXAMPLE, load
from parity_tests.viewer.page import Page, page_of

# Of examples/minilm: "The animal didn't cross the street because it was too tired", and "... too wide".
SENTENCES = {"tired": 1, "wide": 2}
# The head that its page speaks of: there "it" looks at "animal".
HEAD, ASKS, ASKED = 11, "it", "animal"
WORDS = ("the", "animal", "did", "not", "cross", "the", "street", "because", "it", "was", "tired")
# By family the variant and its example that show most, and arguments that are given beside those that must be.
VARIANTS = {
    "alignment": ("additive", "equal"),
    "dense": ("mha", "wide"),
    "heads": ("differential", "causal"),
    "linear": ("gated_delta", "recurrent"),
    "positions": ("alibi", "causal"),
    "recurrent": ("gru", "plain"),
    "scores": ("sinks", "learned"),
    "sparse": ("longformer", "split", "global_mask"),
}


def real_sentence(row: int) -> Page:
    """A layer of all-MiniLM-L6-v2 on one of its sentences."""
    real = load(EXAMPLE, layer=5, inputs=EXAMPLE / "activations.safetensors")
    pieces = json.loads((EXAMPLE / "sentences.json").read_text("utf-8"))[row]["tokens"]
    words = [piece for piece in pieces if piece != "[PAD]"]
    opens = {"stage": "probs", "h": HEAD, "t": words.index(ASKS), "s": words.index(ASKED)}
    return page_of(real.case, real.drawn, words={"t": words}, row=row, opens=opens)


def of_variant(variant: str, example: str, *also: str) -> Page:
    """An example of a variant on drawn inputs, with words for the positions."""
    case = Case(variant, example, "plain", "float32")
    drawn = draw(case, also=also, lengths=dict.fromkeys("ts", len(WORDS)))
    return page_of(case, drawn, words={"t": WORDS})


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, row in SENTENCES.items():
        real_sentence(row).save(folder / f"{name}.html")
    for variant, *which in VARIANTS.values():
        of_variant(variant, *which).save(folder / f"{variant}.html")


def listed() -> str:
    """Links to the pages of the variants, as HTML."""
    links = (
        f'<li><a href="viewer/{variant}.html">{contract.get(variant).Config.title}</a> '
        f"<code>{variant}</code>, {family}</li>"
        for family, (variant, *_) in VARIANTS.items()
    )
    return f'<ul class="viewer-pages">{"".join(links)}</ul>'


class Pages(Directive):
    """The links in the place of the directive."""

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", listed(), format="html")]


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("viewer-pages", Pages)
    app.connect("build-finished", lambda app, error: error is None and write(Path(app.outdir) / "viewer"))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
