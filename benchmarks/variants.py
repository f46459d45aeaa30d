"""Every variant against its formula: does its time grow with the length as its formula says, and does its memory?

A race is one variant in one tree and pass: the same layer at both lengths and `mha` with all keys (or its like) take
turns. So do mechanisms, which are fields, arguments or functions: each beside the layer without it. Times are those of
one thread, so that trees can be compared, and races run side by side, one on each core.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from math import gcd, isqrt
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from attn_np import contract
from benchmarks import inputs, statistics
from benchmarks.entrants import WHO
from benchmarks.inputs import SEED
from benchmarks.plan import ASKED, BOTH, Entrant, Race, Target, Work

SHORT, LONG = 1024, 4096
# How the time grows from the one to the other: with the length, with that and the side of a square, or with its square.
LINEAR, SQUARE, QUADRATIC = (float(LONG // SHORT) ** power for power in (1, 1.5, 2))
# What caches and fixed costs may add to that.
SLACK = 1.25
# How long the rounds of a race may take, in seconds: 258 races in ten minutes of two cores.
SECONDS = 1.5
# How many bytes beyond inputs, output and gradients a call of LONG positions may need.
ROOM = 200e6
WIDTH, HEADS = 128, 4
TREES = ("attn_np", "attn_torch", "attn_jax")
PASSES = ("forward", BOTH)


@dataclass(frozen=True)
class Formula:
    """What is asked of a variant.

    Attributes:
        growth: of its time from SHORT to LONG positions, by its formula.
        at_most: the time at LONG positions as a multiple of that of `beside`; None: not judged.
        beside: the variant with all keys that takes turns with it.
        fields: of its Config besides the width and the number of heads; of a function its options.
        for_length: a function from the number of positions to more fields.
        of: the variant whose layer it is, if it is not named like it.
        function: the function that it is, if it is no layer.
        given: a function from the number of positions to arguments that are given beside those that must be.
        projections: "arrays" or "modules".
        trees, passes: what it is raced in.
    """

    growth: float
    at_most: float | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    beside: str = "mha"
    for_length: Callable[[int], dict[str, Any]] = lambda t: {}
    of: str = ""
    function: str = ""
    given: Callable[[int], dict[str, Any]] = lambda t: {}
    projections: str = "arrays"
    trees: tuple[str, ...] = TREES
    passes: tuple[str, ...] = PASSES


def grid(t: int) -> dict[str, Any]:
    """Height and width of the grid of t positions that is nearest to a square."""
    height = next(n for n in range(isqrt(t), 0, -1) if t % n == 0)
    return {"height": height, "width": t // height}


def windows(t: int) -> dict[str, Any]:
    """A grid in windows of 8 x 8 positions, or as many as divide its sides, which are shifted by half of them."""
    sides = grid(t)
    size = gcd(8, *sides.values())
    return sides | {"window_size": size, "shift": size // 2}


# Documents of equal length, however long the sequence.
DOCUMENT = 256


def documents(t: int) -> Any:
    """The number of each position's document."""
    return np.arange(t)[None] // DOCUMENT


def drawn(stream: int, *shape: int) -> Any:
    return inputs.drawn(shape, "float32", stream)


def of_states(t: int) -> dict[str, Any]:
    """Arguments of `recur` by a delta rule: keys of norm 1 and shares from 0 to 1."""
    q, k, v = (drawn(stream, 1, t, HEADS, WIDTH // HEADS) for stream in range(3))
    return {"q": q, "k": unit(k), "v": v, "beta": 1 / (1 + np.exp(-drawn(3, 1, t, HEADS)))}


def unit(k: Any) -> Any:
    return k / np.sqrt(np.sum(k * k, -1, keepdims=True))


# As in decoding: one query of each of so many sequences; pages of so many positions.
SEQUENCES, PAGE = 8, 64


def of_one_query(t: int) -> dict[str, Any]:
    """Arguments of `attend`: a query for each sequence of t keys."""
    lengths = {"q": 1, "k": t, "v": t}
    return {
        name: drawn(stream, SEQUENCES, n, HEADS, WIDTH // HEADS) for stream, (name, n) in enumerate(lengths.items())
    }


def in_pages(t: int) -> dict[str, Any]:
    """The same keys and values in pages, which lie in any order."""
    arrays, count = of_one_query(t), -(-t // PAGE)
    table = np.random.default_rng((0, 3)).permutation(SEQUENCES * count).reshape(SEQUENCES, count)
    found = {"q": arrays["q"], "table": table, "lengths": np.full(SEQUENCES, t)}
    for name in ("k", "v"):
        filled = np.zeros((SEQUENCES, count * PAGE, HEADS, WIDTH // HEADS), np.float32)
        filled[:, :t] = arrays[name]
        pool = np.empty((SEQUENCES * count, PAGE, HEADS, WIDTH // HEADS), np.float32)
        pool[table.ravel()] = filled.reshape(pool.shape)
        found[f"{name}_pages"] = pool
    return found


LATENT = {"kv_rank": 64, "nope_dim": 32, "rope_dim": 16, "value_head_dim": 32}
# A query compares a fifth as many numbers as in the attention of all heads, and chooses one key in 64 of LONG.
INDEXER = {"causal": False, "absorbed": True, "index_keys": 64, "index_heads": 4, "index_dim": 16}
KNOWN = {
    "additive": Formula(QUADRATIC, fields={"query_dim": WIDTH, "hidden_dim": 32}),
    "alibi": Formula(QUADRATIC, 1.25),
    "axial": Formula(SQUARE, 1.0, for_length=grid),
    "bigbird": Formula(LINEAR, 1.0, {"block_size": 64}),
    "block_sparse": Formula(LINEAR, 1.0, {"block_size": 64, "chosen_blocks": 3, "query_block": 64}),
    "blockwise": Formula(QUADRATIC, fields={"block_size": 128}),
    "chunked": Formula(LINEAR, 1.0, {"chunk_size": 128}),
    "cope": Formula(QUADRATIC),
    "decoder": Formula(QUADRATIC),
    "delta": Formula(LINEAR),
    "differential": Formula(QUADRATIC, 2.2),
    "dilated": Formula(LINEAR, 1.0, {"dilation": 4, "steps": (32, 32)}),
    "disentangled": Formula(QUADRATIC, 4.0),
    "dot_product": Formula(QUADRATIC),
    "dsa": Formula(QUADRATIC, fields=LATENT | INDEXER, beside="mla"),
    "entmax_attention": Formula(QUADRATIC, 6.0),
    "fused_qkv": Formula(QUADRATIC),
    "gated": Formula(QUADRATIC),
    "gated_delta": Formula(LINEAR),
    "gla": Formula(LINEAR),
    "gqa": Formula(QUADRATIC, fields={"num_kv_heads": 2}),
    "grid_bias": Formula(QUADRATIC, 1.4, {"prefix_tokens": 0}, for_length=grid),
    "gru": Formula(LINEAR, fields={"input_dim": WIDTH, "hidden_dim": WIDTH}),
    "hard": Formula(QUADRATIC),
    "joint": Formula(QUADRATIC, 4.2, {"norm": "rms"}),
    "kda": Formula(LINEAR),
    "mamba2": Formula(LINEAR),
    "linear": Formula(LINEAR, fields={"causal": True}),
    "longformer": Formula(LINEAR, 1.0, {"half_window": 64}),
    "luong": Formula(QUADRATIC, fields={"query_dim": WIDTH}),
    "mha": Formula(QUADRATIC),
    "mla": Formula(QUADRATIC, fields=LATENT),
    "prefix": Formula(QUADRATIC),
    "qk_norm": Formula(QUADRATIC),
    "retention": Formula(LINEAR),
    "ring": Formula(QUADRATIC, fields={"shards": 4}),
    "rotary": Formula(QUADRATIC),
    "segments": Formula(LINEAR, 1.0),
    "self_attention": Formula(QUADRATIC),
    "seq2seq": Formula(QUADRATIC, fields={"input_dim": WIDTH, "hidden_dim": WIDTH}),
    "shaw": Formula(QUADRATIC, 4.0),
    "sigmoid_attention": Formula(QUADRATIC, 1.2),
    "sinks": Formula(QUADRATIC),
    "swin": Formula(LINEAR, 1.0, for_length=windows),
    "t5_bias": Formula(QUADRATIC, 1.4),
    "talking_heads": Formula(QUADRATIC, 3.0),
    "transformer_xl": Formula(QUADRATIC, 4.0),
}

# More heads, where reading few keys pays: all keys are read expanded, chosen ones absorbed.
WIDE = LATENT | {"num_heads": 16}


def decoder(at_most: float, growth: float = QUADRATIC, **more: Any) -> Formula:
    """A decoder with a field, beside one without."""
    return Formula(growth, at_most, of="decoder", beside="decoder", **more)


def packed(of: str) -> Formula:
    """A layer with a state and documents, beside one without."""
    return Formula(LINEAR, 1.2, of=of, beside=of, given=lambda t: {"documents": documents(t)})


# Fields, arguments and functions, each beside the same without it.
MECHANISMS = {
    "attend": Formula(LINEAR, function="attend", beside="attend", given=of_one_query, passes=("forward",)),
    "attend+pages": Formula(LINEAR, 3.0, function="attend_paged", beside="attend", given=in_pages, passes=("forward",)),
    "decoder+context_norm": decoder(1.1, fields={"context_norm": "rms"}),
    "decoder+forget_gate": decoder(1.25, fields={"forget_gate": True}),
    "decoder+gate": decoder(1.1, fields={"gate": True}),
    "decoder+modules": decoder(1.05, projections="modules", trees=("attn_torch", "attn_jax")),
    "decoder+norm": decoder(1.1, fields={"norm": "rms"}),
    "decoder+shared_kv": decoder(1.0, fields={"shared_kv": True}),
    "dsa+heads": Formula(QUADRATIC, 1.0, WIDE | INDEXER, of="mla", beside="mla+heads"),
    "mla+heads": Formula(QUADRATIC, fields=WIDE | {"causal": False}, of="mla", beside="mla+heads"),
    "recur": Formula(LINEAR, fields={"rule": "delta"}, function="recur", given=of_states, beside="recur"),
    "recur+erase_key": Formula(
        LINEAR,
        1.3,
        {"rule": "delta"},
        function="recur",
        given=lambda t: of_states(t) | {"erase_key": unit(drawn(4, 1, t, HEADS, WIDTH // HEADS))},
        beside="recur",
    ),
} | {f"{of}+documents": packed(of) for of in ("delta", "gla", "linear", "mamba2", "retention")}
MECHANISMS["linear+documents"].fields["causal"] = True


def formula_of(variant: str) -> Formula:
    """What is asked of a variant; of one without an entry its first example, and no more growth than a square's.

    Raises:
        ValueError: it has no entry, and its fields fix the number of positions.
    """
    if known := KNOWN.get(variant) or MECHANISMS.get(variant):
        return known
    example = next(iter(contract.examples(variant).values()))
    if "t" in example.sizes():
        raise ValueError(
            f"{variant}: expected an entry in KNOWN of benchmarks/variants.py, since its fields fix the number of "
            "positions; add one with for_length="
        )
    return Formula(QUADRATIC, fields={f.name: getattr(example, f.name) for f in fields(example)})


# The variants, the presets that stand in KNOWN, and the mechanisms.
FORMULAS = {name: formula_of(name) for name in sorted({*contract.variants(), *KNOWN, *MECHANISMS})}
# Arguments that are given beside those that must be arrays of numbers: documents, a prefix of a quarter, two global
# positions.
SPECIAL = {
    "segments": documents,
    "prefix": lambda t: np.array([t // 4]),
    "global_mask": lambda t: np.arange(t)[None] % max(1, t // 2) == 0,
}


def config(work: Work) -> tuple[Any, dict[str, Any]]:
    """The variant and its fields."""
    formula = FORMULAS[work.variant]
    variant = formula.of or work.variant
    known = contract.get(variant).Config.fields()
    shared = {"d_model": work.heads * work.width, "num_heads": work.heads}
    own = {name: value for name, value in shared.items() if name in known}
    return variant, own | formula.fields | formula.for_length(work.length)


def made(package: Any, work: Work) -> Any:
    """The layer in a tree, or the function with its options."""
    formula = FORMULAS[work.variant]
    if formula.function:
        return partial(getattr(package, formula.function), **formula.fields)
    variant, own = config(work)
    return package.build(variant, seed=SEED, dtype=work.dtype, projections=formula.projections, **own)


def cotangent(work: Work) -> Any:
    """The gradient of the output of a layer or of a function."""
    return inputs.cotangent(work) if FORMULAS[work.variant].function else inputs.tokens(work)[1]


def arguments(work: Work) -> dict[str, Any]:
    """What it is called with: numbers where nothing stands in for them, and the special arguments."""
    formula = FORMULAS[work.variant]
    if formula.function:
        return formula.given(work.length)
    variant, own = config(work)
    made, found = contract.config(variant, **own), formula.given(work.length)
    sizes = made.sizes() | {"b": work.batch, "t": work.length, "s": work.length}
    known = made.arguments()
    shapes = {
        name: tuple(sizes.get(letter, work.heads * work.width) for letter in arg.axes.split())
        for name, arg in known.items()
        if arg.kind == "array" and not arg.optional
    }
    for number, (name, arg) in enumerate(known.items()):
        if name in SPECIAL:
            found[name] = SPECIAL[name](work.length)
        elif name in shapes and shapes[name] != shapes.get(arg.falls_back_to or ""):
            rng = np.random.default_rng((0, number))
            found[name] = rng.standard_normal(shapes[name], np.float32).astype(work.dtype)
    return found


def first(result: Any) -> Any:
    """The output of a layer or function that may return a state as well."""
    return result[0] if isinstance(result, tuple) else result


# The races ------------------------------------------------------------------------------------------------------------


def races() -> Iterator[Race]:
    """For every tree, pass and variant one race, in which one call of LONG positions is weighed.

    Races of one tree and pass stand together: `mha` is made and compiled once for all of them.
    """
    for tree in TREES:
        for passes in PASSES:
            for variant, formula in FORMULAS.items():
                if tree not in formula.trees or passes not in formula.passes:
                    continue
                short, long, plain = (
                    Work(what="variant", variant=name, length=t, passes=passes, heads=HEADS, kv_heads=HEADS, width=32)
                    for name, t in ((variant, SHORT), (variant, LONG), (formula.beside, LONG))
                )
                name = f"{variant}/{tree}/{passes}"
                ours, theirs = f"{variant} {LONG}", f"{variant} {SHORT}"
                entrants = [Entrant(tree, long, ours), Entrant(tree, short, theirs)]
                targets = [Target(ours, theirs, SLACK * formula.growth), Target(ours, None, ROOM)]
                if variant != formula.beside:
                    entrants.append(Entrant(tree, plain, f"{formula.beside} {LONG}"))
                if formula.at_most is not None:
                    targets.append(Target(ours, f"{formula.beside} {LONG}", formula.at_most))
                more: dict[str, Any] = {"level": ASKED, "process": f"variants of {tree}", "threads": 1}
                more |= {"seconds": SECONDS, "weighed": ours}
                yield Race(f"variants/{name}", tuple(entrants), tuple(targets), **more)


# The table and the picture --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What a run found of one variant in one tree and pass; None where it was not measured.

    Attributes:
        seconds: at SHORT and at LONG positions.
        growth, beside: ratios of medians, LONG to SHORT positions and to the variant beside it, with their intervals.
        bytes: beyond inputs, output and gradients at LONG positions.
    """

    variant: str
    tree: str
    passes: str
    seconds: tuple[float, float] | None = None
    growth: statistics.Ratio | None = None
    beside: statistics.Ratio | None = None
    bytes: int | None = None


def rows(found: dict[str, Any]) -> list[Row]:
    """One for each variant, tree and pass of a run."""
    order = {variant: number for number, variant in enumerate(FORMULAS)}
    races = [(race["name"].split("/"), race) for race in found["races"] if race["name"].startswith("variants/")]
    out = []
    for (_, variant, tree, passes), race in sorted(races, key=lambda race: order[race[0][1]]):
        samples = {e["name"]: e["seconds"] for e in race["entrants"] if e.get("seconds")}
        weighed = [e["bytes"] for e in race["entrants"] if "bytes" in e]
        long, short, plain = (
            samples.get(f"{who} {t}")
            for who, t in ((variant, LONG), (variant, SHORT), (FORMULAS[variant].beside, LONG))
        )
        out.append(
            Row(
                variant,
                tree,
                passes,
                (statistics.median(short), statistics.median(long)) if short and long else None,
                statistics.ratio(long, short) if short and long else None,
                statistics.ratio(long, plain) if long and plain else None,
                weighed[0] if weighed else None,
            )
        )
    return out


def table(found: dict[str, Any]) -> Table | None:
    """Times, growth beside the formula's, time beside `mha` or its like, memory; None where a run has no variants."""
    lines = rows(found)
    if not lines:
        return None
    out = Table(title=f"variants at {SHORT} and {LONG} positions, one thread", title_justify="left")
    for name in ("variant", "tree", "pass"):
        out.add_column(name)
    for name in (f"ms {SHORT}", f"ms {LONG}", "growth", "formula", f"x beside {LONG}", "MB"):
        out.add_column(name, justify="right")
    for row in lines:
        times = [f"{1e3 * s:.3g}" for s in row.seconds] if row.seconds else ["–", "–"]
        ratios = [f"{r.value:.3g} ({r.low:.3g} to {r.high:.3g})" if r else "–" for r in (row.growth, row.beside)]
        size = "–" if row.bytes is None else f"{row.bytes / 1e6:.0f}"
        formula = f"{FORMULAS[row.variant].growth:.0f}"
        out.add_row(row.variant, row.tree, row.passes, *times, ratios[0], formula, ratios[1], size)
    return out


def draw(found: dict[str, Any], path: Path) -> bool:
    """Growth beside the formula's, time beside `mha` or its like, and memory, a line for each variant; False: nothing.

    Forward is a dot, with gradients a circle.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = rows(found)
    names = list(dict.fromkeys(row.variant for row in lines))[::-1]
    if not names:
        return False
    figure = Figure(figsize=(12, 1.6 + 0.22 * len(names)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, sharey=True, squeeze=False)[0]
    marks = {
        f"growth from {SHORT} to {LONG}; bar: the formula's": lambda row: row.growth and row.growth.value,
        "time / time of what is beside it": lambda row: row.beside and row.beside.value,
        f"MB beyond inputs and output at {LONG}": lambda row: row.bytes and row.bytes / 1e6,
    }
    for axes, (title, value) in zip(panels, marks.items(), strict=True):
        for tree in TREES:
            for passes, face in zip(PASSES, (WHO[tree].colour, "none"), strict=True):
                alike = [row for row in lines if (row.tree, row.passes) == (tree, passes) and value(row)]
                points = [value(row) for row in alike], [names.index(row.variant) for row in alike]
                axes.plot(*points, "o", color=WHO[tree].colour, markerfacecolor=face, label=f"{tree}, {passes}")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.minorticks_off()
        axes.set_title(title, loc="left", fontsize=9)
        axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    panels[0].scatter([FORMULAS[n].growth for n in names], range(len(names)), marker="|", s=120, color="#777777")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(-0.6, len(names) - 0.4)
    panels[1].axvline(1.0, color="#777777", linewidth=0.8)
    panels[2].axvline(ROOM / 1e6, color="#777777", linewidth=0.8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
    return True
