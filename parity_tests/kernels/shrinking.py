"""Smaller cases near a case: fewer tokens, heads and options."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, chain, pairwise

from parity_tests.kernels.drawing import SHORT
from parity_tests.kernels.limits import Limits
from parity_tests.kernels.specs import Spec


def without_options(spec: Spec) -> Iterator[Spec]:
    """The case with one option fewer."""
    plain = {
        "strided": False, "poison": (), "style": "ordinary", "dlse": False, "dlast": False, "mask": "",
        "bias_holds": "", "bias": "", "pattern": None, "slopes": False, "sinks": False, "softcap": None,
        "rate": 0.0, "window": None, "causal": False, "scale": None, "state": False, "grads": False,
    }  # fmt: skip
    for name, value in plain.items():
        if getattr(spec, name) != value:
            given = {name: value} | ({"dlse": False, "dlast": False} if name == "grads" else {})
            yield replace(spec, **given)
    if spec.lengths is not None and not spec.page:
        yield replace(spec, lengths=None)


def smaller(spec: Spec, limits: Limits) -> Iterator[Spec]:
    """Cases that are smaller by one step, the largest steps first."""
    if spec.b > 1:
        fewer = None if spec.lengths is None else spec.lengths[:1]
        yield replace(spec, b=1, lengths=fewer)
        if spec.lengths is not None:
            yield replace(spec, b=1, lengths=spec.lengths[-1:])
    if spec.of_q is not None:
        yield from fewer_sequences(spec, limits)
    for h, g in ((1, 1), (2, 1), (2, 2), (4, 2)):
        if h * g < spec.h * spec.g:
            yield replace(spec, h=h, g=g)
    if spec.of_q is None:
        yield from fewer_tokens(spec, limits)
    yield from without_options(spec)
    for d in limits.head_dims.among((1, 8, 16)):
        if d < spec.d:
            yield replace(spec, d=d, dv=d if limits.value_dims is None else spec.dv)
            if spec.d == spec.dv:  # where both must be equal
                yield replace(spec, d=d, dv=d)
    if limits.value_dims is not None:
        for dv in limits.value_dims.among((1, 8, 16)):
            if dv < spec.dv:
                yield replace(spec, dv=dv)


def lengths_of(starts: tuple[int, ...]) -> list[int]:
    """The lengths of packed sequences."""
    return [b - a for a, b in pairwise(starts)]


def fewer_sequences(spec: Spec, limits: Limits) -> Iterator[Spec]:
    """The case without one of its packed sequences, or with a shorter one."""
    of_q, of_k = lengths_of(spec.of_q or ()), lengths_of(spec.of_k or spec.of_q or ())
    found = [(of_q[:n] + of_q[n + 1 :], of_k[:n] + of_k[n + 1 :]) for n in range(len(of_q))]
    for n in range(len(of_q)):
        for count in short(limits):
            q, k = ([*of[:n], min(count, of[n]), *of[n + 1 :]] for of in (of_q, of_k))
            found += [(q, k)] if of_q == of_k else [(q, k), (q, of_k), (of_q, k)]
    for q, k in found:
        if sum(q) + sum(k) < sum(of_q) + sum(of_k) and sum(q) and sum(k):
            starts = [(0, *accumulate(of)) for of in (q, k)]
            yield replace(spec, of_q=starts[0], of_k=starts[1], t=sum(q), s=sum(k))


def short(limits: Limits) -> list[int]:
    """Lengths that cases are made as short as."""
    around = ((n // 2, n - 1, n, n + 1, n + 2, 2 * n - 1, 2 * n) for n in {limits.block, min(limits.block, SHORT)})
    return sorted({1, 2, 3, 4, *chain(*around)})


def fewer_tokens(spec: Spec, limits: Limits) -> Iterator[Spec]:
    """The case with fewer queries, fewer keys, or fewer of both."""
    for count in short(limits):
        if spec.kind == "recurrent" or spec.t == spec.s:
            if count < spec.t:
                lengths = None if spec.lengths is None else tuple(min(x, count) for x in spec.lengths)
                yield replace(spec, t=count, s=count if not spec.page else spec.s, lengths=lengths)
            continue
        if count < spec.t:
            yield replace(spec, t=count)
        if count < spec.s and not spec.page:
            lengths = None if spec.lengths is None else tuple(min(x, count) for x in spec.lengths)
            yield replace(spec, s=count, lengths=lengths)
    if spec.page and spec.s > spec.page:
        s = spec.s - spec.page
        yield replace(spec, s=s, lengths=tuple(min(x, s) for x in spec.lengths or ()))
