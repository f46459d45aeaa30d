"""A run as one HTML page that fetches nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from parity_tests.judge.cases import Case, Drawn
from parity_tests.ports.trace import Trace
from parity_tests.report.html import environment, json_block
from parity_tests.viewer.data import TREES, forward, frameworks_here, has_keys, letters_of, one_row, page_data

ROOMS = ("parity_tests.viewer", "parity_tests.report")


@dataclass(frozen=True)
class Page:
    """A page of the viewer: its HTML, which a notebook shows and a browser opens."""

    html: str

    def save(self, path: str | PathLike[str]) -> None:
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        frame = 'width="100%" height="900" style="border:0"'
        return f'<iframe {frame} title="viewer" srcdoc="{escape(self.html, quote=True)}"></iframe>'


def show(
    layer: Any, *arrays: np.ndarray, tokens: Sequence[str] = (), key_tokens: Sequence[str] = (), row: int = 0,
    frameworks: Sequence[str] | None = None, **named: np.ndarray,
) -> Page:  # fmt: skip
    """A call of a layer of ours as a page: every array, every number as the sum it is, three frameworks side by side.

    Args:
        layer: of `attn_np`; the other trees' layers get its weights.
        arrays, named: the call's arguments.
        tokens, key_tokens: words of the positions of queries and keys; fewer than positions cut the sequence.
        row: of the batch.
        frameworks: whose numbers stand side by side; all that are installed by default.

    Raises:
        TypeError: the layer is not one of `attn_np`, or the call has other arguments than arrays.
        ValueError: arguments that the layer refuses, no such row, or an unknown framework.
    """
    config = getattr(layer, "config", None)
    if config is None or not hasattr(layer, "vjp"):
        raise TypeError(f"show: expected a layer of attn_np, got {type(layer).__name__}; build it with attn_np.build")
    given = signature(layer.__call__).bind(*arrays, **named).arguments
    inputs = {name: x for name, x in given.items() if x is not None}
    unknown = [name for name in inputs if name not in config.arguments()]
    if unknown:
        known = ", ".join(config.arguments())
        raise TypeError(f"show: expected arrays by name, {known}, got {unknown[0]}; leave it out")
    layer.check(**inputs)
    case = Case(config.variant, "given", "given", layer.dtype, given=config)
    words = {"t": tokens, "s": key_tokens}
    return page_of(case, Drawn(inputs, layer.params(), 0), words=words, row=row, frameworks=frameworks)


def page_of(
    case: Case,
    drawn: Drawn,
    *,
    words: Mapping[str, Sequence[str]],
    row: int = 0,
    frameworks: Sequence[str] | None = None,
    trace: Trace | None = None,
    opens: Mapping[str, str | int] | None = None,
) -> Page:
    """The page of a judged call, or of a trace, whose own numbers then stand first.

    Args:
        case, drawn: the call; of a trace, the trace's.
        words: of the positions by the letter of their axis, "t" and "s".
        row: of the batch, where there is no trace.
        frameworks: whose numbers stand side by side; all that are installed by default.
        trace: the run that the page is of.
        opens: what it shows at first: "stage", an array's name, and places by the letter of their axis; by default
            the weights of the last position.
    """
    frameworks = frameworks_here() if frameworks is None else frameworks
    known = ", ".join(TREES)
    if isinstance(frameworks, str) or not {*frameworks} <= {*TREES}:
        raise ValueError(f"show: expected frameworks of {known}, got {frameworks!r}; give a tuple of them")
    lengths = {letter: len(x) or None for letter, x in words.items()}
    if trace is None:
        drawn = one_row(case, drawn, row, lengths)
    runs = [*([] if trace is None else [trace.judged()]), *(forward(name, case, drawn) for name in frameworks)]
    data = page_data(case, drawn, runs, tokens_of(drawn, case, words)) | {"opens": dict(opens or {})}
    page = environment(*ROOMS).get_template("viewer.html.j2")
    return Page(page.render(about=data["about"], dtype=case.dtype, block=json_block(data)))


def tokens_of(drawn: Drawn, case: Case, words: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """A word for each position of queries and keys: those given, else those of the queries, else numbers.

    Raises:
        ValueError: there are more words than positions.
    """
    sizes: dict[str, int] = {}
    for name, x in drawn.inputs.items():
        letters = letters_of(case.config, name, x)
        sizes |= {c: max(n, sizes.get(c, 1)) for c, n in zip(letters, x.shape, strict=True) if c in "ts"}
    sizes.setdefault("s", sizes.get("t", 0))
    tokens: dict[str, list[str]] = {}
    for letter, size in sorted(sizes.items(), reverse=True):
        given = [*words.get(letter, ())]
        if len(given) > size:
            expected = f"at most {size} words for the axis {letter}"
            raise ValueError(f"show: expected {expected}, got {len(given)}; leave some out")
        tokens[letter] = given + [str(i) for i in range(len(given), size)]
    if not words.get("s") and sizes["s"] == sizes.get("t") and not has_keys(case.config, drawn.inputs):
        tokens["s"] = tokens["t"]
    return tokens
