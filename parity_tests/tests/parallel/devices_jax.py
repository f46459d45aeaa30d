"""What eight simulated devices of JAX compute for `test_parallel_jax`, and what moves, in a process of their own.

    python -m parity_tests.tests.parallel.devices_jax results.npz "Auto/8/ring_attend/zigzag/causal"

A row names the kind of the mesh's axes, its shape, a function, a layout (of `recur` a form) and a call. With "bytes"
in place of a shape, a function and sizes ask for what moves, forward and in both passes; with "refused", a function is
called with arrays that do not lie on the devices as they should.
"""

import os
import re
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parity_tests.judge.xla import compile_quickly
from parity_tests.tests.parallel import cases
from parity_tests.tests.parallel.cases import Arrays

# The sizes and axes of a mesh by its name: the sequence lies on "seq", the batch on "data" and the heads on "model",
# where there are such axes. That of the heads is none of `shard_map`'s.
MESHES = {
    "8": ((8,), ("seq",)),
    "2 x 4": ((2, 4), ("data", "seq")),
    "2 x 2 x 2": ((2, 2, 2), ("data", "seq", "model")),
}
BYTES = {"f32": 4, "f64": 8, "s32": 4, "s64": 8, "u32": 4, "pred": 1, "bf16": 2}
MOVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"


@dataclass
class Call:
    """A sharded function of arrays by name.

    Attributes:
        mesh: of the devices.
        on_a_device: the function of one device's arrays.
        arrays: whole, with the gradients of the outputs under "d" + name.
        axes, outputs: the axes of positions of arrays and of outputs; None for one that all devices have.
        shared: the arrays without a batch.
        layout: how positions are cut.
    """

    mesh: Any
    on_a_device: Any
    arrays: Arrays
    axes: dict[str, int | None]
    outputs: dict[str, int | None]
    shared: tuple[str, ...]
    layout: str

    def spec(self, name: str, axis: int | None, heads: int | None = None) -> Any:
        """How an array is sharded: along its positions, and along its batch, and heads, where the mesh has an axis."""
        from jax.sharding import PartitionSpec

        cut: list[str | None] = [None] * 3
        if heads is not None:
            cut[heads] = "model"
        if axis is not None:
            cut[axis] = "seq"
        if name not in self.shared and "data" in self.mesh.shape:
            cut[0] = "data"
        return PartitionSpec(*cut[: 1 + max((i for i, axis in enumerate(cut) if axis), default=-1)])

    def sharded(self) -> Any:
        """The function of whole arrays, whose parts are on the devices."""
        import jax

        specs = {name: self.spec(name, axis) for name, axis in self.axes.items()}
        out_specs = tuple(self.spec(name, axis) for name, axis in self.outputs.items())
        cut = {name for name in self.mesh.shape if name != "model"}
        return jax.shard_map(self.on_a_device, mesh=self.mesh, in_specs=(specs,), out_specs=out_specs, axis_names=cut)

    def moved(self, change: Any, x: Any, axis: int | None) -> Any:
        """An array put into the layout's order, or out of it."""
        if axis is None:
            return np.asarray(x)
        first = np.moveaxis(np.asarray(x), axis, 1)
        return np.moveaxis(np.asarray(change(first, devices=self.mesh.shape["seq"], layout=self.layout)), 1, axis)

    def placed(self, name: str, x: np.ndarray, axis: int | None) -> Any:
        import jax
        from jax.sharding import NamedSharding

        from attn_jax.parallel import to_devices

        heads = cases.HEADS.get(name.removeprefix("d")) if "model" in self.mesh.shape else None
        heads = heads if heads is not None and x.shape[heads] % self.mesh.shape["model"] == 0 else None
        return jax.device_put(self.moved(to_devices, x, axis), NamedSharding(self.mesh, self.spec(name, axis, heads)))


def made(kind: str, mesh: str, function: str, layout: str, call: str) -> Call:
    import jax
    from jax.sharding import AxisType

    import attn_jax

    sizes, names = MESHES[mesh]
    of_devices = jax.make_mesh(sizes, names, axis_types=(getattr(AxisType, kind),) * len(names))
    run = getattr(attn_jax.parallel, function)
    if function == "recur":
        (arrays, _), rule = cases.held_recurrence(call), cases.RECURRENCES[call][0]
        axes = {name: cases.recurrence_axis(call, name) for name in arrays if name not in ("dy", "dlast")}
        shared = ("decay",) if "decay" in axes and axes["decay"] is None else ()
        of_call = partial(run, axis_name="seq", rule=rule, form=layout, chunk_size=5)
        return Call(of_devices, lambda x: of_call(**x), arrays, axes, {"y": 1, "last": None}, shared, "contiguous")
    (arrays, _), asked = cases.held(call), cases.CALLS[call]

    def on_a_device(x: dict[str, Any]) -> Any:
        options: dict[str, Any] = asked.options | {name: x[name] for name in asked.arrays.split()}
        options |= {"pattern": asked.pattern and asked.pattern(x), "layout": layout, "return_lse": True}
        return run(x["q"], x["k"], x["v"], axis_name="seq", **options)

    axes = {name: cases.cut_axis(name) for name in arrays if name not in ("dy", "dlse")}
    return Call(of_devices, on_a_device, arrays, axes, {"y": 1, "lse": 2}, ("sinks",), layout)


def results(call: Call) -> Arrays:
    """Outputs and gradients, whole."""
    import jax

    from attn_jax.parallel import from_devices

    inputs = {name: call.placed(name, call.arrays[name], axis) for name, axis in call.axes.items()}
    dys = tuple(call.placed(name, call.arrays[f"d{name}"], axis) for name, axis in call.outputs.items())
    floats = {name: x for name, x in inputs.items() if x.dtype.kind == "f"}
    rest = {name: x for name, x in inputs.items() if name not in floats}
    with jax.set_mesh(call.mesh):
        y, grads = jax.jit(both(call.sharded()))(floats, rest, dys)
    found = dict(zip(call.outputs, y, strict=True)) | {f"d{name}": x for name, x in grads.items()}
    own = call.outputs | {f"d{name}": call.axes[name] for name in floats}
    return {name: call.moved(from_devices, x, own[name]) for name, x in found.items()}


def both(function: Any) -> Any:
    """Forward and backward pass as one function."""
    import jax

    def call(floats: Any, rest: Any, dys: Any) -> Any:
        y, pull = jax.vjp(lambda floats: function(floats | rest), floats)
        return y, pull(dys)[0]

    return call


def in_form(form: str) -> Arrays:
    """The gradients of a causal ring in one of the ways in which programs are written."""
    import jax
    from jax.sharding import AxisType
    from jax.sharding import PartitionSpec as P

    from attn_jax.parallel import ring_attend

    arrays = cases.held("causal")[0]
    mesh = jax.make_mesh((2, 4), ("data", "seq"), axis_types=(AxisType.Auto,) * 2)
    axis = ("data", "seq") if form == "two axes" else "seq"
    cut, of_lse = P(None, axis), P(None, None, axis)
    more: dict[str, Any] = {"axis_names": {"seq"}} if form == "one of two axes" else {}
    more |= {"check_vma": False} if form == "unchecked" else {}

    def ring(q: Any, k: Any, v: Any) -> Any:
        return ring_attend(q, k, v, axis_name=axis, causal=True, return_lse=True)

    def gradients(call: Any, arrays: list[Any]) -> Any:
        *inputs, dy, dlse = arrays
        return jax.vjp(call, *inputs)[1]((dy, dlse))

    given = [arrays[name] for name in ("q", "k", "v", "dy", "dlse")]
    if form == "gradients inside":
        specs = (cut,) * 4 + (of_lse,)
        inside = jax.shard_map(lambda *x: gradients(ring, list(x)), mesh=mesh, in_specs=specs, out_specs=(cut,) * 3)
        grads = jax.jit(inside)(*given)
    else:
        ring = jax.checkpoint(ring) if form == "recomputed" else ring
        call = jax.shard_map(ring, mesh=mesh, in_specs=(cut,) * 3, out_specs=(cut, of_lse), **more)
        outside = partial(gradients, call)
        grads = outside(given) if form == "not compiled" else jax.jit(outside)(given)
    return {f"d{name}": np.asarray(x) for name, x in zip("qkv", grads, strict=True)}


# What moves -----------------------------------------------------------------------------------------------------------


def not_cut(kind: str, function: str) -> Arrays:
    """The result of a call whose arrays all devices have whole, of the joining of parts on an explicit mesh, or of a
    call with heads that the devices of two axes do not divide.
    """
    import jax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    import attn_jax

    if function == "ulysses_attend":
        mesh = jax.make_mesh((4, 2), ("seq", "model"), axis_types=(AxisType[kind],) * 2)
        x, cut = np.ones((2, 16, 12, 4)), P(None, "seq")
        x = jax.device_put(x, NamedSharding(mesh, P(None, "seq", "model")))
        exchanged = partial(attn_jax.parallel.ulysses_attend, axis_name="seq")
        with jax.set_mesh(mesh):
            run = jax.shard_map(exchanged, mesh=mesh, in_specs=(cut,) * 3, out_specs=cut, axis_names={"seq"})
            return {"y": np.asarray(jax.jit(run)(x, x, x))}
    mesh = jax.make_mesh((8,), ("seq",), axis_types=(AxisType[kind],))
    x = jax.device_put(np.ones((2, 16, 4, 4)), NamedSharding(mesh, P(None, "seq") if "devices" in function else P()))
    if "devices" in function:
        with jax.set_mesh(mesh):
            return {"y": getattr(attn_jax.parallel, function)(x, devices=8, layout="zigzag")}

    def call(x: Any) -> Any:
        if function == "apply":
            layer = attn_jax.build("mha", d_model=4, num_heads=2, causal=True, dtype="float64")
            return attn_jax.parallel.apply(layer, x[:, :, 0], axis_name="seq")
        y = getattr(attn_jax.parallel, function)(x, x, x, axis_name="seq")
        return y[0] if function == "recur" else y

    return {"y": np.asarray(jax.shard_map(call, mesh=mesh, in_specs=P(), out_specs=P(None, "seq"))(x))}


def bytes_received(function: str, devices: int, b: int, t: int, h: int, g: int, k: int, v: int, causal: bool) -> Arrays:
    """The bytes that a device gets, forward and in both passes, of a call in float32, and those of temporary arrays."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType
    from jax.sharding import PartitionSpec as P

    import attn_jax

    mesh = jax.make_mesh((devices,), ("seq",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    run = partial(getattr(attn_jax.parallel, function), axis_name="seq")
    run = run if function == "recur" else partial(run, causal=causal)
    out_specs = (P(None, "seq"), P()) if function == "recur" else P(None, "seq")
    call = jax.shard_map(lambda x: run(**x), mesh=mesh, in_specs=P(None, "seq"), out_specs=out_specs)
    q, keys, values = (jax.ShapeDtypeStruct((b, devices * t, *x), jnp.float32) for x in ((h, k), (g, k), (g, v)))
    floats, y = {"q": q, "k": keys, "v": values}, jax.eval_shape(call, {"q": q, "k": keys, "v": values})
    lowered = jax.jit(call).lower(floats), jax.jit(both(call)).lower(floats, {}, y)
    programs: list[Any] = [program.compile() for program in lowered]
    return {
        "received": np.array([received(program.as_text(), devices) for program in programs]),
        "temporary": np.array([program.memory_analysis().temp_size_in_bytes for program in programs]),
    }


def received(text: str, devices: int) -> int:
    """The bytes that a device gets in a compiled program; of a loop, as often as it runs.

    Of what n devices gather, exchange or scatter each gets n - 1 parts, and twice as many of a sum.
    """
    bodies, name = dict[str, list[str]](), ""
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = "ENTRY" if line.startswith("ENTRY") else head[1]
            bodies[name] = []
        elif name:
            bodies[name].append(line)

    def size(shapes: str) -> int:
        found = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
        return sum(BYTES[kind] * int(np.prod([int(n) for n in axes.split(",") if n] or [1])) for kind, axes in found)

    def of(body: str) -> float:
        total = 0.0
        for line in bodies.get(body, ()):
            if move := re.search(rf" = (.*?) ({MOVES})(?:-start)?\(", line):
                part = (devices - 1) / devices
                shares = {"all-reduce": 2 * part, "collective-permute": 1, "reduce-scatter": devices - 1}
                total += size(move[1]) * shares.get(move[2], part)
            for inner in re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", line):
                total += of(inner)
            if loop := re.search(r" while\(.*body=%?([\w.\-]+)", line):
                inside, trips = of(loop[1]), re.search(r'known_trip_count":\{"n":"(\d+)"', line)
                if inside and trips is None:
                    raise ValueError(f"expected a loop that says how often it runs, got {line.strip()[:200]}")
                total += inside * int(trips[1]) if trips else 0
        return total

    return round(of("ENTRY"))


def main(path: str, rows: list[str]) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    found: Any = {}
    for row in rows:
        try:
            match row.split("/"):
                case [_, "form", form]:
                    arrays = in_form(form)
                case [kind, "refused", function]:
                    arrays = not_cut(kind, function)
                case [_, "bytes", function, *sizes, causal]:
                    arrays = bytes_received(function, *map(int, sizes), causal=causal == "1")
                case words:
                    arrays = results(made(*words))
        except Exception as error:
            arrays = {"error": np.array(f"{type(error).__name__}: {error}")}
        found |= {f"{row}|{name}": x for name, x in arrays.items()}
    np.savez(path, **found)


if __name__ == "__main__":
    compile_quickly()
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
    main(sys.argv[1], sys.argv[2:])
