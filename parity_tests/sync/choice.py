"""The tables of the page that helps to choose a variant: costs from the contracts, times from a benchmark, models."""

import json
from functools import cache
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import attn_np
from attn_np import contract
from attn_np.weights import layouts
from benchmarks.variants import FORMULAS, HEADS, LONG, SHORT, WIDTH

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-25-xeon-2-cores-variants" / "results.json"
# Sizes of arrays that no field of these layers gives.
SIZES = {"additive": "v", "luong": "v", "blockwise": "kv", "dot_product": "kv", "ring": "kv"}


def costs() -> list[tuple[str, ...]]:
    """Each variant with what it is, its cost and the layouts of the models that use it."""
    rows = [("Variant", "What it is", "Cost", "Layouts of models that use it")]
    models = used_by()
    for name in contract.variants():
        config = contract.get(name).Config
        using = ", ".join(f"`{model}`" for model in models.get(name, ())) or "–"
        rows.append((f"`{name}`", config.title, config.cost, using))
    return rows


def measured() -> list[tuple[str, ...]]:
    """Each variant with its time and memory in NumPy, and the numbers that its cache holds."""
    rows = [("Variant", f"Time at {LONG}, `mha` is 1", f"{LONG} against {SHORT} positions", "Memory", "Cache")]
    races = {race["name"]: race for race in json.loads(RESULTS.read_text("utf-8"))["races"]}
    for name in contract.variants():
        race = races.get(f"variants/{name}/attn_np/forward")
        if race is None:
            continue
        by = {(one["work"]["variant"], one["work"]["length"]): one for one in race["entrants"]}
        long, short = (median(by[name, length]["seconds"]) for length in (LONG, SHORT))
        plain = median(by["mha", LONG]["seconds"])
        memory = f"{by[name, LONG]['bytes'] / 1e6:.0f} MB"
        rows.append((f"`{name}`", f"{long / plain:.2g}", f"{long / short:.1f} ×", memory, cached(name)))
    return rows


@cache
def used_by() -> dict[str, tuple[str, ...]]:
    """By variant, the layouts of transformers' models that load into it."""
    found: dict[str, list[str]] = {}
    for name in layouts.names():
        layout = layouts.get(name)
        if layout.origin.startswith("transformers"):
            for variant in dict.fromkeys(map(layout.variant_of, layout.tables)):
                found.setdefault(variant, []).append(name)
    return {variant: tuple(names) for variant, names in found.items()}


def cached(variant: str) -> str:
    """How the cache of a variant grows, in numbers for one sequence; "–" where it has none."""
    known, formula = contract.get(variant).Config.fields(), FORMULAS[variant]
    own: dict[str, Any] = {"d_model": WIDTH, "num_heads": HEADS, "causal": True}
    own = {name: value for name, value in own.items() if name in known}
    build: Any = attn_np.build  # its overloads want the name as a literal
    layer = build(variant, **own | formula.fields | formula.for_length(LONG))
    if not hasattr(layer, "init_cache"):
        return "–"
    try:
        sizes = dict.fromkeys(SIZES.get(variant, ""), WIDTH)
        small, large = (numbers(layer, length, sizes) for length in (SHORT, LONG))
    except ValueError as error:  # such a layer says why it does not decode
        if "expected a layer that decodes" in str(error):
            return "–"
        raise
    each = (large - small) / (LONG - SHORT)
    return f"{each:.0f} a position" if each else f"{large:.0f} in all"


def numbers(layer: Any, length: int, sizes: dict[str, int]) -> int:
    """How many numbers a cache of this length has room for."""
    arrays = layer.init_cache(1, length, **sizes).arrays
    return sum(prod(x.shape) for x in arrays.values() if x.dtype.kind == "f")
