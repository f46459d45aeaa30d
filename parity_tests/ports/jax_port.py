"""Ports in JAX: a Flax NNX module, with what it sows, or a function of JAX arrays."""

import re
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.judge.candidates import Candidate, Outcome, accelerators, collect
from parity_tests.judge.cases import Case, Drawn
from parity_tests.ports.names import (
    Names,
    accepted,
    in_our_axes,
    invoke,
    letters_of,
    needed,
    not_given,
    refuse_unmapped,
    returned,
    second_run,
    tapped,
    theirs_of,
)
from parity_tests.ports.port import MissingDeviceError, Port, pulling, refuse_unknown
from parity_tests.ports.weights import of_rules, read_weights, weights_of


def jax_port(candidate: Any, config: Config, names: Names, dtype: str | None, device: str | None) -> Port:
    """A Flax NNX module, with what it sows as intermediates; or a function of JAX arrays."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from parity_tests.ports.watch_jax import JaxWatch, narrow_types, watching

    def held_to(dtype: str | None) -> None:
        if dtype == "float64" and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                "assert_parity: expected JAX to compute in float64, got jax_enable_x64=False; call "
                'jax.config.update("jax_enable_x64", True) first'
            )

    held_to(dtype)
    is_module = isinstance(candidate, nnx.Module)
    own: dict[str, Any] = {}
    if is_module:
        flat = dict(nnx.to_flat_state(nnx.state(candidate, nnx.Param)))
        own = {".".join(map(str, path)): x[...] for path, x in flat.items()}
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
    own_names = weights_of(moves)
    taken, turns = accepted(candidate, config, names), count()

    def with_weights(held: Mapping[str, Any]) -> Any:
        graph, state, counts, rest = nnx.split(candidate, nnx.Param, nnx.RngCount, ...)
        turn = next(turns)
        counts = jax.tree.map(lambda x: x + turn, counts)  # each run draws anew, as a module of torch does
        flat = [(path, x.replace(held[".".join(map(str, path))])) for path, x in nnx.to_flat_state(state)]
        return nnx.merge(graph, nnx.from_flat_state(flat), counts, rest, copy=True)

    def call(held: Mapping[str, Any], leaves: Any, rest: Any, sizes: Any) -> Any:
        function = with_weights(held) if is_module else candidate
        if not is_module and held:
            function = lambda *a, **k: candidate(held, *a, **k)  # noqa: E731 - a name for a partial application
        seen: dict[str, Any] = {}
        given = {**leaves, **rest}
        if is_module:  # whatever it sows: outside of capture Flax warns of that
            sown = nnx.capture(lambda module: invoke(module, given, taken, names, sizes), nnx.Intermediate)
            result, state = sown(function)
            seen = {".".join(map(str, path)): x.get_value() for path, x in nnx.to_flat_state(state)}
            twice = [n for n, x in seen.items() if isinstance(x, tuple) and len(x) > 1]
            for name in twice:
                if any(re.fullmatch(pattern, name) for pattern in names.taps):
                    raise second_run(name)
            seen = {name: x[-1] if isinstance(x, tuple) else x for name, x in seen.items()}
            absent = [p for p in names.taps if not any(re.fullmatch(p, name) for name in seen)]
            if absent:
                raise ValueError(
                    f"assert_parity: expected the module to sow an intermediate named like {absent[0]!r}, got "
                    f"{', '.join(seen) or 'none'}; call self.sow(nnx.Intermediate, name, x) where it is computed"
                )
        else:
            result = invoke(function, given, taken, names, sizes)
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

        if dtype == "float64" and any(narrow_types(jax.make_jaxpr(forward)(held, leaves).jaxpr)):
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
            mapped = {key for step in moves for key in step.keys}
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
