"""The cases that a kernel is asked: within its limits, the edges first, then drawn over all options."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from parity_tests.kernels.likes import Like
from parity_tests.kernels.limits import Limits
from parity_tests.kernels.patterns import PATTERN_KINDS
from parity_tests.kernels.specs import STYLES, Spec, empty_rows

# Drawn cases in a row that the limits do not take, after which they are said to leave none.
MISSES = 2000
# Lengths of most cases are those around the block, or around this where blocks are larger: such cases are cheap, and
# one case in four is large.
SHORT = 16
# Large cases cost about a second at most: queries times keys times heads times widths; of a recurrence, whose bound
# multiplies transitions, positions squared times the width cubed.
MOST = {"scores": 2**22, "recurrent": 2**25}
WIDE = (64, 128, 72)
FURTHER = "scores further below 0"
HEADS = ((1, 1), (2, 2), (2, 1), (4, 2), (6, 2), (3, 1), (6, 3))


def lengths_of(limits: Limits, keys: bool) -> tuple[int, ...]:
    """Lengths around the blocks, from the shortest."""
    n = min(limits.block, SHORT)
    wanted = (0, 1, 2, 3, n - 1, n, n + 1, 2 * n - 3, 2 * n, 2 * n + 5, 3 * n)
    return tuple(sorted((limits.keys if keys else limits.queries).among(wanted)))


def long_of(limits: Limits, keys: bool) -> tuple[int, ...]:
    """Lengths of large cases: around the block of the limits, those first that tell most."""
    n = limits.block
    return (limits.keys if keys else limits.queries).among((n + 1, 2 * n + 5, n, n - 1, 2 * n, 3 * n))


def widths_of(limits: Limits) -> tuple[tuple[int, int], ...]:
    """Widths of keys and values."""
    heads = limits.head_dims.among((8, 16, 3, 24, 32))
    if limits.value_dims is None:
        return tuple((d, d) for d in heads)
    values = limits.value_dims.among((8, 16, 5, 24, 40))
    return (
        *((d, d if d in limits.value_dims else v) for d, v in zip(heads, values, strict=False)),
        (heads[0], values[-1]),
    )


def wide_of(limits: Limits) -> tuple[tuple[int, int], ...]:
    """Widths of keys and values beyond what a block, or a register, holds."""
    heads = limits.head_dims.among(WIDE)
    if limits.value_dims is None:
        return tuple((d, d) for d in heads)
    values = limits.value_dims.among(WIDE)
    return (*((d, d) for d in heads if d in limits.value_dims), (heads[0], values[-1]))


def heads_of(limits: Limits) -> tuple[tuple[int, int], ...]:
    """Numbers of query heads and of key heads."""
    found = tuple((h, g) for h, g in HEADS if h in limits.heads and h // g in limits.groups)
    if found:
        return found
    h, r = limits.heads.among((1,))[0], limits.groups.among((1,))[0]
    return ((max(h, r), max(h, r) // r),)


def allowed(spec: Spec, like: Like, limits: Limits) -> bool:
    """Whether a kernel of a signature, with these limits, takes the case."""
    asked = spec.options | ({"gradients"} if spec.grads else set())
    if not spec.options <= options_of(like, limits) or any(set(pair) <= asked for pair in limits.apart):
        return False
    sizes = (
        spec.b in limits.batch or spec.kind == "packed", spec.d in limits.head_dims, spec.h in limits.heads,
        spec.h // spec.g in limits.groups, spec.dv in limits.value_dims if limits.value_dims else spec.dv == spec.d,
        spec.h % spec.g == 0, not (like.same_lengths and spec.t != spec.s),
    )  # fmt: skip
    if (
        not all(sizes)
        or spec.dtype not in limits.dtypes
        or (spec.scale is not None and spec.scale not in limits.scales)
    ):
        return False
    if spec.of_q is None and (spec.t not in limits.queries or spec.s not in limits.keys):
        return False
    for starts, of in ((spec.of_q, limits.queries), (spec.of_k, limits.keys)):
        each = np.diff(starts).tolist() if starts is not None else ()
        if any(n not in of and not (n == 0 and limits.empty_sequences) for n in each):
            return False
    if "softcap" in spec.options and "bias" in spec.options and limits.order != ("scale", "cap", "bias"):
        return False
    # A cap before the scale is passed as cap / scale.
    if spec.softcap is not None and spec.scale == 0 and limits.order.index("cap") < limits.order.index("scale"):
        return False
    none = empty_rows(spec, limits)
    if none is not None and limits.empty_rows != "zero" and not spec.sinks and np.any(none):
        return limits.empty_rows != "undefined" and not spec.grads
    return not (none is not None and limits.empty_rows == "undefined" and np.any(none))


def options_of(like: Like, limits: Limits) -> frozenset[str]:
    """What may be asked for: of the signature's options those that the kernel takes."""
    return frozenset(like.takes if limits.options is None else set(like.takes) & set(limits.options))


def specs(like: Like, limits: Limits, seed: int = 0) -> Iterator[Spec]:
    """Cases without end: lengths at the edges, each option alone and all of them drawn together, in turn.

    They end where the limits leave none: `MISSES` in a row were drawn in vain.
    """
    rng = np.random.default_rng(seed)
    n, misses = 0, 0
    while limits.dtypes and misses < MISSES:
        for dtype in limits.dtypes:
            draw, of_them = (large, n // 4) if n % 4 == 3 else (drawn, n - n // 4)
            spec = draw(like, limits, dtype, of_them, rng)
            misses += 1
            if allowed(spec, like, limits):
                misses = 0
                yield spec
        n += 1


def drawn(like: Like, limits: Limits, dtype: str, n: int, rng: np.random.Generator) -> Spec:
    """The nth case of a type that is not large."""
    of_q, of_k, takes = lengths_of(limits, False), lengths_of(limits, True), sorted(options_of(like, limits))
    kind = like.kinds[n % len(like.kinds)]
    # In turn lengths at the edges, one option alone, and all drawn together: slow kernels get some of each.
    turn, i = n % 3, n // 3
    first, alone = turn == 0 and i < 4 * len(of_q), turn == 1 and i < 8 * len(takes)
    t, s = int(rng.choice(of_q)), int(rng.choice(of_k))
    if first:
        t, s = of_q[i // 4 % len(of_q)], of_k[(i // 4 + (0, 0, 1, -1)[i % 4]) % len(of_k)]
    asked = set()
    if alone:
        asked = {takes[i % len(takes)]}
        if asked & {"causal", "window", "slopes"} and i // len(takes) % 2 and "unequal lengths" in takes:
            asked |= {"unequal lengths"}  # on which their positions depend
    elif not first:
        asked = {name for name in takes if rng.random() < 0.3}
    elif i % 4 in (1, 3) and "causal" in takes:
        asked = {"causal"}
    if "unequal lengths" not in takes or (not first and not {"unequal lengths"} & asked) or like.same_lengths:
        s = t if t in limits.keys else s
    h, g = one_of(heads_of(limits), "grouped" in asked, rng)
    d, dv = one_of(widths_of(limits), "value width" in asked, rng)
    b = limits.batch.among((1, 2, 3))[rng.integers(len(limits.batch.among((1, 2, 3))))]
    style = tuple(STYLES)[rng.integers(len(STYLES))] if not first and kind != "recurrent" else "ordinary"
    spec = Spec(kind, dtype, n, b, t, s, h, g, d, dv, style=style)
    return with_options(like, limits, spec, asked, (of_q, of_k), rng)


def large(like: Like, limits: Limits, dtype: str, n: int, rng: np.random.Generator) -> Spec:
    """The nth large case: lengths around the block of the limits, wide heads in turn, few rows and heads."""
    of_q, of_k, takes = long_of(limits, False), long_of(limits, True), sorted(options_of(like, limits))
    kind, i, turn = like.kinds[n % len(like.kinds)], n // 2, (n + n // (2 * len(of_q))) % 3
    # The first of each length as simple as it gets; then one option alone, and all drawn together.
    asked = {takes[n // 3 % len(takes)]} if turn == 1 and takes else set()
    asked = {name for name in takes if rng.random() < 0.3} if turn == 2 else asked
    narrow = (*widths_of(limits)[:2], widths_of(limits)[-1])
    d, dv = one_of(narrow if n % 2 == 0 else wide_of(limits), "value width" in asked, rng)
    heads = [pair for pair in heads_of(limits) if pair[0] <= 2] or heads_of(limits)[:1]
    h, g = one_of(heads[-1:] if "grouped" in asked else heads[:1], "grouped" in asked, rng)
    unequal = "unequal lengths" in takes and not like.same_lengths
    if not unequal or kind == "packed":
        of_q, of_k = (
            tuple(m for m in of if cost(kind, m, m, h, d, dv) <= 1) or lengths_of(limits, keys)[:5]
            for of, keys in ((of_q, False), (of_k, True))
        )
    t, s = of_q[i % len(of_q)], of_k[i % len(of_k)]
    if not unequal:
        s = t if t in limits.keys else s
    elif asked & {"unequal lengths", "causal", "window", "slopes"} or cost(kind, t, s, h, d, dv) > 1:
        few_q, few_k = (int(rng.choice(lengths_of(limits, keys))) for keys in (False, True))
        t, s = (few_q, s) if rng.random() < 0.5 else (t, few_k)
    style = tuple(STYLES)[rng.integers(len(STYLES))] if turn == 2 and kind != "recurrent" else "ordinary"
    spec = Spec(kind, dtype, n, limits.batch.among((1,))[0], t, s, h, g, d, dv, style=style)
    return with_options(like, limits, spec, asked, (of_q, of_k), rng)


def cost(kind: str, t: int, s: int, h: int, d: int, dv: int) -> float:
    """What a large case costs, as a share of the most."""
    return t**2 * d**3 / MOST["recurrent"] if kind == "recurrent" else t * s * h * (d + dv) / MOST["scores"]


def one_of(pairs: Sequence[tuple[int, int]], unlike: bool, rng: np.random.Generator) -> tuple[int, int]:
    """One of the pairs, if there is one of two numbers that are unlike, or alike."""
    pairs = [pair for pair in pairs if (pair[0] != pair[1]) == unlike] or pairs
    return pairs[int(rng.integers(len(pairs)))]


def with_options(
    like: Like, limits: Limits, spec: Spec, asked: set[str], lengths: Sequence[Sequence[int]], rng: np.random.Generator
) -> Spec:
    """The case with the options that are asked for, whose packed sequences have some of these lengths."""
    kind, takes, b, t, s = spec.kind, options_of(like, limits), spec.b, spec.t, spec.s
    grads = not limits.forward_only and bool(like.differentiable) and (rng.random() < 0.7)
    scale = limits.scales[rng.integers(len(limits.scales))] if "scale" in asked else None
    spec = replace(
        spec, scale=scale, causal="causal" in asked, slopes="slopes" in asked, sinks="sinks" in asked,
        grads=grads and (spec.style != FURTHER or spec.seed % 4 == 0),
        strided=limits.strides and rng.random() < 0.3, poison=limits.unread if rng.random() < 0.5 else (),
    )  # fmt: skip
    if "window" in asked:
        left, right = (
            None if rng.random() < 0.25 else int(rng.choice([0, 1, 3, limits.block, s, s + 3])) for _ in "lr"
        )
        spec = replace(spec, window=(left, right))
    if "mask" in asked:
        spec = replace(spec, mask=axes_of(("ts", "bhts", "b11s"), limits, rng))
    if "bias" in asked:
        holds = limits.bias_holds[rng.integers(len(limits.bias_holds))] if limits.bias_holds else ""
        spec = replace(
            spec,
            bias=axes_of(("bhts", "ts") if limits.broadcast else ("bhts",), limits, rng),
            bias_holds=holds if rng.random() < 0.4 and t and s else "",
        )
    if "pattern" in asked:
        spec = replace(spec, pattern=int(rng.integers(PATTERN_KINDS)))
    if "softcap" in asked:
        spec = replace(spec, softcap=float(rng.choice([1.0, 15.0, 50.0])))
    if "dropout" in asked:
        spec = replace(spec, rate=0.5)
    if kind == "recurrent":
        gate = "channel" if "channel gate" in asked else "head" if "gate" in asked else ""
        gates = {"gate", "channel gate"} & takes
        rules = [r for r in like.rules if ("beta" in takes or "delta" not in r) and (gates or "gated" not in r)]
        rule = (rules or like.rules)[rng.integers(len(rules or like.rules))]
        gate = ("head" if "gate" in takes else "channel") if "gated" in rule and not gate else gate
        spec = replace(spec, rule=rule, gate=gate if "gated" in rule else "", state="state" in asked, s=t)
        spec = replace(spec, beta="delta" in rule)
    if kind == "packed" or (kind == "recurrent" and like.packs and rng.random() < 0.4):
        spec = packed(spec, limits, lengths, rng)
    if kind == "paged":
        page = int(rng.choice(limits.page_sizes))
        s = -(-max(s, 1) // page) * page
        spec = replace(spec, page=page, s=s, lengths=tuple(int(x) for x in rng.integers(1, s + 1, b)))
    elif "lengths" in asked:
        spec = replace(spec, lengths=tuple(int(x) for x in rng.integers(0, s + 1, b)))
    if limits.lse_gradient and limits.lse and spec.grads and rng.random() < 0.4 and like.lse:
        spec = replace(spec, dlse=True)
    if kind == "recurrent" and limits.last_gradient and spec.grads and rng.random() < 0.4:
        spec = replace(spec, dlast=True)
    return spec


def axes_of(choices: Sequence[str], limits: Limits, rng: np.random.Generator) -> str:
    """Axes of a mask or a bias; where the limits allow it one in three is 1."""
    choices = choices if limits.broadcast else choices[:2]
    axes = choices[int(rng.integers(len(choices)))]
    return "".join(axis if not limits.broadcast or rng.random() < 2 / 3 else "1" for axis in axes)


def packed(spec: Spec, limits: Limits, lengths: Sequence[Sequence[int]], rng: np.random.Generator) -> Spec:
    """The case with several sequences in one row, some of them empty or with one token."""
    count = int(rng.integers(1, 5))
    each_q, each_k = (rng.choice(of, count) for of in lengths)
    if limits.empty_sequences:
        each_q, each_k = (np.where(rng.random(count) < 0.25, 0, x) for x in (each_q, each_k))
    each_k = each_q if limits.packed_alike or spec.kind == "recurrent" or rng.random() < 0.5 else each_k
    while len(each_q) > 1 and cost(spec.kind, sum(each_q), sum(each_k), spec.h, spec.d, spec.dv) > 1:
        each_q, each_k = each_q[1:], each_k[1:]
    if not sum(each_q) or not sum(each_k):
        each_q = each_k = np.array([min(limits.block, SHORT) + 1])
    of_q, of_k = ((0, *(int(x) for x in np.cumsum(each))) for each in (each_q, each_k))
    return replace(spec, b=1, t=of_q[-1], s=of_k[-1], of_q=of_q, of_k=of_k)
