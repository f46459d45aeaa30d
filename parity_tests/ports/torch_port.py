"""Ports in PyTorch: a module, listened to by forward hooks, or a function of tensors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from parity_tests.judge.candidates import Candidate, Outcome, accelerators, collect, from_torch, scoped, to_torch
from parity_tests.judge.cases import Case, Drawn
from parity_tests.ports.arguments import accepted, needed, not_given
from parity_tests.ports.names import (
    Names,
    in_our_axes,
    invoke,
    letters_of,
    refuse_unmapped,
    returned,
    second_run,
    tapped,
    theirs_of,
)
from parity_tests.ports.port import MissingDeviceError, Port, pulling, refuse_unknown
from parity_tests.ports.watch import Watch, written
from parity_tests.ports.weights import of_rules, read_weights, weights_of
from parity_tests.ports.zero_key import refuse_zero_key


def torch_port(candidate: Any, config: Config, names: Names, dtype: str | None, device: str | None) -> Port:
    """A torch module, by its parameters and forward hooks; or a function of tensors."""
    import torch

    from parity_tests.ports.watch_torch import Watching, narrower, words_of

    is_module = isinstance(candidate, torch.nn.Module)
    wanted = None if device is None else torch_device(device)
    frozen = is_module and not all(x.requires_grad for x in candidate.parameters())
    watch = Watch()
    notes: dict[str, None] = {}
    if is_module and dtype == "float64":
        rounded = [(n, x) for n, x in candidate.named_buffers() if narrower(x) and not written(from_torch(x))]
        watch.forward |= {f"buffer {name} of {words_of(x.dtype)}": None for name, x in rounded}
        watch.suspected = bool(rounded)
    if is_module and (dtype or wanted or frozen):
        candidate = deepcopy(candidate).to(device=wanted, dtype=getattr(torch, dtype) if dtype else None)
        for x in candidate.parameters():  # frozen ones too: their gradients are judged
            x.requires_grad_(x.is_floating_point())
    own = dict(candidate.named_parameters()) if is_module else {}
    floats = [x for x in own.values() if x.is_floating_point()]
    dtype = dtype or (str(floats[0].dtype).rpartition(".")[2] if floats else "float32")
    where: Any = floats[0].device if floats else wanted or torch.device("cpu")
    params, moves = None, []
    if is_module:
        refuse_zero_key("assert_parity", candidate, (config.variant,))
        params, moves = read_weights(names.weights, config, {n: from_torch(x) for n, x in own.items()}, notes)
    taken = accepted(candidate, config, names)

    @torch.enable_grad()
    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        sizes, outcome = letters_of(case, drawn), Outcome()
        given = {name: to_torch(x, where) for name, x in drawn.inputs.items()}
        leaves = {name: x.requires_grad_() for name, x in given.items() if x.is_floating_point()}
        given = {name: x.clone() for name, x in given.items()}  # a candidate may write into what it gets
        weights = {} if is_module else {name: to_torch(x, where) for name, x in drawn.params.items()}
        weights = {name: x.requires_grad_() for name, x in weights.items()}
        copies = {name: x.clone() for name, x in weights.items()}
        function = candidate if is_module or not weights else lambda *a, **k: candidate(copies, *a, **k)
        watching = Watching(watch, dtype == "float64")
        watched = watching if dtype == "float64" or watch.hidden is not None else nullcontext()
        with (
            hooked(candidate, names) if taped and is_module else nothing() as seen,
            watched,
            torch.set_grad_enabled(names.gradients),
        ):
            outputs, tape = returned(invoke(function, given, taken, names, sizes), names, sizes, notes)
        tape |= dict(tapped(seen, names))
        outcome.names |= theirs_of(seen, names) | weights_of(moves)
        strange = [f"{name} {type(x).__name__}" for name, x in (outputs | tape).items() if not torch.is_tensor(x)]
        if strange:
            raise TypeError(
                f"assert_parity: expected tensors from the candidate, got {', '.join(strange)}; "
                f"take the tensor out of it with call="
            )
        used = {name: own[name] for step in moves for name in step.keys if name in own}
        other = {name: x for name, x in own.items() if name not in used and x.requires_grad}
        taps = {name: x for name, x in tape.items() if x.requires_grad}
        targets = [*leaves.values(), *weights.values(), *used.values(), *other.values(), *taps.values()]
        collect(outcome, "outputs", outputs, from_torch)
        collect(outcome, "tape", in_our_axes(tape, names, sizes), from_torch)
        dys = pulling(outputs, drawn)
        if targets and dys is not None and names.gradients:
            # What does not depend on anything has the gradient 0: a cut is a difference, and is told as one.
            through = {name: x for name, x in dys.items() if outputs[name].requires_grad}
            pull = [to_torch(x, where).to(outputs[name].dtype) for name, x in through.items()]
            sources = [outputs[name] for name in through]
            watching.backward = True
            with watched:
                pulled = torch.autograd.grad(sources, targets, pull, allow_unused=True) if through else ()
            found = pulled or [None] * len(targets)
            named = (("own", used), ("other", other), ("tap", taps))
            keys = [*leaves, *weights, *((kind, name) for kind, part in named for name in part)]
            # A tap that no output is made of, as a copy with its axes moved, has no gradient that could be judged.
            taps = {name: x for name, x in taps.items() if found[keys.index(("tap", name))] is not None}
            found = [torch.zeros_like(x) if g is None else g for x, g in zip(targets, found, strict=True)]
            by_key = dict(zip(keys, found, strict=True))
            refuse_unmapped({name: from_torch(by_key["other", name]) for name in other}, notes)
            grads = {f"d{name}": by_key[name] for name in (*leaves, *weights)}
            collect(outcome, "grads", grads, from_torch)
            theirs = {name: from_torch(by_key["own", name]) for name in used}
            mine = {f"d{name}": x for name, x in of_rules(moves, theirs).items()}
            collect(outcome, "grads", mine, np.asarray)
            moved = in_our_axes({name: by_key["tap", name] for name in taps}, names, sizes)
            collect(outcome, "cotangents", {scoped(name): x for name, x in moved.items()}, from_torch)
        return outcome

    kind = "module" if is_module else "function"
    return Port(
        Candidate("your torch", kind, where.type, run),
        params,
        dtype,
        tuple(taken),
        needed(candidate, config, names, taken),
        not_given(candidate, config, names, taken),
        watch,
        notes,
    )


def torch_device(name: str) -> Any:
    import torch

    kind = name.partition(":")[0]
    known = ["cpu", *accelerators("torch")]
    refuse_unknown("torch", kind, ("cpu", "cuda", "mps", "xpu"))
    if kind not in known:
        raise MissingDeviceError(f"device: expected one of {', '.join(known)}, got {name!r}; torch finds no other here")
    return torch.device(name)


@contextmanager
def nothing() -> Iterator[dict[str, Any]]:
    yield {}


@contextmanager
def hooked(module: Any, names: Names) -> Iterator[dict[str, Any]]:
    """Forward hooks on the submodules that a tap's pattern finds; their outputs by the submodule's name.

    The module goes on with a copy, so that what it writes into it later is not seen here.
    """
    import torch

    seen: dict[str, Any] = {}
    known = dict(module.named_modules())
    handles = []
    for pattern in names.taps:
        found = [name for name in known if re.fullmatch(pattern, name)]
        if not found:
            raise ValueError(
                f"assert_parity: expected a submodule named like {pattern!r} in taps=, got none; "
                f"{contract.did_you_mean(pattern, tuple(name for name in known if name))}"
            )
        for name in found:

            def keep(_: Any, __: Any, out: Any, name: str = name) -> Any:
                first = out[0] if isinstance(out, tuple) and out else out
                if not torch.is_tensor(first):
                    return out
                if name in seen:
                    raise second_run(name)
                seen[name] = first
                return first.clone() if first is out else (first.clone(), *out[1:]) if type(out) is tuple else out

            handles.append(known[name].register_forward_hook(keep))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
