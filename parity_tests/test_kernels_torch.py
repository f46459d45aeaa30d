"""What only PyTorch's fast path has: a kernel or blocks, by what is asked, and rules for `vmap` and `grad`."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from attn_torch import _kernels as kernels
from attn_torch import attend
from parity_tests._inputs import TREES, Arrays, first_difference
from parity_tests._witness import cotangent
from parity_tests.test_kernels import CASES, SIZES, fused, given, held, judged

TORCH = TREES["torch"]


@pytest.fixture(params=["whole", "blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With blocks that these sizes fill several times, the last of them in part: one head in each, or some."""
    if request.param == "blocks":
        monkeypatch.setattr(kernels, "CPU_ROWS", 3)
        monkeypatch.setattr(kernels, "CPU_BLOCK", 70)
    yield


def as_wide(inputs: Arrays) -> Arrays:
    """Keys as wide as the values: what PyTorch's kernels take."""
    return inputs | {name: inputs[name][..., : inputs["v"].shape[-1]] for name in "qk"}


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_pytorchs_path_gives_what_the_textbook_gives(size: str, case: str) -> None:
    inputs, options = given(case, size)
    for some in (inputs, as_wide(inputs)):
        judged(fused(TORCH, some, options), held(some, options))


@pytest.mark.parametrize("case", ["mask", "all"])
def test_what_nobody_sees_may_hold_anything(case: str) -> None:
    inputs, options = given(case)
    inputs = as_wide(inputs)
    want, spoilt = held(inputs, options), {name: x.copy() for name, x in inputs.items()}
    spoilt["q"][0, 2], spoilt["k"][1, 4], spoilt["v"][1, 4] = np.nan, np.nan, np.inf
    found = fused(TORCH, spoilt, options)
    judged(found, want)
    assert first_difference(found, fused(TORCH, inputs, options)) is None, "nor choose another kernel"


@pytest.mark.parametrize("hidden", ["query", "key"])
def test_a_query_or_a_key_by_itself_may_hold_anything(hidden: str) -> None:
    """One that sees nobody while all keys are seen, one that nobody sees while all queries see some."""
    inputs = as_wide(given("full")[0])
    mask, names = np.ones((11, 13), bool), "q" if hidden == "query" else "kv"
    mask[(2, slice(None)) if hidden == "query" else (slice(None), 2)] = False
    inputs["mask"] = mask
    spoilt = {name: x.copy() for name, x in inputs.items()}
    for name in names:
        spoilt[name][:, 2] = np.nan
    found = fused(TORCH, spoilt, {})
    judged(found, held(inputs, {}))
    assert first_difference(found, fused(TORCH, inputs, {})) is None


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_a_hidden_score_may_overflow(name: str) -> None:
    """Of finite numbers, in a key that other queries see: selected, not weighed."""
    inputs, near = as_wide(given("full")[0]), np.tri(11, 13, 2, dtype=bool)
    inputs["q"][:, 2] = 1e200
    inputs["k"][:, 5] = 1e200
    inputs["q"][:, 3:] = 0.0
    inputs[name] = near if name == "mask" else np.where(near, 0.0, -np.inf)
    found = attend(**TORCH.arrays(inputs), implementation="fused")[0]
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_the_kernel_adds_no_bias_that_a_mask_hides(hidden: float) -> None:
    inputs = as_wide(given("bias")[0])
    inputs["mask"] = near = np.tri(11, 13, 2, dtype=bool)
    clean, spoilt = (inputs | {"bias": np.where(near, inputs["bias"], x)} for x in (0.0, hidden))
    with torch.no_grad():
        found, want = (TORCH.numpy(attend(**TORCH.arrays(x), implementation="fused")[0]) for x in (spoilt, clean))
    assert np.array_equal(found, want)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("case", ["causal", "all"])
def test_mapped_gradients(case: str) -> None:
    """`vmap` of `grad`, with keys, bias and sinks that all calls share and queries that each has."""
    inputs, options = given(case)
    inputs = as_wide(inputs)
    dy = TORCH.array(cotangent((*inputs["q"].shape[:-1], inputs["v"].shape[-1])))
    arrays = TORCH.arrays(inputs)
    q, names = arrays.pop("q"), [name for name, x in arrays.items() if x.is_floating_point()]

    def loss(q: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
        return (attend(q, **arrays | dict(zip(names, leaves, strict=True)), **options)[0] * dy).sum()

    every = vmap(grad(loss, tuple(range(1 + len(names)))), (0, *(None for _ in names)))
    found = every(torch.stack([0.5 * q, q]), *(arrays[name] for name in names))
    for i, factor in enumerate((0.5, 1.0)):
        want = held(inputs | {"q": factor * inputs["q"]}, options)
        del want["context"]
        judged({f"d{name}": TORCH.numpy(x[i]) for name, x in zip(["q", *names], found, strict=True)}, want)


def test_second_derivatives_are_refused() -> None:
    inputs, options = given("window")
    arrays = {name: x.requires_grad_() for name, x in TORCH.arrays(inputs).items()}
    y = attend(**arrays, **options)[0]
    (dq,) = torch.autograd.grad((y * y).sum(), arrays["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="implementation='textbook'"):
        torch.autograd.grad(dq.sum(), arrays["q"])
