"""`attend` at the sizes of ordinary calls: `sizes` draws them."""

from typing import Any

import numpy as np
import pytest
import torch

import attn_torch
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES
from parity_tests.tests.kernels import sizes
from parity_tests.tests.kernels.sizes import Call, drawn, expected, found, judged_part, verdict
from parity_tests.tests.witness import ratio

CASES = {"numpy": 24, "torch": 24, "jax": 3}
TENTHS = {f"tenth {n}": n for n in range(10)}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("row", TENTHS)
def test_some_dozen_calls(tree: str, row: str) -> None:
    """By default one tenth of the calls. `python -m parity_tests.tests.kernels.sizes` asks thousands."""
    first = TENTHS[row] * CASES[tree]
    wrong = [verdict(seed, tree) for seed in range(first, first + CASES[tree])]
    assert not any(wrong), next(filter(None, wrong))


def test_an_interrupted_sweep_says_how_far_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with which seed it goes on."""

    def verdict(seed: int, *_: Any, **__: Any) -> str | None:
        if seed == 33:
            raise KeyboardInterrupt
        return "wrong" if seed == 31 else None

    monkeypatch.setattr(sizes, "verdict", verdict)
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        sizes.main(["numpy", "--first", "30", "--cases", "10"], lines.append)
    assert lines == ["wrong", "numpy: 3 cases from seed 30, 1 wrong; to go on: --first 33 --cases 7"]


def test_a_call_in_words_whatever_it_asks_for() -> None:
    """Offsets and lengths are arrays."""
    said = [str(drawn(seed)) for seed in range(200)]
    assert any("'offset': array" in text for text in said)
    assert any("'lengths': array" in text for text in said)


@pytest.mark.parametrize("tree", ["numpy", "torch"])
def test_in_many_small_blocks(tree: str) -> None:
    """Hundreds of them, for terms of any steepness beside masks and patterns."""
    seeds = [seed for seed in range(1000, 1100) if 2**11 < drawn(seed).num_scores < 2**15]
    wrong = [verdict(seed, tree, kernels.SMALL[tree][0]) for seed in seeds[:12]]
    assert not any(wrong), next(filter(None, wrong))


@pytest.mark.parametrize("t", [128, 200])
def test_relative_terms_of_more_queries_than_keys(t: int) -> None:
    """In PyTorch, where the scores are many, gradients are asked and a block has more queries than there are keys."""
    layer = attn_torch.build("t5_bias", d_model=64, num_heads=8)
    x, memory = torch.randn(8, t, 64), torch.randn(8, 50, 64)
    y = layer(x, memory)
    want, _ = attn_torch.trace(layer, x, memory)
    bound = 1000 * torch.finfo(torch.float32).eps * want.abs().max()  # sums of 64 follow each other, four of them
    assert (y - want).abs().max() <= bound
    assert torch.autograd.grad(y.sum(), layer.w_bias)[0].isfinite().all()


@pytest.mark.parametrize("slope", [0.5, 40.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_weight_that_is_a_normal_number_reaches_its_value(dtype: torch.dtype, slope: float) -> None:
    """In PyTorch's backward pass, which leaves out keys and weights that are too small. All products are 0 here."""
    t, h, s = 64, 4, 6000
    x, slopes = torch.zeros(1, s, h, 8, dtype=dtype), torch.full((h,), slope, dtype=dtype)
    v = x.clone().requires_grad_()
    context, _ = attn_torch.attend(x[:, -t:], x, v, terms=attn_torch.terms.Slopes(slopes))
    (dv,) = torch.autograd.grad(context.sum(), v)
    weights = torch.softmax(-slope * torch.arange(s - t + 1).double().flip(0), 0)  # of the first query
    normal = weights > 2 * torch.finfo(dtype).tiny
    assert 1 < normal.sum() < len(normal)
    assert (dv[0, : s - t + 1][normal] > 0).all()


# Sizes of a call, its slopes, and the largest product of a query and a key: so large that a key which is far away, and
# fits its query, outweighs near ones; and so small that bounds of the scores serve for their largest, with keys so far
# that what they weigh is hardly a normal number.
FAR = {"large products": (512, 512, 0.9, 80.0), "small weights": (256, 2048, 0.0797, 14.9)}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("case", FAR)
def test_far_keys_weigh_what_their_own_head_gives_them(tree: str, case: str) -> None:
    """Queries and keys of the first head are near 0, and no bound of its scores may serve for another head."""
    (t, s, slope, largest), rng, h = FAR[case], np.random.default_rng(0), 3
    far = np.arange(s) < (512 if s > t else 32)
    along, size = np.array([1.0, 0.0, 0.0, 0.0]), np.array([1e-3, 1.0, 0.9])[:, None] * np.sqrt(2 * largest)
    q = np.broadcast_to(along, (1, t, h, 4)) * size
    k = np.where(far, 1.0, -1.0)[:, None, None] * along * size
    noise = 1e-3 * rng.normal(size=(1, s, h, 4)) * (1 - along)
    arrays = {"q": 0.999 * q, "k": 0.999 * k[None] + noise, "v": rng.normal(size=(1, s, h, 8))}
    arrays["slopes"] = np.full(h, slope)
    arrays = {name: x.astype(np.float32) for name, x in arrays.items()}
    apart = np.arange(s) - (np.arange(t)[:, None] + (s - t))
    options = {"causal": False, "window": None, "softcap": None}
    dy = rng.normal(size=(1, t, h, 8)) * np.array([0.0, 1.0, 0.0])[:, None]
    for with_grad in (False, True):
        pairs = np.full((t, s), True)
        call = Call(arrays, options, pairs, apart, 0, 1, with_grad, dy.astype(np.float32))
        got, want = found(call, tree), expected(call, tree)
        ratios = {name: ratio(x, want[name.removesuffix(" alone")]) for name, x in judged_part(call, got).items()}
        assert max(ratios.values()) <= 1, ratios
    reached = np.abs(got["dv"][0, far, 1]).min(1) > 0
    assert reached.any()


@pytest.mark.parametrize("sink", [-1e4, -300.0, 0.0, 300.0])
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("sizes", [(260, 700), (26, 70)])
def test_the_lse_of_a_row_that_sees_nothing_is_its_sink(name: str, sink: float, sizes: tuple[int, int]) -> None:
    """However far from the scores of other rows it lies, in long calls and in many small blocks.

    To the bit, but where weights are powers of 2: there a sink is multiplied by log2(e) and divided by it again.
    """
    tree, rng, (t, s) = TREES[name], np.random.default_rng(0), sizes
    q, k = (tree.array(rng.normal(size=(1, n, 2, 4))) for n in (t, s))
    mask, sinks = np.ones((t, s), bool), np.array([sink, sink / 3])
    mask[5:9] = mask[t * 3 // 4 :] = False
    options: dict[str, Any] = {"mask": tree.array(mask), "sinks": tree.array(sinks), "return_lse": True}
    with kernels.blocks(tree.package.__name__, kernels.SMALL[name][0] if t < 100 else {}):
        context, _, lse = tree.package.attend(q, k, k, **options)
    empty = ~mask.any(1)
    want = np.repeat(sinks[:, None], empty.sum(), 1)
    roundings = 2 * np.finfo(np.float64).eps if name == "numpy" else 0.0
    assert (np.abs(tree.numpy(lse)[0][:, empty] - want) <= roundings * np.abs(want)).all()
    assert not tree.numpy(context)[0, empty].any()
    assert np.isfinite(tree.numpy(lse)).all()
