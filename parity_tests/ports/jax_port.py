"""Ports in JAX: a module of Flax or Equinox, or a function of JAX arrays."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.judge.candidates import Candidate, Outcome, accelerators, collect
from parity_tests.judge.cases import Case, Drawn
from parity_tests.ports.arguments import accepted, needed, not_given
from parity_tests.ports.names import (
    Names,
    in_our_axes,
    invoke,
    letters_of,
    refuse_unmapped,
    returned,
    tapped,
    theirs_of,
)
from parity_tests.ports.port import MissingDeviceError, Port, pulling, refuse_unknown
from parity_tests.ports.weights import of_rules, read_weights, weights_of


def jax_port(candidate: Any, config: Config, names: Names, dtype: str | None, device: str | None) -> Port:
    """A module of Flax NNX, of Linen with its variables, or of Equinox; or a function of JAX arrays."""
    import jax
    import jax.numpy as jnp

    from parity_tests.ports.jax_modules import jax_module
    from parity_tests.ports.watch_jax import JaxWatch, narrow_types, watching

    def held_to(dtype: str | None) -> None:
        if dtype == "float64" and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                "assert_parity: expected JAX to compute in float64, got jax_enable_x64=False; call "
                'jax.config.update("jax_enable_x64", True) first'
            )

    held_to(dtype)
    wide = dtype == "float64"
    module = jax_module(candidate)
    is_module = module is not None
    own: dict[str, Any] = {} if module is None else module.weights
    floats = [x for x in own.values() if jnp.issubdtype(x.dtype, jnp.floating)]
    if dtype:
        own = {n: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x for n, x in own.items()}
    dtype = dtype or (str(floats[0].dtype) if floats else "float32")
    where = jax_device(device or "cpu")
    own = jax.device_put(own, where)
    params, moves = None, []
    watch = JaxWatch()
    notes: dict[str, None] = {}
    if is_module:
        params, moves = read_weights(names.weights, config, {n: np.asarray(x) for n, x in own.items()}, notes)
    mapped = {key for step in moves for key in step.keys}
    if module is not None and wide:  # arrays that no rule names may be constants
        unmapped = {n: x for n, x in module.weights.items() if n not in mapped}
        watch.forward |= dict.fromkeys(replace(module, constants=module.constants | unmapped).rounded())
        watch.suspected = bool(watch.forward)
    own_names = weights_of(moves)
    taken = accepted(candidate, config, names)

    def call(held: Mapping[str, Any], leaves: Any, rest: Any, sizes: Any) -> Any:
        given = {**leaves, **rest}
        if module is not None:
            result, seen = module.call(held, lambda m: invoke(m, given, taken, names, sizes), names.taps)
        else:
            function = (lambda *a, **k: candidate(held, *a, **k)) if held else candidate
            result, seen = invoke(function, given, taken, names, sizes), {}
        outputs, tape = returned(result, names, sizes, notes)
        own_names.update(theirs_of(seen, names))
        return outputs, in_our_axes(tape | dict(tapped(seen, names)), names, sizes)

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        held_to(case.dtype)
        sizes, outcome = letters_of(case, drawn), Outcome()
        leaves = {n: jax.device_put(x, where) for n, x in drawn.inputs.items() if x.dtype.kind not in "biu"}
        rest = {n: jax.device_put(x, where) for n, x in drawn.inputs.items() if n not in leaves}
        held = own if is_module else jax.device_put(dict(drawn.params), where)
        vjp: Any = jax.vjp  # its type knows no has_aux

        def forward(held: Any, leaves: Any) -> Any:
            outputs, tape = call(held, leaves, rest, sizes)
            return {n: outputs[n] for n in outputs if n in drawn.pulled}, (outputs, tape)

        def whole() -> None:
            sources, pull, (outputs, _) = vjp(forward, held, leaves, has_aux=True)
            if names.gradients and pulling(outputs, drawn) is not None:
                pull({n: jnp.asarray(drawn.pulled[n], x.dtype) for n, x in sources.items()})

        if wide and any(narrow_types(jax.make_jaxpr(forward)(held, leaves).jaxpr)):
            watch.suspected = True
            watch.programs.append((lambda: forward(held, leaves), whole))
        if watch.hidden is not None:
            with watching(watch, {}, {}):
                forward(held, leaves)
        if not names.gradients:
            collect(outcome, "outputs", call(held, leaves, rest, sizes)[0], np.asarray)
            return outcome
        sources, pull, (outputs, tape) = vjp(forward, held, leaves, has_aux=True)
        collect(outcome, "outputs", outputs, np.asarray)
        collect(outcome, "tape", tape, np.asarray)
        outcome.names |= own_names
        if pulling(outputs, drawn) is None:
            return outcome
        dheld, dleaves = pull({n: jnp.asarray(drawn.pulled[n], x.dtype) for n, x in sources.items()})
        collect(outcome, "grads", {f"d{n}": x for n, x in dleaves.items()}, np.asarray)
        theirs = {n: np.asarray(x) for n, x in dheld.items()}
        if is_module:
            refuse_unmapped({n: x for n, x in theirs.items() if n not in mapped}, notes)
        mine = of_rules(moves, theirs) if is_module else theirs
        collect(outcome, "grads", {f"d{n}": x for n, x in mine.items()}, np.asarray)
        return outcome

    kind = "module" if is_module else "function"
    return Port(
        Candidate("your jax", kind, where.platform, run),
        params,
        dtype,
        tuple(taken),
        needed(candidate, config, names, taken),
        not_given(candidate, config, names, taken),
        watch,
        notes,
    )


def jax_device(name: str) -> Any:
    import jax

    known = {"cpu": "cpu", **{kind: kind for kind in accelerators("jax")}}
    if {"gpu", "cuda", "rocm"} & set(known):
        known["cuda"] = "gpu"
    refuse_unknown("jax", name, ("cpu", "gpu", "cuda", "rocm", "tpu", "metal"))
    if name not in known:
        raise MissingDeviceError(f"device: expected one of {', '.join(known)}, got {name!r}; jax finds no other here")
    return jax.devices(known[name])[0]
