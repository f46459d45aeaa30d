"""The three trees as candidates: run one case and hand back everything that can be judged, as NumPy arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np

from attn_np.contract import Config
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import widened
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.xla import flags


@dataclass
class Outcome:
    """What a candidate computed, every float array widened to float64.

    Attributes:
        outputs: by name: "y", and "out1", ... for anything returned beside it.
        grads: gradients of inputs ("dquery") and parameters ("dw_q", "dlayers.0.w_x").
        tape: named intermediates in the order they were computed; booleans as they are.
        cotangents: gradient of each taped float array, by "d" + name; absent where the result does not depend on it.
        dtypes: dtype names of outputs and gradients, to be compared exactly.
        names: what the candidate itself calls arrays, by our names; those that it calls as we do may be absent.
    """

    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    grads: dict[str, np.ndarray] = field(default_factory=dict)
    tape: dict[str, np.ndarray] = field(default_factory=dict)
    cotangents: dict[str, np.ndarray] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A way to run a case: framework, mode, device, and whether a tape is kept."""

    framework: str
    mode: str
    device: str
    run: Callable[[Case, Drawn, bool], Outcome]

    @property
    def name(self) -> str:
        return f"{self.framework} {self.mode}" + ("" if self.device == "cpu" else f" on {self.device}")


def leaves(result: Any) -> dict[str, Any]:
    """A layer's result as named arrays: the first is y."""
    flat: list[Any] = []

    def walk(x: Any) -> None:
        if isinstance(x, tuple | list):
            for part in x:
                walk(part)
        elif x is not None:
            flat.append(x)

    walk(result)
    return {"y" if i == 0 else f"out{i}": x for i, x in enumerate(flat)}


@cache
def extras(variant: str, layer: str) -> dict[str, Any]:
    """Options by which a layer goes the textbook path without a tape: its weights are returned, where it has them."""
    call = signature(getattr(import_module(f"attn_np.{variant}"), layer).__call__)
    if "return_weights" in call.parameters:
        return {"return_weights": True}
    return {"implementation": "textbook"} if "implementation" in call.parameters else {}


@cache
def attends(variant: str, layer: str) -> bool:
    """Whether a layer calls `attend`, which without a tape goes its fast path."""
    return "implementation" in signature(getattr(import_module(f"attn_np.{variant}"), layer).__call__).parameters


def pulled(case: Case, drawn: Drawn, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Random gradients of the outputs that are differentiated: y, and the second, if there is one."""
    names = ("y", "out1") if case.config.second_output() else ("y",)
    return {n: drawn.pulled[n] if n in drawn.pulled else drawn.cotangent(shapes[n], case.dtype) for n in names}


def scoped(name: str) -> str:
    """The cotangent's name: d before the last part, as a scoped tape writes it."""
    prefix, dot, last = name.rpartition(".")
    return f"{prefix}{dot}d{last}"


def collect(outcome: Outcome, kind: str, values: dict[str, Any], to_numpy: Callable[[Any], np.ndarray]) -> None:
    arrays = {name: to_numpy(x) for name, x in values.items() if x is not None}
    if kind in ("outputs", "grads"):
        outcome.dtypes.update({name: x.dtype.name for name, x in arrays.items()})
    getattr(outcome, kind).update({name: widened(x) for name, x in arrays.items()})


# NumPy ----------------------------------------------------------------------------------------------------------------


def numpy_layer(case: Case, params: dict[str, Any], tree: str = "attn_np") -> Any:
    config = case.config
    cls = getattr(import_module(f"{tree}.{config.variant}"), config.class_name)
    return cls(config, dtype=case.dtype, _values=params).eval()


def run_numpy(case: Case, drawn: Drawn, taped: bool, tree: str = "attn_np") -> Outcome:
    outcome, layer = Outcome(), numpy_layer(case, drawn.params, tree)
    tape: dict[str, Any] = {}
    more = extras(case.config.variant, case.config.class_name)
    found = leaves(layer(**drawn.inputs, **more, tape=tape))
    grads = layer.vjp(tape, *pulled(case, drawn, {n: x.shape for n, x in found.items()}).values())
    collect(outcome, "outputs", found if taped else leaves(layer(**drawn.inputs, **more)), np.asarray)
    collect(outcome, "grads", {f"d{n}": g for n, g in (grads.inputs | grads.params).items()}, np.asarray)
    if taped:
        forward = layer_names(tape)
        collect(outcome, "tape", {n: tape[n] for n in forward}, np.asarray)
        collect(outcome, "cotangents", {n: x for n, x in tape.items() if n not in forward}, np.asarray)
    return outcome


def call_numpy(case: Case, drawn: Drawn, taped: bool, tree: str = "attn_np") -> Outcome:
    """As users call it and ask for its gradients: nothing is taped, and no weights are asked for."""
    outcome, layer = Outcome(), numpy_layer(case, drawn.params, tree)
    y, pull = import_module(tree).value_and_vjp(layer, **drawn.inputs)
    found = leaves(y)
    grads = pull(*pulled(case, drawn, {n: x.shape for n, x in found.items()}).values())
    collect(outcome, "outputs", found, np.asarray)
    collect(outcome, "grads", {f"d{n}": g for n, g in (grads.inputs | grads.params).items()}, np.asarray)
    return outcome


def layer_names(tape: dict[str, Any]) -> list[str]:
    """Names that the forward wrote: everything before the cotangent of the output."""
    names = list(tape)
    ends = [i for i, name in enumerate(names) if name == "dy"]
    return names[: ends[0]] if ends else names


# PyTorch --------------------------------------------------------------------------------------------------------------


def to_torch(x: np.ndarray, device: str) -> Any:
    from attn_torch.ops import from_numpy as tensor

    return tensor(np.ascontiguousarray(x)).to(device)


def from_torch(x: Any) -> np.ndarray:
    import torch

    x = x.detach().cpu()
    return x.view(torch.uint16).numpy().view(DTYPES["bfloat16"]) if x.dtype == torch.bfloat16 else x.numpy()


class Noded(dict[str, Any]):
    """A tape that gives every value a node of its own in PyTorch's graph, so two names have two gradients."""

    def tap(self, name: str, value: Any) -> Any:
        if value.is_floating_point() and not value.requires_grad:
            value = value.detach().requires_grad_()
        self[name] = value.view_as(value)
        return self[name]


def run_torch(
    case: Case, drawn: Drawn, taped: bool, tree: str = "attn_torch", device: str = "cpu", weights: bool = True
) -> Outcome:
    import torch

    config = case.config
    cls = getattr(import_module(f"{tree}.{config.variant}"), config.class_name)
    values = {name: to_torch(x, device) for name, x in drawn.params.items()}
    layer = cls(config, device=device, dtype=case.dtype, _values=values).eval()
    inputs = {name: to_torch(x, device) for name, x in drawn.inputs.items()}
    floats = {name: x.requires_grad_() for name, x in inputs.items() if x.is_floating_point()}
    tape = Noded() if taped else None
    more = extras(config.variant, config.class_name) if weights else {}
    found = leaves(layer(**inputs, **more, tape=tape))
    shapes = {n: tuple(x.shape) for n, x in found.items()}
    dys = {n: to_torch(x, device) for n, x in pulled(case, drawn, shapes).items()}
    named = {f"d{n}": x for n, x in (floats | layer.params()).items()}
    taps = {n: x for n, x in (tape or {}).items() if torch.is_tensor(x) and x.requires_grad}
    targets = [*named.values(), *taps.values()]
    sources = [found[name] for name in dys]
    grads = torch.autograd.grad(sources, targets, list(dys.values()), allow_unused=True) if targets else ()
    grads = tuple(torch.zeros_like(x) if g is None else g for x, g in zip(targets, grads, strict=True))
    outcome = Outcome()
    collect(outcome, "outputs", found, from_torch)
    collect(outcome, "grads", dict(zip(named, grads, strict=False)), from_torch)
    collect(outcome, "tape", tape or {}, from_torch)
    pairs = zip(taps, grads[len(named) :], strict=True)
    collect(outcome, "cotangents", {scoped(name): grad for name, grad in pairs}, from_torch)
    return outcome


# JAX ------------------------------------------------------------------------------------------------------------------


class Perturbed(dict[str, Any]):
    """A tape whose values are moved by zero arrays, so that the gradient of these is the cotangent of the value."""

    def __init__(self, zeros: dict[str, Any]) -> None:
        super().__init__()
        self.zeros = zeros

    def tap(self, name: str, value: Any) -> Any:
        if name in self.zeros:
            value = value + self.zeros[name]
        self[name] = value
        return value


@cache
def jax_function(config: Config, dtype: str, names: tuple[str, ...], taped: bool, tree: str, weights: bool) -> Any:
    """Outputs, gradients, tape and cotangents as one function of (params, inputs, dy); compiled once for its shapes."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    cls = getattr(import_module(f"{tree}.{config.variant}"), config.class_name)

    def call(params: Any, floats: Any, rest: Any, zeros: Any) -> Any:
        layer = cls(config, rngs=nnx.Rngs(0), param_dtype=dtype, _values=params)
        layer.eval()
        tape = Perturbed(zeros) if taped else None
        more = extras(config.variant, config.class_name) if weights else {}
        found = leaves(layer(**floats, **rest, **more, tape=tape))
        return found, (found, dict(tape or {}))

    def everything(params: Any, floats: Any, rest: Any, dys: Any) -> Any:
        shapes = jax.eval_shape(lambda p, f, r: call(p, f, r, {})[1][1], params, floats, rest) if taped else {}
        inexact = {n: x for n, x in shapes.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        zeros = {n: jnp.zeros(x.shape, x.dtype) for n, x in inexact.items()}
        vjp: Any = jax.vjp  # its type knows no has_aux

        def outputs(p: Any, f: Any, z: Any) -> Any:
            found, kept = call(p, f, rest, z)
            return {name: found[name] for name in dys}, kept

        _, pull, (found, tape) = vjp(outputs, params, floats, zeros, has_aux=True)
        return found, tape, *pull(dys)

    return everything


def run_jax(
    case: Case,
    drawn: Drawn,
    taped: bool,
    tree: str = "attn_jax",
    device: str = "cpu",
    jit: bool = True,
    weights: bool = True,
    quickly: bool = False,
) -> Outcome:
    """Compiled as XLA does by default; `quickly` without its optimisations, or not at all without `jit`."""
    import jax

    where = jax.devices(device)[0]
    floats = {n: x for n, x in drawn.inputs.items() if x.dtype.kind not in "biu"}
    rest = {n: x for n, x in drawn.inputs.items() if n not in floats}
    dys = pulled(case, drawn, output_shapes(case, drawn))
    placed = jax.device_put((drawn.params, floats, rest, dys), where)
    function = jax_function(case.config, case.dtype, tuple(drawn.inputs), taped, tree, weights)
    if jit:
        found, tape, dparams, dfloats, dzeros = compiled(function, quickly)(*placed)
    else:
        found, tape, dparams, dfloats, dzeros = function(*placed)
    outcome = Outcome()
    collect(outcome, "outputs", found, np.asarray)
    collect(outcome, "grads", {f"d{n}": g for n, g in (dfloats | dparams).items()}, np.asarray)
    order = jax_order(case, drawn)
    collect(outcome, "tape", {n: tape[n] for n in sorted(tape, key=order)}, np.asarray)
    collect(outcome, "cotangents", {scoped(n): dzeros[n] for n in sorted(dzeros, key=order)}, np.asarray)
    return outcome


def run_jax_by_plan(
    case: Case, drawn: Drawn, taped: bool, device: str = "cpu", weights: bool = True, once: bool = False
) -> Outcome:
    """`once`: one program in place of two, so that with weights the run with a tape serves as the one without.

    To compile is most of the time, and without XLA's optimisations it takes a seventh. What users call in float32,
    bfloat16 and float16 has them; float64, which shows what is meant, does without, and so does the call with weights
    where a call without them is judged too.
    """
    beside = weights and attends(case.config.variant, case.config.class_name)
    quickly = device == "cpu" and (case.dtype == "float64" or beside)
    return run_jax(case, drawn, weights if once else taped, device=device, weights=weights, quickly=quickly)


@cache
def compiled(function: Any, quickly: bool = False) -> Any:
    import jax

    return jax.jit(function, compiler_options=flags() if quickly else None)


def output_shapes(case: Case, drawn: Drawn) -> dict[str, tuple[int, ...]]:
    """Shape of every output, from the reference."""
    return {n: x.shape for n, x in leaves(numpy_layer(case, drawn.params)(**drawn.inputs)).items()}


def jax_order(case: Case, drawn: Drawn) -> Callable[[str], tuple[int, str]]:
    """jit returns dictionaries sorted by name; put them back in the order of the computation."""
    tape: dict[str, Any] = {}
    numpy_layer(case, drawn.params)(**drawn.inputs, tape=tape)
    place = {name: i for i, name in enumerate(tape)}
    return lambda name: (place.get(name, len(place)), name)


# Which ones there are -------------------------------------------------------------------------------------------------


def accelerators(framework: str) -> list[str]:
    """Devices of a framework beyond the CPU."""
    if framework == "torch":
        import torch

        found = ["cuda"] if torch.cuda.is_available() else []
        return found + (["mps"] if torch.backends.mps.is_available() else [])
    import jax

    return sorted({d.platform for d in jax.devices()} - {"cpu"})


def untaped(
    device: str = "cpu", frameworks: tuple[str, ...] = ("numpy", "torch", "jax"), everything: bool = True
) -> list[Candidate]:
    """The calls that users make, for `judge_call`: without a tape and without weights, in JAX compiled.

    What `attend` then does is its fast path. JAX compiles as `run_jax_by_plan` says.
    """

    def add(framework: str, place: str, run: Callable[..., Outcome], **fixed: Any) -> Candidate:
        return Candidate(framework, "untaped", place, lambda c, d, taped: run(c, d, False, **fixed))

    found = [add("numpy", "cpu", call_numpy)] if "numpy" in frameworks and device == "cpu" else []
    jax_calls = partial(run_jax_by_plan, once=not everything)
    for framework, run in (("torch", run_torch), ("jax", jax_calls)):
        if framework in frameworks:
            places = [device] if device == "cpu" else accelerators(framework)
            found += [add(framework, place, run, device=place, weights=False) for place in places]
    return found


def candidates(
    device: str = "cpu", frameworks: tuple[str, ...] = ("numpy", "torch", "jax"), everything: bool = True
) -> list[Candidate]:
    """The candidates on the CPU ("cpu") or on every accelerator that is found ("accelerator").

    Without `everything` JAX compiles one program for each case, and runs nothing operation by operation.
    """
    found: list[Candidate] = []

    def add(framework: str, mode: str, where: str, run: Callable[..., Outcome], **fixed: Any) -> None:
        found.append(Candidate(framework, mode, where, lambda c, d, taped: run(c, d, taped, **fixed)))

    places = {f: [device] if device == "cpu" else accelerators(f) for f in ("torch", "jax") if f in frameworks}
    if "numpy" in frameworks and device == "cpu":
        add("numpy", "by hand", "cpu", run_numpy)
    for place in places.get("torch", []):
        add("torch", "eager", place, run_torch, device=place)
    for place in places.get("jax", []):
        add("jax", "jit", place, run_jax_by_plan, device=place, once=not everything)
        if everything:
            add("jax", "eager", place, run_jax, device=place, jit=False)
    return found
