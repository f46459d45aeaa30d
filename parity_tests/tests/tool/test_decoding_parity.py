"""Steps with a cache of one's own: right ones pass, and what is wrong with a cache has a name."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import attn_torch
from attn_np import contract
from parity_tests import ParityError, assert_decoding_parity

ROOT = Path(__file__).resolve().parents[3]
ROTARY = {"d_model": 12, "num_heads": 3, "causal": True}


def turned(x: Any, positions: np.ndarray) -> np.ndarray:
    """Rotary embedding of four dimensions, the two halves of a head as pairs."""
    angles = positions[:, None] * 10000.0 ** (-np.arange(2) / 2)
    cos, sin = np.cos(angles)[None, :, None], np.sin(angles)[None, :, None]
    a, b = x[..., :2], x[..., 2:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def step(params: Any, x: Any, cache: Any, wrong: str = "") -> Any:
    """One step with arrays of fixed length, as people write them, `wrong` in the way of a name after the prompt."""
    kinds = ("q", "k", "v")
    q, k, v = (np.einsum("btd,dhk->bthk", x, params[f"w_{n}"]) + params[f"b_{n}"] for n in kinds)
    done, n = cache["done"], x.shape[1]
    wrong = wrong if done else ""
    start = done - (wrong == "length")
    at = start + np.arange(n) + {"plus": 1, "minus": -1, "restart": -done}.get(wrong, 0)
    q, k = turned(q, at), turned(k, at)
    slot = start + {"late": 1, "early": -1}.get(wrong, 0)
    for name, new in (("k", k), ("v", v)):
        room = cache[name][:, slot : slot + n].shape[1]
        cache[name][:, slot : slot + n] = new[:, :room]
    seen = np.arange(cache["k"].shape[1])
    reach = start + np.arange(n)[:, None] + {"newest": -1, "future": 1}.get(wrong, 0)
    mask = (seen <= reach) & (seen < start + n)
    if wrong == "forget":
        mask &= seen >= start
    scores = np.where(mask, np.einsum("bthk,bshk->bhts", q, cache["k"]) / 2, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("bhts,bshk->bthk", e / e.sum(-1, keepdims=True), cache["v"])
    return np.einsum("bthk,hkd->btd", y, params["w_o"]) + params["b_o"], cache | {"done": start + n}


def empty(_: Any, b: int, room: int) -> Any:
    return {"k": np.zeros((b, room, 3, 4)), "v": np.zeros((b, room, 3, 4)), "done": 0}


def judged(wrong: str) -> Any:
    return assert_decoding_parity(
        lambda params, x, cache: step(params, x, cache, wrong),
        "rotary",
        ROTARY,
        step=lambda f, x, cache: f(x, cache),
        init=empty,
    )


def test_a_right_cache_agrees_with_the_full_pass_and_with_our_steps() -> None:
    verdict = judged("")
    assert [row.elements for row in verdict.rows] == [2 * 11 * 12] * 2
    assert verdict.worst.ratio <= 1
    assert verdict.notes == ["gradients not judged: a function of NumPy arrays has none of its own"]


@pytest.mark.parametrize(
    ("wrong", "name"),
    {
        "plus": "cache position one too large",
        "minus": "cache position one too small",
        "restart": "positions start again at 0 in every step",
        "late": "keys and values written one slot too late",
        "early": "keys and values written one slot too early",
        "newest": "the newest key is not seen",
        "future": "one key of the future is seen",
        "forget": "the cache is not seen",
        "length": "cache length one too small",
    }.items(),
)
def test_a_mistake_with_the_cache_is_named(wrong: str, name: str) -> None:
    with pytest.raises(ParityError, match="first wrong at position 5, in step 1 after the prompt") as caught:
        judged(wrong)
    assert caught.value.finding.causes[0].name == name


class Stepping(torch.nn.Module):
    """Our own layer behind a step of another name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = attn_torch.build("mha", **ROTARY).eval()

    def decode(self, x: torch.Tensor, cache: Any) -> Any:
        return self.layer.step(x, cache)


def test_a_module_is_judged_in_both_types_and_stays_as_it_is() -> None:
    module = Stepping()
    verdict = assert_decoding_parity(
        module,
        "mha",
        ROTARY,
        weights={name: f"layer.{name}" for name in module.layer.params()},
        step=lambda m, x, cache: m.decode(x, cache),
        init=lambda m, b, room: m.layer.init_cache(b, room, dtype=str(m.layer.w_q.dtype).removeprefix("torch.")),
    )
    assert {row.case.dtype for row in verdict.rows} == {"float32", "float64"} or verdict.why
    assert module.layer.w_q.dtype == torch.float32
    assert any(row.name == "dw_k" for row in verdict.rows) or "gradients through the steps not judged" in str(verdict)


class Padded(torch.nn.Module):
    """A cache of concatenated keys and values, with who is real; `wrong` in the way of a name."""

    def __init__(self, wrong: str = "", window: int | None = None) -> None:
        super().__init__()
        self.wrong, self.window, self.ring = wrong, window, 2 * (window or 0) + 1
        self.q, self.k, self.v, self.o = (torch.nn.Linear(12, 12) for _ in range(4))

    def decode(self, x: torch.Tensor, cache: Any, valid: torch.Tensor) -> Any:
        b, t, _ = x.shape
        valid = torch.ones_like(valid) if self.wrong == "padding" else valid
        q, k, v = (p(x).view(b, t, 3, 4) for p in (self.q, self.k, self.v))
        done = torch.zeros(b, 1, dtype=torch.int64) if cache is None else cache[3]
        at = done + valid.cumsum(1) - 1
        place = at + (at[:, -1:].max() - at[:, -1:]) if self.wrong == "position" and cache is not None else at
        q, k = (self.turned(z, place) for z in (q, k))
        new = (k, v, torch.where(valid, at, 10**6))
        if cache is not None and self.wrong == "detached":
            cache = (cache[0].detach(), cache[1].detach(), *cache[2:])
        k, v, key_at = new if cache is None else (torch.cat(pair, 1) for pair in zip(cache, new, strict=False))
        if self.wrong == "edge" and key_at.shape[1] > self.ring:
            k, v, key_at = (z[:, 1 - self.ring // 2 - t :] for z in (k, v, key_at))
        seen = key_at[:, None] <= at[:, :, None]
        if self.window is not None:
            seen &= key_at[:, None] > at[:, :, None] - self.window - 1
        seen |= ~seen.any(-1, keepdim=True)
        q, k_seen, v_seen = (z.transpose(1, 2) for z in (q, k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k_seen, v_seen, seen[:, None])
        return self.o(y.transpose(1, 2).reshape(b, t, 12)), (k, v, key_at, at[:, -1:] + 1)

    @staticmethod
    def turned(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        angles = at[..., None] * 10000.0 ** (-torch.arange(2, dtype=x.dtype) / 2)
        (a, b), cos, sin = x.split(2, -1), angles.cos()[:, :, None], angles.sin()[:, :, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


LINEAR = {
    **{f"w_{x}": (f"{x}.weight", f"(h {w}) d -> d h {w}") for x, w in (("q", "k"), ("k", "k"), ("v", "v"))},
    **{f"b_{x}": (f"{x}.bias", f"(h {w}) -> h {w}") for x, w in (("q", "k"), ("k", "k"), ("v", "v"))},
    "w_o": ("o.weight", "d (h v) -> h v d"),
    "b_o": "o.bias",
}


def padded(wrong: str = "", window: int | None = None, length: int | None = None) -> Any:
    torch.manual_seed(0)
    return assert_decoding_parity(
        Padded(wrong, window),
        "rotary",
        ROTARY | ({} if window is None else {"window": (window, 0)}),
        weights=LINEAR,
        step=lambda m, x, cache, valid: m.decode(x, cache, valid),
        length=length,
        dtype="float64",
    )


def test_sequences_of_unlike_lengths_and_gradients_through_steps_are_judged() -> None:
    verdict = padded()
    assert {row.case.example for row in verdict.rows} == {"equal lengths", "unlike lengths"}
    assert {"y", "dquery", "dw_k"} <= {row.name for row in verdict.rows} and not verdict.notes
    verdict = padded("detached")
    assert {row.name for row in verdict.rows} == {"y"}
    assert "gradients through the steps not judged: the cache stops them" in str(verdict)


@pytest.mark.parametrize("variant", ["chunked", "dilated", "gated_delta", "transformer_xl"])
def test_our_own_steps_raise_no_alarm(variant: str) -> None:
    """Rings of slots, strides, states and relative positions, with padding and gradients."""
    config = next(x for x in contract.examples(variant).values() if x.cache_axes())
    package: Any = attn_torch  # its stub wants the variant's name to the letter
    verdict = assert_decoding_parity(
        package.build(variant, **config.as_dict()),
        variant,
        config,
        step=lambda m, x, cache, valid: m.step(x, cache, valid=valid),
        init=lambda m, b, room: m.init_cache(b, room),
        dtype="float32",
    )
    assert not verdict.notes and {row.stage for row in verdict.rows} == {"output", "gradient"}


@pytest.mark.parametrize(
    ("wrong", "name"), [("padding", "padding is seen"), ("position", "one position for all sequences")]
)
def test_padding_in_a_batch_is_judged(wrong: str, name: str) -> None:
    with pytest.raises(ParityError, match="in sequence 0 of a batch with padding; sequences of equal length") as caught:
        padded(wrong)
    assert [cause.name for cause in caught.value.finding.causes] == [name]


def test_a_window_is_crossed_by_default() -> None:
    """A ring that loses a key too early shows behind twice the window, not in ten positions."""
    assert padded(window=6).worst.ratio <= 1
    short = padded("edge", window=6, length=11)
    assert short.worst.ratio <= 1 and short.notes == ["a ring of 7 slots not gone round twice: pass length=17 or more"]
    assert padded(window=6, length=7).notes == ["the edge of the window not crossed: pass length=17 or more"]
    with pytest.raises(ParityError, match="first wrong at position"):
        padded("edge", window=6)


@pytest.mark.left_out
def test_a_function_of_jax_arrays_decodes() -> None:
    def linear(params: Any, x: Any, state: Any) -> Any:
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[f"w_{n}"]) + params[f"b_{n}"] for n in "qkv")
        state = (k, v) if state is None else tuple(jnp.concatenate(pair, 1) for pair in zip(state, (k, v), strict=True))
        k, v = state
        t, s = q.shape[1], k.shape[1]
        mask = jnp.arange(s)[None] <= jnp.arange(t)[:, None] + s - t
        scores = jnp.where(mask, jnp.einsum("bthk,bshk->bhts", q, k) / 2, -jnp.inf)
        e = jnp.exp(scores - scores.max(-1, keepdims=True))
        y = jnp.einsum("bhts,bshk->bthk", e / e.sum(-1, keepdims=True), v)
        return jnp.einsum("bthk,hkd->btd", y, params["w_o"]) + params["b_o"], state

    verdict = assert_decoding_parity(
        linear, "mha", ROTARY, framework="jax", step=lambda f, x, state: f(x, state), length=5
    )
    assert {row.case.dtype for row in verdict.rows} == {"float32", "float64"}


@pytest.mark.parametrize(
    ("variant", "options", "words"),
    [
        ("mha", {"d_model": 12, "num_heads": 3}, "expected a layer that decodes one sequence"),
        ("mha", ROTARY, "expected step= to return the outputs and the cache, got Tensor"),
    ],
)
def test_what_cannot_be_judged_is_refused(variant: str, options: Any, words: str) -> None:
    module = Stepping()
    names = {name: f"layer.{name}" for name in module.layer.params()}
    with pytest.raises((ValueError, TypeError), match=words):
        assert_decoding_parity(module, variant, options, weights=names, step=lambda m, x, cache: m.layer(x))


def test_a_step_and_a_length_are_asked_for() -> None:
    with pytest.raises(TypeError, match="expected step= to be a function, got NoneType"):
        assert_decoding_parity(Stepping(), "mha", ROTARY, step=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected length= from 2, got 1"):
        assert_decoding_parity(Stepping(), "mha", ROTARY, step=lambda m, x, c: m.decode(x, c), length=1)


# The plugin -----------------------------------------------------------------------------------------------------------

TEST = """
import numpy as np


def attention(past):
    def step(query, cache):
        k = v = query if cache is None else np.concatenate([cache, query], 1)
        t, s = query.shape[1], k.shape[1]
        at = np.arange(t)[:, None] + (s - t if past else 0)
        scores = np.where(np.arange(s) <= at, query @ np.swapaxes(k, 1, 2) / np.sqrt(query.shape[-1]), -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v, k

    return step


def test_right_steps(attn_parity_decoding):
    verdict = attn_parity_decoding(attention(True), "dot_product", causal=True, step=lambda f, x, cache: f(x, cache))
    assert verdict.worst.ratio <= 1


def test_wrong_steps(attn_parity_decoding):
    attn_parity_decoding(attention(False), "dot_product", causal=True, step=lambda f, x, cache: f(x, cache))


def test_right_modules(attn_parity_modules):
    assert attn_parity_modules(np.cos, np.cos, (np.ones((2, 3)),), weights=None, framework="numpy").agree


def test_wrong_modules(attn_parity_modules):
    attn_parity_modules(np.cos, np.sin, (np.ones((2, 3)),), weights=None, framework="numpy")
"""


def test_fixtures_judge_steps_and_modules(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "parity_tests.plugin",
        "-p",
        "no:cacheprovider",
        "-q",
        str(tmp_path),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "2 failed, 2 passed" in found.stdout, found.stdout
    assert "cause: causal mask of a step aligned at the first key" in found.stdout, found.stdout
    assert "differ first" in found.stdout, found.stdout
