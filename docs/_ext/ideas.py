"""The picture of each variant: one run of its NumPy layer, and of that run the array that shows the variant's own idea.

Without an entry in `IDEAS` the picture is the attention weights, or the states over time of a layer that has none.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pictures

import attn_np
from attn_np import contract
from attn_np.contract import Config
from attn_np.contract._base import shape_of
from attn_np.contract._letters import LETTERS

# Widths that come with the call, where the config does not fix them.
FREE = dict.fromkeys(LETTERS, 3) | {"k": 4}
# Of a plain layer: what must be given, and everything else at its default.
PLAIN = {"d_model": 8, "num_heads": 2}
# An untrained layer looks nearly evenly at everything; wider inputs and parameters make its weights differ visibly.
FACTORS, SHARPNESS = (1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0), 0.6
WEIGHTS, STATES = ("probs", "weights"), ("hidden", "h", "y")
HATCHED = " Hatched keys are hidden from the query."


@dataclass(frozen=True)
class Idea:
    """What a picture shows.

    Attributes:
        says: the sentence of the caption.
        array: the name on the tape; the attention weights by default.
        fields: fields of the config, beside those of the plain one.
        length: how many positions.
        take: from the array to what is drawn: `n t s` for maps, `n t` for rows.
        titles: of the maps; "head 0" and so on by default.
        axes: what the columns and the rows are.
        same: every position has the same input.
        given: arguments of the call, beside drawn ones.
    """

    says: str = ""
    array: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    length: int = 6
    take: Callable[[np.ndarray], np.ndarray] = lambda x: x[0]
    titles: tuple[str, ...] = ()
    axes: tuple[str, str] = ("key s", "query t")
    same: bool = False
    given: dict[str, np.ndarray] = field(default_factory=dict)


BY_DISTANCE = "What the distance between query and key adds to the score"
IDEAS = {
    "alibi": Idea("What fades: the bias of each head, 0 at the query and lower with each step back.", "alibi",
                  {"num_heads": 8}),
    "axial": Idea("Along the first row of the grid; the columns come after."),
    "bigbird": Idea("Blocks of one position: its own, its neighbours, the global first and last one, and one drawn.",
                    fields={"num_heads": 1, "block_size": 1, "random_blocks": 1}, length=8),
    "block_sparse": Idea("Each query reads the block of keys that it stands in and the one that it chooses.",
                         fields={"num_heads": 1, "block_size": 2, "chosen_blocks": 2}, length=8),
    "blockwise": Idea("The sum of the exponentials after each block of two keys: it grows until all have been read.",
                      "running_total", {"block_size": 2}, axes=("query t", "block")),
    "chunked": Idea("Each query reads its own chunk of three positions.", fields={"num_heads": 1, "chunk_size": 3}),
    "cope": Idea("What is counted: the position of each key, the sum of the gates from it to the query; 0 after it.",
                 "positions"),
    "delta": Idea("What is overwritten: each position corrects what the state returns for its key."),
    "differential": Idea("Of head 0 the two maps, and what is left of the first when the second is subtracted.",
                         titles=("first map", "second map", "difference")),
    "dilated": Idea("Each query reads every second position.", fields={"num_heads": 1, "dilation": 2}, length=8),
    "disentangled": Idea(f"{BY_DISTANCE}, by the content of the query.", "c2p_scores"),
    "gated": Idea("The gate of head 0, which opens (1) or closes (0) each unit of the output.", "gate",
                  take=lambda x: x[0, :, 0].T, axes=("query t", "unit")),
    "gated_delta": Idea("What fades and is overwritten: the state shrinks, then each position corrects it at its key."),
    "gla": Idea("What fades: every row of the state by a factor of its own, before a position adds its product."),
    "gqa": Idea("What is shared: 1 where two query heads read the same keys `k`, which are cached once.", "k",
                {"num_heads": 4, "num_kv_heads": 2},
                take=lambda x: (x[0, :, :, None] == x[0, :, None]).all((0, 3))[None].astype(float),
                titles=("",), axes=("head", "head")),
    "grid_bias": Idea("What a class token (first row and column) and a grid of two rows and four columns add to the "
                      "scores: one learned number for an offset, wherever its patches are.", "position_bias",
                      {"height": 2, "width": 4}, take=lambda x: x),
    "gru": Idea("The update gate `layers.0.z`: at 1 a unit keeps its state, at 0 it takes the new one.",
                "layers.0.z", take=lambda x: x[0].T, axes=("time t", "unit")),
    "joint": Idea("Six positions of the first stream, then six of the added one: each reads both streams.",
                  fields={"num_heads": 1}),
    "kda": Idea("What fades row by row and is overwritten: each position then corrects the state at its key."),
    "mamba2": Idea("What fades and is written: each position's step decides how much of both.",
                   fields={"state_dim": 3, "head_dim": 4}),
    "linear": Idea("What adds up: each position adds its product of key and value; the last column sums the keys."),
    "longformer": Idea("Position 0 is global: every query reads it, and it reads every key. The others read a window.",
                       fields={"num_heads": 1, "half_window": 1}, length=8),
    "mla": Idea("The latent: of each position the cache keeps these numbers and one rotated key, for all heads.",
                "latent", {"kv_rank": 5, "nope_dim": 3, "rope_dim": 2, "value_head_dim": 3}, take=lambda x: x[0].T,
                axes=("position", "unit")),
    "prefix": Idea("The first three positions read each other; what follows reads them and what is before it.",
                   fields={"num_heads": 1}, given={"prefix": np.array([3])}),
    "retention": Idea("What fades: the weight of a step with its distance, slower in each further head.", "decay",
                      {"exponent": 1.0}),
    "ring": Idea("The sum of the exponentials after each round, in which the shards pass their keys on.",
                 "running_total", {"shards": 3}, take=lambda x: x[0].reshape(len(x[0]), -1), axes=("query t", "round")),
    "rotary": Idea("What turns: head 0's query for the same input at each position. Every pair of its dimensions turns "
                   "at a speed of its own.", "q_rot", {"d_model": 12, "rope_base": 50.0}, same=True,
                   take=lambda x: x[0, :, 0]),
    "segments": Idea("Each query reads its own segment.", fields={"num_heads": 1}, length=8),
    "shaw": Idea(f"{BY_DISTANCE}, by the content of the query.", "position_scores"),
    "sinks": Idea("The softmax over the keys and the sink, the last column, which takes a share and has no value.",
                  "probs_and_sink"),
    "swin": Idea("In the first window of the grid, whose four positions read only each other."),
    "t5_bias": Idea(f"{BY_DISTANCE}: one learned number for a bucket, and far distances share one.", "position_bias",
                    {"num_buckets": 6, "max_distance": 8}, length=8),
    "transformer_xl": Idea(f"{BY_DISTANCE}, by the content of the query.", "position_scores"),
}  # fmt: skip


# One run --------------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """The arrays of one call of the NumPy layer, and how it was called."""

    config: Config
    layer: Any
    given: dict[str, np.ndarray]
    tape: dict[str, Any]

    def maps(self) -> list[np.ndarray]:
        """The attention weights on the tape, one array for each part that attends."""
        named = (np.asarray(x) for name, x in self.tape.items() if last(name) in WEIGHTS)
        return [x for x in named if x.ndim in (3, 4)]

    def weights(self) -> np.ndarray | None:
        """The attention weights. Where parts of a layer serve different queries, as in `longformer`, a row is that of
        the part that serves it: the others give it zeros. Where they attend along different axes, as in `axial`, the
        weights are those along the first.
        """
        maps = self.maps()
        alike = [x for x in maps if x.shape == maps[0].shape]
        return np.sum(alike, axis=0) if alike else None

    def visible(self, shape: tuple[int, ...]) -> np.ndarray:
        """Which keys each query sees in any part, in the shape of what is drawn."""
        masks = [np.asarray(x) for name, x in self.tape.items() if last(name) == "allowed"]
        parts = [np.broadcast_to(x, shape) for x in masks if fits(x.shape, shape)]
        return np.any(parts, axis=0) if parts else np.ones(shape, bool)


def fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(n in (1, m) for n, m in pairs)


def last(name: str) -> str:
    return name.rpartition(".")[2]


def plain(variant: str, **given: Any) -> Config:
    """The simplest config: what must be given, and all else at its default; an example where there is no such one."""
    kind, examples = contract.get(variant).Config, contract.examples(variant)
    first = next(iter(examples.values()))
    required = {f.name: PLAIN.get(f.name, getattr(first, f.name)) for f in fields(kind) if f.default is MISSING}
    try:
        return contract.config(variant, **required | given)
    except ValueError:
        return min(examples.values(), key=lambda config: len(call(config)))


def call(config: Config) -> str:
    """The arguments that give a config: only those that differ from the default."""
    values = {f.name: (getattr(config, f.name), f.default) for f in fields(config)}
    return ", ".join(f"{name}={value!r}" for name, (value, default) in values.items() if value != default)


def sharpness(weights: np.ndarray | None) -> float:
    """The largest weight of a query, averaged over the later queries: causality leaves the first ones few keys."""
    return SHARPNESS if weights is None else float(weights.max(-1)[..., weights.shape[-2] // 2 :].mean())


def arrays(config: Config, sizes: dict[str, int], mask: bool = False, factor: float = 1.0) -> dict[str, np.ndarray]:
    """One argument for each that the call needs, by its axes; with `mask`, one that hides the last key."""
    rng, given = np.random.default_rng(0), {}
    declared = config.arguments()
    alone = all(
        arg.falls_back_to is None
        or sizes.get(arg.axes.split()[-1]) == sizes.get(declared[arg.falls_back_to].axes.split()[-1])
        for arg in declared.values()
    )
    for name, arg in declared.items():
        shape = shape_of(arg.axes, sizes)
        if arg.kind == "mask" and mask and len(shape) > 1:
            given[name] = np.arange(shape[-1]) < shape[-1] - 1
        elif arg.kind == "marks":
            given[name] = np.arange(shape[-1]) < 1
        elif arg.optional or (arg.falls_back_to is not None and alone):
            continue
        elif arg.kind == "integers":
            given[name] = np.sort(rng.integers(0, sizes.get("u", 3), shape))
        elif arg.kind == "array":
            given[name] = factor * rng.normal(size=shape)
    return given


@cache
def run(variant: str) -> Run:
    """The variant's NumPy layer on a small example: causal where it can be, and step by step where it can be."""
    idea = IDEAS.get(variant, Idea())
    config = plain(variant, **idea.fields)
    wanted: dict[str, Any] = {} if variant == "dilated" else {"causal": True}
    if "chunk_size" in config.fields() and not idea.array:
        wanted["form"] = "recurrent"
    config = replace(config, **{name: value for name, value in wanted.items() if name in config.fields()})
    causal = getattr(config, "causal", False)
    sizes = FREE | {"b": 1, "t": idea.length, "s": idea.length} | config.sizes()
    build: Any = attn_np.build
    layer = build(variant, seed=0, dtype="float64", **config.as_dict())
    runs, drawn = [], layer.params()
    for factor in FACTORS:
        layer.set_params({name: factor * x for name, x in drawn.items()})
        given = arrays(config, sizes, mask=not causal and not idea.says, factor=factor) | idea.given
        if idea.same:
            given = {name: np.broadcast_to(x[:, :1], x.shape).copy() for name, x in given.items()}
        runs.append((layer.params(), given, attn_np.trace(layer, **given)[1]))
    params, given, tape = min(runs, key=lambda r: abs(sharpness(Run(config, layer, *r[1:]).weights()) - SHARPNESS))
    layer.set_params(params)
    return Run(config, layer, given, tape)


# Pictures -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """A picture: its SVG, its caption, and the numbers that it shows."""

    svg: str
    caption: str
    shown: np.ndarray


def picture(variant: str) -> Picture | None:
    """The variant at work; None where there is nothing to draw."""
    found, idea = run(variant), IDEAS.get(variant, Idea())
    about = f"`{found.config.class_name}({call(found.config)})`, with random weights and inputs."
    if variant == "rotary":
        return turning(found, idea, about)
    if idea.array:
        shown = idea.take(np.asarray(found.tape[idea.array]))
        named = idea.says if f"`{idea.array}`" in idea.says else f"{idea.says} The array `{idea.array}`."
        return (
            maps(found, idea, shown, f"{named} {about}") if shown.ndim == 3 else rows(idea, shown, f"{named} {about}")
        )
    weights = found.weights()
    if weights is not None:
        if variant == "differential":
            weights = np.concatenate([found.tape["maps"][:, 0], weights[:, :1]], axis=1)
        says = "The weights of each query (row) over the keys (columns)."
        if getattr(found.config, "normalize_over", "keys") == "queries":
            says = "The weights of each key (column) over the queries (rows)."
        shown = idea.take(weights) if weights.ndim == 4 else weights[:1]
        if weights.ndim == 3 and not idea.titles:
            idea = replace(idea, titles=("",))
        return maps(found, idea, shown, " ".join(filter(None, (idea.says, says, about))))
    return over_time(found, idea, about)


def maps(found: Run, idea: Idea, shown: np.ndarray, caption: str) -> Picture:
    seen = np.ones(shown.shape, bool)
    if idea.axes[0] == "key s":
        keys = shown.shape[-1] - (idea.array == "probs_and_sink")
        seen[..., :keys] = found.visible((1, *shown.shape[:-1], keys))[0]
    caption += "" if seen.all() else HATCHED
    label = "Heat map of the attention weights" if not idea.array else f"Heat map of the array {idea.array}"
    svg = pictures.heatmaps(shown, seen, idea.titles, axes=idea.axes, label=label)
    return Picture(svg, caption, np.where(seen, shown, 0.0)[:4])


def rows(idea: Idea, shown: np.ndarray, caption: str) -> Picture:
    signs = " Orange is negative, blue positive." if (shown < 0).any() else ""
    return Picture(pictures.states(shown, idea.axes), caption + signs, shown[:12])


def over_time(found: Run, idea: Idea, about: str) -> Picture | None:
    """The states of a layer that has no weights: as matrices, one for each step, or as rows, one for each unit."""
    for name, x in found.tape.items():
        if last(name) == "states" and np.ndim(x) == 5:
            shown = np.asarray(x)[0, :, 0]
            says = f"The state of head 0 after each position (`{name}`): row k, column v. Orange is negative."
            titles = tuple(f"t = {t}" for t in range(len(shown)))
            svg = pictures.heatmaps(
                shown, np.ones(shown.shape, bool), titles, axes=("v", "k"), label="The states", most=6
            )
            return Picture(svg, " ".join(filter(None, (idea.says, says, about))), shown[:6])
    for wanted in STATES:
        for name, x in found.tape.items():
            if last(name) == wanted and np.ndim(x) == 3:
                idea = Idea(axes=("time t", "unit"))
                return rows(idea, np.asarray(x)[0].T, f"The array `{name}` over time: one row per unit. {about}")
    return None


def turning(found: Run, idea: Idea, about: str) -> Picture:
    """The pairs of a rotated vector as points on circles, one for each position."""
    x = idea.take(np.asarray(found.tape[idea.array]))
    half = x.shape[-1] // 2
    points = np.stack([x[:, :half], x[:, half:]], axis=-1)  # t pairs 2
    points = points / np.linalg.norm(points, axis=-1, keepdims=True)
    return Picture(pictures.circles(points), f"{idea.says} The array `{idea.array}`. {about}", points)
