"""JAX on a mesh of 2 x 4 simulated devices, batch and heads sharded: what moves between devices, and the numbers.

For each mesh one process with eight devices makes the programs of the tests that were selected, and last those of a
planted bug; the tests read what it found. Layers that take rows of queries block by block are asked in blocks so small
that there are several. What is marked `left_out` is what a mesh of the other kind, or another example, asks too.

    python -m parity_tests.tests.transforms.test_sharding_jax "Auto/blocks/all/own" Auto/mha
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from attn_np import contract, patterns
from parity_tests.judge.xla import compile_quickly
from parity_tests.tests.transforms.calls import CALLS, SAME, bench
from parity_tests.tests.transforms.test_transforms_functions import N, X, asked, joined, near

pytestmark = pytest.mark.timeout(1800)  # the first test of a mesh waits for the programs of all

ROOT = Path(__file__).resolve().parents[3]
MESHES = ("Auto", "Explicit")
# How a variant's file says that `attend`, or rows in blocks, are its core.
ATTENDS = re.compile(r"import .*\battend_checked\b|call\.attend(_by)?\(")
IN_ROWS = re.compile(r"import .*\battend_near_and_far\b|call\.attend_(in_rows|by)\(")
MOVES = re.compile(r" = .*? (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")

# By name: the arrays beside q, k and v with their sharding, and the other arguments.
CASES: dict[str, tuple[dict[str, tuple[str | None, ...]], dict[str, Any]]] = {
    "plain": ({}, {}),
    "all": ({"mask": ("b", "h"), "bias": ("b", "h")}, {"causal": True, "softcap": 2.0}),
    "padding": ({"padding": ("b",)}, {"window": (3, 2)}),
    "shared": ({"bias of heads": (None, "h"), "sinks": ("h",)}, {"window": (4, None), "pattern": patterns.Chunks(6)}),
    "everywhere": ({"bias of heads": (None, None)}, {}),
}
# By name: the constants of the kernels, and numbers of queries and keys.
PATHS: dict[str, tuple[dict[str, int], int, int]] = {
    "one block": ({}, 11, 13),
    "blocks": (
        {
            "ONE_BLOCK_SCORES": 0,
            "ONE_BLOCK_HEAD_SCORES": 0,
            "SHORT_QUERIES": 0,
            "MAX_ROWS": 4,
            "WINDOW_BLOCK_QUERIES": 4,
            "MIN_KEYS": 3,
            "MIN_PRODUCT_MULTIPLICATIONS": 0,
            "PATTERN_BLOCK": 3,
            "QUERY_PATTERN_BLOCK": 3,
        },
        11,
        13,
    ),
    "few queries": ({"SHORT_KEY_BLOCK": 3, "SHORT_UNCUT_BLOCKS": 0}, 1, 13),
    "512": ({}, 512, 512),
    "1024": ({}, 1024, 1024),
}
MANY = ("512", "1024")  # positions: their numbers are those of "blocks"
HEADS = {"own": 8, "shared": 4, "few": 2}  # of keys; "few" are fewer than devices
# What is a sum over devices by its nature: the gradient of an array that batch rows share, and how far rows of a mask
# on several devices reach.
SUMS = {"backward": {"shared", "everywhere"}, "forward": {("few queries", "all"), ("few queries", "padding")}}
# Their thresholds are found in steps until no row moves, about which the devices ask each other.
STEPS = {"entmax_attention"}
# Asked by default with the batch alone sharded: chunks, positions in a loop, blocks of each head's choice.
BATCHES = ("block_sparse", "blockwise", "gated_delta", "gru", "retention")
# With explicit axes JAX gathers for some of their gradients: of a product with a table, of gates.
GATHERED = {"shaw", "seq2seq"}
# Asked by default of variants in blocks and with positions, where axes are explicit and JAX refuses more: the first
# example, and calls of a sigmoid; and of functions these calls.
IN_BLOCKS = ("disentangled", "luong", "talking_heads")
SIGMOIDS = (("causal", "masked"), ("fixed", "plain"), ("whole", "keep"))
POSITIONS = ("decoder", "rotary")
FUNCTIONS = (
    "attend, offset= and lengths= of each sequence",
    "drop_in.dot_product_attention",
    "recur, in chunks",
    "rotary, rope_sections=",
    "rotary, rope_sections=, in steps",
    "softmax and entmax",
)
# What they move besides: whether a row still moves, the largest position.
MOVED: dict[str, set[str]] = {
    "rotate by rotary_angles": {"all-reduce"},
    "rotate by rotary_angles of each scaling, on two axes": {"all-reduce"},
    "rotary, rope_scaling=longrope": {"all-reduce"},
    "attend, softmax_fn=entmax": {"all-reduce"},
    "softmax and entmax": {"all-reduce"},
    # Any sequence may read any page of a pool, here with pages of each device.
    "attend_paged": {"all-gather", "all-reduce", "collective-permute"},
    "write_pages": {"all-gather", "all-reduce", "collective-permute"},
}
# Of `others`: heads that are rows of sequences lie elsewhere than those of projections; with explicit axes JAX gathers
# for gradients of products with tables and of norms over several heads.
OTHERS_MOVE = {
    "block_sparse": {"all-gather", "all-to-all", "collective-permute"},
    "mamba2": {"all-gather"},
    "shaw": {"all-gather"},
}
# Layers with more than one output projection.
PROJECTIONS = {"axial": 2}
# Of layers that take rows in blocks: what calls are given, beside the arrays without which there is none.
CALLS_IN_BLOCKS = {"plain": (), "keep": ("keep",), "masked": ("mask", "bias"), "full": ("mask", "bias", "keep")}


def layers() -> tuple[str, ...]:
    """The variants made of `attend` that have heads, and arguments that stand alone; `block_sparse` is of `others`."""
    every = [v for v in contract.variants() if v != "block_sparse"]
    made = [v for v in every if ATTENDS.search((ROOT / f"attn_np/{v}.py").read_text())]
    return tuple(v for v in made if "num_heads" in next(iter(contract.examples(v).values())).fields())


def others() -> tuple[str, ...]:
    """The other variants whose parameters have an axis of heads."""
    first = {v: next(iter(contract.examples(v).values())) for v in contract.variants() if v not in layers()}
    axes = {
        v: {letter for param in config.own_params().values() for letter in param.axes.split()}
        for v, config in first.items()
    }
    return tuple(v for v in first if {"h", "g"} & axes[v])


def rows(names: dict[str, bool]) -> pytest.MarkDecorator:
    """Tests of the rows with these names; where False stands for one it is left out by default."""
    return pytest.mark.parametrize(
        "row", [pytest.param(name, marks=() if default else pytest.mark.left_out) for name, default in names.items()]
    )


def attention_rows() -> dict[str, bool]:
    """Cases of attention: mesh, path, case, heads. By default one of each path on one, all in blocks on the other."""
    named: dict[str, bool] = {}
    for kind, path, case, heads in product(MESHES, PATHS, CASES, HEADS):
        if path in MANY:
            asked = (case, heads) == ("shared", "own")
        elif case == "everywhere":
            asked = (kind, path, heads) == ("Explicit", "blocks", "own")
        else:
            asked = heads == "own" or case == "plain" or (path, case) == ("blocks", "all")
            asked = asked and (heads != "few" or (path, case) == ("blocks", "plain"))
        if asked:
            all_cases = (kind, path, heads) == ("Auto", "blocks", "own")
            one = kind == "Explicit" and (path in MANY or (case, heads) in (("all", "own"), ("plain", "few")))
            named[f"{kind}/{path}/{case}/{heads}"] = all_cases or one
    return named


def block_rows() -> dict[str, bool]:
    """Variants that take rows of queries block by block, each with an example and what a call is given.

    Where weights are dropped, all of them form weights; where none are, a sigmoid has blocks of keys too.
    """
    made = [v for v in contract.variants() if IN_ROWS.search((ROOT / f"attn_jax/{v}.py").read_text())]
    some = {("sigmoid_attention", *call) for call in SIGMOIDS}
    some |= {(v, next(iter(contract.examples(v))), "keep") for v in IN_BLOCKS}
    every = [(v, example, call) for v in made for example in contract.examples(v) for call in CALLS_IN_BLOCKS]
    return {
        "/".join((kind, "in blocks", *call)): kind == "Explicit" and call in some for kind in MESHES for call in every
    }


def position_rows() -> dict[str, bool]:
    """The examples of `layers` that are told where tokens stand."""
    every = [(v, name, config) for v in layers() for name, config in contract.examples(v).items()]
    told = [(v, name) for v, name, config in every if "positions" in config.arguments()]
    firsts = {v: (v, name) for v, name in reversed(told) if v in POSITIONS}
    some = firsts.values()
    return {"/".join((kind, "with positions", *x)): kind == "Explicit" and x in some for kind in MESHES for x in told}


def batch_rows() -> dict[str, bool]:
    """Every variant, with its batch sharded and nothing else."""
    return {f"{kind}/batch/{v}": kind == "Explicit" and v in BATCHES for kind in MESHES for v in contract.variants()}


def function_rows() -> dict[str, bool]:
    return {f"{kind}/function/{name}": name in FUNCTIONS for kind in MESHES for name in asked("jax")}


# In the process with eight devices ------------------------------------------------------------------------------------


def moves(compiled: Any) -> dict[str, int]:
    return dict(Counter(MOVES.findall(compiled.as_text())))


def merged(einsum: Callable[..., Any]) -> Callable[..., Any]:
    """A planted bug: batch and heads as one axis in the products of scores."""

    def call(spec: str, a: Any, b: Any) -> Any:
        if spec != "bgnk,bgkc->bgnc":
            return einsum(spec, a, b)
        rows = a.shape[0] * a.shape[1]
        x = einsum("xnk,xkc->xnc", a.reshape(rows, *a.shape[2:]), b.reshape(rows, *b.shape[2:]))
        return x.reshape(*a.shape[:3], b.shape[3])

    return call


def main(names: list[str]) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    import attn_jax
    from attn_jax import attend
    from attn_jax.kernels import flash
    from parity_tests.bounds.error_array import ErrArray
    from parity_tests.bounds.precision import precision, precision_of
    from parity_tests.judge.cases import given
    from parity_tests.judge.judging import compare
    from parity_tests.judge.kernels import blocks, by_numpy
    from parity_tests.tests.inputs import TREES, flat, random_inputs
    from parity_tests.tests.kernels.test_rows import in_small_blocks
    from parity_tests.tests.witness import bounded, cotangent, layer_of, weights_of

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)

    def place(mesh: Any, x: Any, *axes: str | None) -> Any:
        return jax.device_put(jnp.asarray(x), NamedSharding(mesh, P(*axes)))

    def attention(mesh: Any, path: str, case: str, heads: str) -> dict[str, Any]:
        (more, options), (constants, t, s) = CASES[case], PATHS[path]
        b, h, g, width = 4, 8, HEADS[heads], 3
        shapes = {"q": (b, t, h, width), "k": (b, s, g, width), "v": (b, s, g, 2), "sinks": (h,)}
        shapes |= {"bias of heads": (1, h, t, s), "padding": (b, 1, 1, s)}
        axes: dict[str, tuple[str | None, ...]] = dict.fromkeys("qkv", ("b", None, "h"))
        arrays = {name: rng.normal(size=shapes[name]) for name in "qkv"}
        for name, sharding in more.items():
            key = {"padding": "mask", "bias of heads": "bias"}.get(name, name)
            arrays[key] = rng.normal(size=shapes.get(name, (b, h, t, s)))
            arrays[key] = arrays[key] > -0.5 if key == "mask" else arrays[key]
            axes[key] = sharding
        dy = rng.normal(size=(b, t, h, 2))

        def forward(floats: Any, mask: Any) -> Any:
            return attend(**floats, mask=mask, **options, implementation="fused")[0]

        def both(floats: Any, mask: Any, dy: Any) -> Any:
            y, pull = jax.vjp(lambda floats: forward(floats, mask), floats)
            return y, pull(dy)[0]

        with blocks("attn_jax", constants), jax.set_mesh(mesh):
            if heads == "few":
                axes |= dict.fromkeys("kv", ("b",))
            placed = {name: place(mesh, x, *axes[name]) for name, x in arrays.items()}
            mask = placed.pop("mask", None)
            program = jax.jit(both).lower(placed, mask, place(mesh, dy, "b", None, "h")).compile()
            found = {"backward": moves(program)}
            # Both passes move no more than these: the forward pass alone is asked where that is not enough.
            summed = case in SUMS["backward"] or heads == "few"
            found["forward"] = moves(jax.jit(forward).lower(placed, mask).compile()) if summed else found["backward"]
            if path in MANY:
                return found
            y, grads = program(placed, mask, place(mesh, dy, "b", None, "h"))
        carried = {n: x if n == "mask" else ErrArray(x, 0.0) for n, x in arrays.items()}
        with precision(precision_of("float64")), np.errstate(all="ignore"):
            every = {"scale": None, "softcap": None} | options
            want = by_numpy(carried, ErrArray(dy, 0.0), every, "textbook")
        got = {"context": y} | {f"d{name}": x for name, x in grads.items()}
        ratios = [compare(np.asarray(x), want[name], "float64")["ratio"] for name, x in got.items()]
        spec = (*y.sharding.spec, None)[:4]
        return found | {"ratio": max(map(float, ratios)), "sharding": list(spec[:3])}

    def with_axes_merged(mesh: Any, path: str) -> dict[str, Any]:
        """A case of attention with the planted bug, of which nothing that was compiled is kept."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flash, "einsum", merged(flash.einsum))
            jax.clear_caches()
            try:
                return attention(mesh, path, "plain", "own")
            finally:
                jax.clear_caches()

    def layer(
        mesh: Any, variant: str, example: str | None = None, beside: tuple[str, ...] = (), heads: bool = True
    ) -> dict[str, Any]:
        """A layer with its batch, and its heads, on devices of their own, given some arguments beside what it needs."""
        examples = contract.examples(variant)
        config = examples[example or next(iter(examples))]
        sizes = {"d_model": 16, "num_heads": 8, "num_kv_heads": 4} if heads else {}
        config = replace(config, **{x: n for x, n in sizes.items() if getattr(config, x, None) is not None})
        arguments, weights = config.arguments(), weights_of(config)
        inputs = random_inputs(config, {*given(config, "plain"), *beside}, b=4)
        graph, state, others = nnx.split(layer_of(TREES["jax"], config, weights), nnx.Param, ...)
        own = config.own_params()

        count = 2 if config.second_output() else 1

        def run(state: Any, inputs: Any) -> Any:
            return flat(nnx.merge(graph, state, others)(**inputs))[:count]

        def both(state: Any, floats: Any, rest: Any, dy: Any) -> Any:
            y, pull = jax.vjp(lambda state, floats: run(state, floats | rest), state, floats)
            return y, *pull(dy)

        def put(axes: str, x: Any) -> Any:
            names = {"b": "b"} | dict.fromkeys("hg" if heads else "", "h")
            cut = [names.get(letter) for letter in axes.split()]
            return place(
                mesh, x, *(a if n % mesh.shape.get(a, 1) == 0 else None for a, n in zip(cut, x.shape, strict=False))
            )

        def put_param(path: Any, leaf: Any) -> Any:
            name = ".".join(map(str, path))
            return path, leaf.replace(put(own[name].axes if name in own else "", leaf.get_value()))

        wanted = bounded(config, inputs, weights)
        with jax.set_mesh(mesh):
            params = nnx.from_flat_state([put_param(path, leaf) for path, leaf in nnx.to_flat_state(state)])
            placed = {name: put(arguments[name].axes, x) for name, x in inputs.items()}
            floats = {name: x for name, x in placed.items() if x.dtype.kind == "f"}
            rest = {name: x for name, x in placed.items() if name not in floats}
            alone = jax.jit(run).lower(params, placed).compile()
            # Heads without an output projection stay where they are, and so does their gradient.
            outputs = zip(("y", "out1"), alone.output_shardings, strict=False)
            dys = [place(mesh, cotangent(wanted[name].shape), *sharding.spec) for name, sharding in outputs]
            program = jax.jit(both).lower(params, floats, rest, dys).compile()
            (y, *_), dparams, dfloats = program(params, floats, rest, dys)
        found = {"y": y} | {f"d{name}": x for name, x in dfloats.items()}
        found |= {"d" + ".".join(map(str, path)): x.get_value() for path, x in nnx.to_flat_state(dparams)}
        ratios = [compare(np.asarray(x), wanted[name], "float64")["ratio"] for name, x in found.items()]
        return {
            "forward": moves(alone),
            "backward": moves(program),
            "ratio": max(map(float, ratios)),
            "sharding": [y.sharding.spec[0]],
        }

    def layer_in_blocks(mesh: Any, variant: str, example: str, call: str) -> dict[str, Any]:
        """A layer whose rows are taken in small blocks, and the number of its loops over blocks."""
        with pytest.MonkeyPatch.context() as patch:
            rows, loops = in_small_blocks(patch, "jax"), []
            watched = lambda real, *args: (loops.append(variant), real(*args))[1]  # noqa: E731
            for name in ("attend_equal_blocks", "attend_by_sigmoid"):
                patch.setattr(rows, name, partial(watched, getattr(rows, name)))
            found = layer(mesh, variant, example, CALLS_IN_BLOCKS[call], variant in layers())
            return found | {"loops": len(loops)}

    def function(mesh: Any, name: str) -> dict[str, Any]:
        """A call of functions with its sequences on devices of their own."""
        bench("jax")
        with jax.set_mesh(mesh):
            arrays = place(mesh, X, "b"), place(mesh, N, "b")
            program = jax.jit(lambda x, n: joined(CALLS[name](bench("jax"), x, n))).lower(*arrays).compile()
            outputs = program(*arrays)
        want = joined(CALLS[SAME.get(name, name)](bench("numpy"), X, N))
        agree = near([np.asarray(y) for y in outputs], want, name)
        return {"forward": moves(program), "agree": agree, "sharding": [[*y.sharding.spec, None][0] for y in outputs]}

    def pages(mesh: Any) -> dict[str, Any]:
        """New keys written into pages whose heads are split, and attention to them."""
        shapes = {"q": (2, 2, 8, 3), "new": (2, 2, 4, 3), "k": (7, 3, 4, 3), "v": (7, 3, 4, 5)}
        arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        table: Any = np.array([[4, 2, 6], [5, 0, 1]])
        lengths: Any = np.array([8, 5])

        def run(q: Any, new: Any, k: Any, v: Any) -> Any:
            k = attn_jax.write_pages(k, new, table, lengths[:, None] + np.arange(-2, 0))
            return attn_jax.attend_paged(q, k, v, table, lengths, causal=True), k

        with jax.set_mesh(mesh):
            placed = {name: place(mesh, x, None, None, "h") for name, x in arrays.items()}
            program = jax.jit(run).lower(**placed).compile()
            found = program(**placed)
        wanted = run(**{name: jnp.asarray(x) for name, x in arrays.items()})
        agree = near([np.asarray(x) for x in found], [np.asarray(x) for x in wanted], "attend_paged")
        return {"forward": moves(program), "agree": agree, "sharding": [[*x.sharding.spec][2] for x in found]}

    meshes = {kind: jax.make_mesh((2, 4), ("b", "h"), axis_types=(getattr(AxisType, kind),) * 2) for kind in MESHES}
    found: dict[str, Any] = {}
    for name in names:
        try:
            match name.split("/"):
                case [kind, "merged", path]:
                    found[name] = with_axes_merged(meshes[kind], path)
                case [kind, "function", call]:
                    found[name] = function(meshes[kind], call)
                case [kind, "batch", variant]:
                    found[name] = layer(meshes[kind], variant, heads=False)
                case [kind, "heads", variant]:
                    found[name] = layer(meshes[kind], variant)
                case [kind, "pages"]:
                    found[name] = pages(meshes[kind])
                case [kind, variant]:
                    found[name] = layer(meshes[kind], variant)
                case [kind, "in blocks", variant, example, call]:
                    found[name] = layer_in_blocks(meshes[kind], variant, example, call)
                case [kind, "with positions", variant, example]:
                    found[name] = layer(meshes[kind], variant, example, ("positions", "added_positions"))
                case [kind, "grid", variant, example]:
                    found[name] = layer(meshes[kind], variant, example)
                case [kind, path, case, heads]:
                    found[name] = attention(meshes[kind], path, case, heads)
                case _:
                    raise ValueError(f"expected the name of a row, got {name!r}")
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


# Tests ----------------------------------------------------------------------------------------------------------------


class Results(dict[str, Any]):
    """What was found of each row; all rows of a mesh are computed when the first of them is asked for."""

    def __init__(self, names: Iterable[str], module: str = __name__) -> None:
        super().__init__()
        self.names, self.module = names, module

    def __missing__(self, row: str) -> Any:
        mine = [name for name in self.names if name.startswith(row[: row.index("/") + 1])]
        # Last, as with a planted bug the process keeps nothing of what it compiled before.
        mine.sort(key=lambda name: "/merged/" in name)
        environment = {name: x for name, x in os.environ.items() if name != "XLA_FLAGS"}
        command = [sys.executable, "-m", self.module, *mine]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.update(json.loads(done.stdout))
        return dict(self)[row]


@pytest.fixture(scope="module")
def results(selected: list[dict[str, Any]]) -> Results:
    """Of every row that a selected test asks for, from one process for each mesh."""
    return Results(dict.fromkeys(told.get("row") or "/".join((told["mesh"], told["variant"])) for told in selected))


@rows(attention_rows())
def test_attention_moves_nothing_but_sums_of_what_devices_share(row: str, results: Results) -> None:
    found, (_, path, case, heads) = results[row], row.split("/")
    assert "error" not in found, found
    sums = (path, case) in SUMS["forward"]
    assert set(found["forward"]) <= ({"all-reduce"} if sums else set()), found
    sums = sums or case in SUMS["backward"] or heads == "few"
    # A bias, or a key, that every device has gets its gradient everywhere.
    moved = {"all-gather"} if case == "everywhere" or heads == "few" else set()
    assert set(found["backward"]) <= ({"all-reduce"} if sums else set()) | moved, found
    if path not in MANY:
        assert found["sharding"] == ["b", None, "h"], found
        assert found["ratio"] <= 1, found


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("variant", layers())
def test_a_layer_sums_over_devices_once(variant: str, mesh: str, results: Results) -> None:
    """After each output projection; in the backward pass the gradients of the input and of the parameters."""
    found = results[f"{mesh}/{variant}"]
    assert "error" not in found, found
    sums = found["forward"].get("all-reduce", 0)
    assert set(found["forward"]) <= {"all-reduce"}, found
    assert sums in (0, PROJECTIONS.get(variant, 1)) or variant in STEPS, found
    assert set(found["backward"]) <= {"all-reduce"}, found
    assert found["sharding"] == ["b"]
    assert found["ratio"] <= 1


@rows(
    {
        f"{kind}/grid/swin/{name}": kind == "Explicit"
        for kind in MESHES
        for name in ("filled", "hidden", "second version")
    }
)
def test_a_grid_is_filled_up_on_each_device(row: str, results: Results) -> None:
    """The zeros that windows need move nothing, forward and backward."""
    found = results[row]
    assert "error" not in found, found
    assert found["forward"] == {"all-reduce": 1}, found
    assert set(found["backward"]) <= {"all-reduce"}, found
    assert found["sharding"] == ["b"]
    assert found["ratio"] <= 1


@rows({f"{kind}/heads/{v}": (kind, v) == ("Explicit", "block_sparse") for kind in MESHES for v in others()})
def test_layers_with_other_cores_have_their_heads_on_devices(row: str, results: Results) -> None:
    """They sum over devices once, too, and where they mix heads; what some move besides is said."""
    found, (*_, variant) = results[row], row.split("/")
    assert "error" not in found, found
    moved = OTHERS_MOVE.get(variant, set())
    assert set(found["forward"]) <= {"all-reduce"} | (moved if variant == "block_sparse" else set()), found
    assert found["forward"]["all-reduce"] == (2 if variant == "talking_heads" else 1), found
    assert set(found["backward"]) <= {"all-reduce"} | moved, found
    assert found["sharding"] == ["b"]
    assert found["ratio"] <= 1


@rows(block_rows())
def test_rows_in_blocks_stay_where_they_are(row: str, results: Results) -> None:
    """Of every variant that takes rows in blocks; gradients of what devices share are summed over them."""
    found, (kind, _, variant, _, _) = results[row], row.split("/")
    assert "error" not in found, found
    summed = variant in layers() or variant in STEPS
    assert set(found["forward"]) <= ({"all-reduce"} if summed else set()), found
    assert set(found["backward"]) <= {"all-reduce"}, found
    assert found["sharding"] == ["b"], found
    assert found["ratio"] <= 1, found
    alike = [name for name in block_rows() if name.startswith(f"{kind}/in blocks/{variant}/")]
    computed = [results[name] for name in alike if name in results]
    # Not where a part of the tables is asked, which may hold none that does.
    assert 2 * len(computed) < len(alike) or any(other.get("loops") for other in computed), "none takes several blocks"


@rows(position_rows())
def test_positions_of_sequences_stay_where_they_are(row: str, results: Results) -> None:
    """Rows of the tables of cosines and sines are taken on each device for its own sequences."""
    found = results[row]
    assert "error" not in found, found
    assert set(found["forward"]) | set(found["backward"]) <= {"all-reduce"}, found
    assert found["sharding"] == ["b"], found
    assert found["ratio"] <= 1, found


@rows(batch_rows())
def test_with_the_batch_alone_sharded_nothing_moves(row: str, results: Results) -> None:
    """But sums of gradients of parameters, and whether a row still moves."""
    found = results[row]
    assert "error" not in found, found
    assert set(found["forward"]) <= ({"all-reduce"} if row.split("/")[2] in STEPS else set()), found
    kind, _, variant = row.split("/")
    gathered = {"all-gather"} if kind == "Explicit" and variant in GATHERED else set()
    assert set(found["backward"]) <= {"all-reduce"} | gathered, found
    assert found["sharding"] == ["b"], found
    assert found["ratio"] <= 1, found


@rows(function_rows())
def test_functions_leave_sequences_where_they_are(row: str, results: Results) -> None:
    """And give the same numbers; what moves all the same is said."""
    found = results[row]
    assert "error" not in found, found
    assert found["agree"]
    assert set(found["forward"]) <= MOVED.get(row.split("/", 2)[2], set()), found
    assert set(found["sharding"]) == {"b"}, found


@rows({f"{kind}/merged/{path}": path == "blocks" for kind in MESHES for path in PATHS if path not in MANY})
def test_merged_axes_are_seen(row: str, results: Results) -> None:
    found = results[row]
    assert "error" in found or found["forward"], found


if __name__ == "__main__":
    compile_quickly()
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
    main(sys.argv[1:])


@rows({f"{kind}/pages": True for kind in MESHES})
def test_pages_whose_heads_are_split_stay_where_they_are(row: str, results: Results) -> None:
    found = results[row]
    assert "error" not in found, found
    assert found["agree"] and not found["forward"] and found["sharding"] == ["h", "h"], found
