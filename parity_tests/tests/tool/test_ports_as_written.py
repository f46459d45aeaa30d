"""Ports as they are written: backward passes by hand, Linen and Equinox, presets, the usual names of arrays."""

from collections.abc import Callable
from math import inf, sqrt
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen

import attn_np
import attn_torch
from attn_np import contract
from parity_tests import ParityError, Verdict, assert_decoding_parity, assert_parity, replay
from parity_tests.explain.causes import explain
from parity_tests.explain.verdicts import verdicts
from parity_tests.judge.cases import Case
from parity_tests.ports import differences
from parity_tests.ports.trace import candidate, record
from parity_tests.tests.tool.test_empty_rows import MHA, Filled, judged
from parity_tests.tests.tool.test_library import LINEAR

# Backward passes by hand ----------------------------------------------------------------------------------------------


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    return softmax(query @ key.swapaxes(1, 2) / sqrt(query.shape[-1])) @ value


def attention_vjp(query: np.ndarray, key: np.ndarray, value: np.ndarray, *, dy: np.ndarray) -> dict[str, Any]:
    scale = 1 / sqrt(query.shape[-1])
    probs = softmax(query @ key.swapaxes(1, 2) * scale)
    dprobs = dy @ value.swapaxes(1, 2)
    dscores = probs * (dprobs - (dprobs * probs).sum(-1, keepdims=True)) * scale
    return {"query": dscores @ key, "key": dscores.swapaxes(1, 2) @ query, "value": probs.swapaxes(1, 2) @ dy}


def gradients(verdict: Verdict) -> set[str]:
    return {row.name for row in verdict.rows if row.stage == "gradient"}


def test_a_verdict_says_that_a_numpy_function_has_no_gradients() -> None:
    verdict = assert_parity(attention, "dot_product")
    assert gradients(verdict) == set()
    assert "gradients not judged" in str(verdict) and "vjp=" in verdict.notes[0]
    verdict = assert_parity(attention, "dot_product", vjp=attention_vjp)
    assert (gradients(verdict), verdict.notes) == ({"dquery", "dkey", "dvalue"}, [])


def test_a_trace_is_replayed_with_gradients_by_hand() -> None:
    case = Case("dot_product", "given", "plain", "float64", 0, contract.config("dot_product"))

    def of_itself(query: np.ndarray) -> np.ndarray:
        return attention(query, query, query)

    def vjp(query: np.ndarray, dy: np.ndarray) -> dict[str, Any]:
        return {"query": sum(attention_vjp(query, query, query, dy=dy).values())}

    trace = replay(record(candidate("numpy"), case), of_itself, vjp=vjp)
    assert set(trace.outcome.grads) == {"dquery"}
    assert all(row.ok for row in verdicts(trace.judged())[0])


@pytest.mark.parametrize("wrong", ["query", "key", "value"])
def test_a_wrong_gradient_by_hand_is_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        differences, "explain", lambda run, causes=True, **options: explain(run, causes=False, **options)
    )

    def vjp(*inputs: Any, dy: Any, **named: Any) -> Any:
        grads = attention_vjp(*inputs, dy=dy, **named)
        return grads | {wrong: grads[wrong] * (1 + 1e-12)}

    with pytest.raises(ParityError) as caught:
        assert_parity(attention, "dot_product", vjp=vjp)
    assert caught.value.finding.first.name == f"d{wrong}"


def test_gradients_by_hand_have_the_axes_and_names_of_the_function() -> None:
    def first(x: Any) -> Any:
        return x.swapaxes(0, 1)

    def turned(a: Any, b: Any, c: Any) -> Any:
        return first(attention(first(a), first(b), first(c)))

    def vjp(a: Any, b: Any, c: Any, dy: Any) -> Any:
        grads = attention_vjp(first(a), first(b), first(c), dy=first(dy))
        return {name: first(x) for name, x in grads.items()}

    arguments = {"query": ("a", "b t k -> t b k"), "key": ("b", "b s k -> s b k"), "value": ("c", "b s v -> s b v")}
    options: dict[str, Any] = {"arguments": arguments, "outputs": (("y", "t b v -> b t v"),)}
    verdict = assert_parity(turned, "dot_product", vjp=vjp, **options)
    assert gradients(verdict) == {"dquery", "dkey", "dvalue"}


def layered(params: Any, query: Any) -> Any:
    q, k, v = (np.einsum("btd,dhk->bhtk", query, params[f"w_{n}"]) for n in "qkv")
    return np.einsum("bhtk,hkd->btd", softmax(q @ k.swapaxes(2, 3) / 2) @ v, params["w_o"])


def layered_vjp(params: Any, query: Any, dy: Any) -> dict[str, Any]:
    q, k, v = (np.einsum("btd,dhk->bhtk", query, params[f"w_{n}"]) for n in "qkv")
    probs = softmax(q @ k.swapaxes(2, 3) / 2)
    dcontext = np.einsum("btd,hkd->bhtk", dy, params["w_o"])
    dprobs = dcontext @ v.swapaxes(2, 3)
    dscores = probs * (dprobs - (dprobs * probs).sum(-1, keepdims=True)) / 2
    parts = {"q": dscores @ k, "k": dscores.swapaxes(2, 3) @ q, "v": probs.swapaxes(2, 3) @ dcontext}
    grads = {f"w_{n}": np.einsum("btd,bhtk->dhk", query, x) for n, x in parts.items()}
    dquery = sum(np.einsum("bhtk,dhk->btd", x, params[f"w_{n}"]) for n, x in parts.items())
    return grads | {"w_o": np.einsum("bhtk,btd->hkd", probs @ v, dy), "query": dquery}


PLAIN = MHA | {"use_bias": False}


def test_a_function_with_weights_has_their_gradients_too() -> None:
    verdict = assert_parity(layered, "mha", PLAIN, vjp=layered_vjp)
    assert gradients(verdict) == {"dquery", "dw_q", "dw_k", "dw_v", "dw_o"}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda grads: None, TypeError, "expected vjp= to return a dictionary of gradients, got NoneType"),
        (lambda grads: {n: x for n, x in grads.items() if n != "w_k"}, ValueError, "got none of w_k; return 0"),
        (lambda grads: grads | {"w_kk": 0}, ValueError, "from vjp=, got 'w_kk'; did you mean 'w_k'"),
    ],
)
def test_gradients_by_hand_are_all_there(change: Callable[[Any], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        assert_parity(layered, "mha", PLAIN, vjp=lambda params, query, dy: change(layered_vjp(params, query, dy)))


def test_a_gradient_that_is_none_is_told() -> None:
    verdict = assert_parity(
        layered, "mha", PLAIN, vjp=lambda params, query, dy: layered_vjp(params, query, dy) | {"w_k": None}
    )
    assert "dw_k" not in gradients(verdict)
    assert verdict.notes == ["gradients not judged, for which vjp= returned None: dw_k"]


def test_a_backward_pass_by_hand_is_of_a_numpy_function() -> None:
    with pytest.raises(ValueError, match="expected vjp= with a function of NumPy arrays, got a candidate of torch"):
        judged(Filled(-inf), vjp=attention_vjp)
    with pytest.raises(TypeError, match="expected vjp= to be a function, got dict"):
        assert_parity(attention, "dot_product", vjp={})  # type: ignore[arg-type]


# Linen and Equinox ----------------------------------------------------------------------------------------------------


class Linen(linen.Module):
    scale: float = 0.5

    @linen.compact
    def __call__(self, x: Any, mask: Any = None) -> Any:
        b, t, d = x.shape
        q, k, v = (linen.Dense(d, name=name)(x).reshape(b, t, 3, 4) for name in "qkv")
        scores = jnp.einsum("bthk,bshk->bhts", q, k) * self.scale
        scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
        return linen.Dense(d, name="o")(jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v).reshape(b, t, d))


DENSE: dict[str, Any] = {f"w_{n}": (f"{n}.kernel", "d (h k) -> d h k") for n in "qkv"}
DENSE |= {f"b_{n}": (f"{n}.bias", "(h k) -> h k") for n in "qkv"}
DENSE |= {"w_o": ("o.kernel", "(h v) o -> h v o"), "b_o": "o.bias"}


@pytest.mark.left_out
def test_a_linen_module_is_taken_with_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = Linen().init(jax.random.key(0), jnp.ones((1, 2, 12)))
    options: dict[str, Any] = {"weights": DENSE, "empty_rows": False, "calls": ("plain",)}
    verdict = judged((Linen(), variables), taps={"q": ("q", "b t (h k) -> b t h k")}, **options)
    assert {"dquery", *(f"d{name}" for name in DENSE)} == gradients(verdict)
    assert {row.case.dtype for row in verdict.rows if row.name == "q"} == {"float64", "float32"}
    monkeypatch.setattr(
        differences, "explain", lambda run, causes=True, **options: explain(run, causes=False, **options)
    )
    with pytest.raises(ParityError):
        judged((Linen(0.5 + 1e-9), variables), **options)
    with pytest.raises(
        TypeError, match=r"expected a Linen module with its variables, got Linen alone; give \(module, v"
    ):
        judged(Linen(), **options)


class Equinox(equinox.Module):
    """Of one sequence, as Equinox's own modules are."""

    q: equinox.nn.Linear
    k: equinox.nn.Linear
    v: equinox.nn.Linear
    o: equinox.nn.Linear

    def __init__(self) -> None:
        self.q, self.k, self.v, self.o = (
            equinox.nn.Linear(12, 12, key=key) for key in jax.random.split(jax.random.key(0), 4)
        )

    def __call__(self, query: Any, mask: Any = None, *, key: Any = None) -> Any:
        q, k, v = (jax.vmap(p)(query).reshape(-1, 3, 4) for p in (self.q, self.k, self.v))
        scores = jnp.einsum("thk,shk->hts", q, k) / 2
        scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
        return jax.vmap(self.o)(jnp.einsum("hts,shk->thk", jax.nn.softmax(scores), v).reshape(-1, 12))


def batched(module: Any, query: Any) -> Any:
    return jax.vmap(module)(query)


def test_an_equinox_module_is_taken() -> None:
    verdict = judged(Equinox(), call=batched)
    assert {"dquery", *(f"d{name}" for name in LINEAR)} == gradients(verdict)
    with pytest.raises((TypeError, ValueError)) as caught:
        judged(Equinox(), calls=("plain",))
    assert "takes call=lambda module, query: jax.vmap(module)(query)" in caught.value.__notes__[0]


def test_the_key_of_an_equinox_module_is_no_key_of_attention() -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        judged(Equinox(), calls=("full",))
    assert "called with query jax" in caught.value.__notes__[0] and "key jax" not in caught.value.__notes__[0]


# Presets --------------------------------------------------------------------------------------------------------------


OF_THE_CALL = {"causal", "window", "softcap"}  # fields without which a variant has the same parameters


@pytest.mark.parametrize("name", contract.presets())
def test_a_preset_is_judged_with_its_fields(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a port that has others is not taken for it."""
    monkeypatch.setattr(
        differences, "explain", lambda run, causes=True, **options: explain(run, causes=False, **options)
    )
    variant, preset = contract.presets()[name]
    config = next(iter(contract.examples(name).values()))
    open_fields = {n: v for n, v in config.as_dict().items() if n not in preset.fields}

    def port_of(built: Any) -> Any:
        def port(params: Any, **inputs: Any) -> Any:
            build: Any = attn_np.build
            layer = build(variant, dtype="float64", **built.as_dict())
            layer.set_params(params)
            return layer(**inputs)

        return port

    options: dict[str, Any] = {"calls": ("plain",), "framework": "numpy"}
    for given in ({"config": open_fields}, {"config": config}, open_fields):
        verdict = assert_parity(port_of(config), name, **given, **options)
        trace, *_ = verdict.traces.values()
        assert trace.case.config == config and trace.case.variant == variant
    if preset.fields.keys() <= OF_THE_CALL:
        with pytest.raises(ParityError):
            assert_parity(port_of(contract.config(variant, **open_fields)), name, open_fields, **options)


def test_a_config_of_a_preset_has_its_fields() -> None:
    with pytest.raises(
        ValueError, match="expected a Config with the fields of mqa, num_kv_heads=1, got num_kv_heads=3"
    ):
        assert_parity(attention, "mqa", contract.config("gqa", d_model=12, num_heads=3, num_kv_heads=3))
    with pytest.raises(ValueError, match="expected a Config of mqa, got one of mha; name its variant"):
        assert_parity(attention, "mqa", contract.config("mha", **MHA))


def test_a_preset_decodes() -> None:
    module = attn_torch.build("sliding_window", **MHA, window=(3, 0))
    verdict = assert_decoding_parity(
        module,
        "sliding_window",
        **MHA,
        window=(3, 0),
        dtype="float32",
        step=lambda m, x, cache: m.step(x, cache),
        init=lambda m, b, most: m.init_cache(b, most),
    )
    assert verdict.worst.ratio <= 1


# Names of weights and arguments ---------------------------------------------------------------------------------------


class Llama(torch.nn.Module):
    """A layer's attention by itself, as a layout has it behind `self_attn.`."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = (torch.nn.Linear(12, 12, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (torch.nn.Linear(12, 4, bias=False) for _ in range(2))

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        b, t, d = query.shape
        q, k, v = (p(query).view(b, t, -1, 4).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = (q @ k.mT / 2).masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), -inf)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Around(torch.nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, Llama())

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        return next(iter(self.children()))(query)


@pytest.mark.parametrize(
    "make",
    [Llama, lambda: Around("self_attn"), lambda: Around("inner"), lambda: torch.compile(Llama(), backend="eager")],
)
def test_a_layout_takes_attention_by_itself_and_in_a_module(make: Callable[[], Any]) -> None:
    verdict = assert_parity(make(), "decoder", MHA, num_kv_heads=1, rope_base=None, weights="llama")
    assert gradients(verdict) == {"dquery", "dw_q", "dw_k", "dw_v", "dw_o"}


def test_of_two_that_a_layout_fits_one_must_be_chosen() -> None:
    words = "expected a candidate with one 'self_attn.q_proj.weight', got several"
    twice = torch.nn.ModuleDict({"a": Around("self_attn"), "b": Around("self_attn")})
    setattr(twice, "forward", lambda query: query)  # noqa: B010
    with pytest.raises(ValueError, match=words):
        assert_parity(twice, "decoder", MHA, num_kv_heads=1, rope_base=None, weights="llama")


class Whisper(torch.nn.Module):
    """No bias on the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.v_proj, self.out_proj = (torch.nn.Linear(12, 12) for _ in range(3))
        self.k_proj = torch.nn.Linear(12, 12, bias=False)

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        b, t, d = query.shape
        q, k, v = (p(query).view(b, t, 3, 4).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


OF_WHISPER: dict[str, Any] = {f"w_{n}": (f"{n}_proj.weight", "(h k) d -> d h k") for n in "qkv"}
OF_WHISPER |= {f"b_{n}": (f"{n}_proj.bias", "(h k) -> h k") for n in "qv"}
OF_WHISPER |= {"w_o": ("out_proj.weight", "o (h v) -> h v o"), "b_o": "out_proj.bias"}


@pytest.mark.parametrize(
    "weights",
    [
        "whisper",
        OF_WHISPER | {"b_k": None},
        OF_WHISPER | {"b_k": torch.zeros(3, 4)},
        OF_WHISPER | {"b_k": np.ones((3, 4))},  # a bias of the keys moves all scores of a query alike
    ],
)
def test_a_bias_that_the_candidate_lacks_may_be_left_to_the_map(weights: Any) -> None:
    verdict = assert_parity(Whisper(), "mha", MHA, weights=weights)
    assert verdict.notes == ["gradients not judged of what the candidate does not have: db_k"]
    assert "db_k" not in gradients(verdict)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (OF_WHISPER, "got none for b_k; map each, .* or map it to None where the candidate has none and 0 stands in"),
        (OF_WHISPER | {"b_k": torch.zeros(4, 3)}, r"array of shape \(3, 4\) for 'b_k' in weights=, got \(4, 3\)"),
        (OF_WHISPER | {"b_k": None, "b_v": None}, "got none for v_proj.bias; map it"),
    ],
)
def test_a_parameter_that_counts_is_not_left_out(weights: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        assert_parity(Whisper(), "mha", MHA, weights=weights)


def test_a_value_in_the_map_is_what_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        differences, "explain", lambda run, causes=True, **options: explain(run, causes=False, **options)
    )

    class Shifted(Whisper):
        def forward(self, query: torch.Tensor) -> torch.Tensor:
            bias: Any = self.out_proj.bias
            return super().forward(query) - bias + 1

    torch.manual_seed(0)
    names = OF_WHISPER | {"b_k": None}
    module = Shifted()
    assert assert_parity(module, "mha", MHA, weights=names | {"b_o": np.ones(12)}).worst.ratio <= 1
    with pytest.raises(ParityError):
        assert_parity(module, "mha", MHA, weights=names | {"b_o": np.zeros(12)})


def test_an_axis_of_one_entry_is_written_1() -> None:
    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = torch.nn.Linear(5, 7, bias=False), torch.nn.Linear(3, 7, bias=False)
            self.score = torch.nn.Linear(7, 1, bias=False)

        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            features = (self.q(query)[:, :, None] + self.k(key)[:, None]).tanh()
            return (self.score(features)[..., 0].softmax(-1) @ value)[:, None]

    names = {
        "w_q": ("q.weight", "e d -> d e"),
        "w_k": ("k.weight", "e i -> i e"),
        "w_score": ("score.weight", "1 e -> e"),
    }
    fields: dict[str, Any] = {"query_dim": 5, "key_dim": 3, "hidden_dim": 7, "calls": ("full",)}
    axes = next(iter(contract.examples("additive").values())).arguments()["value"].axes.split()[-1]
    outputs = (("y", f"b 1 t {axes} -> b t {axes}"),)
    assert assert_parity(Flat(), "additive", weights=names, outputs=outputs, **fields).worst.ratio <= 1
    with pytest.raises(ValueError, match=r"for 'b 1 1 t v -> b t v'|with as many axes|expected an array"):
        assert_parity(Flat(), "additive", weights=names, outputs=(("y", f"b 1 1 t {axes} -> b t {axes}"),), **fields)


def test_a_mask_of_the_keys_alone_may_keep_axes_of_one_entry() -> None:
    class Padded(Filled):
        def forward(self, x: Any, padding: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            assert padding is None or padding.shape[1:3] == (1, 1)
            return super().forward(x, padding)

    torch.manual_seed(0)
    arguments = {"query": "x", "mask": ("padding", "b h t s -> b 1 1 s")}
    verdict = judged(Padded(-inf), arguments=arguments, empty_rows=False, dtype="float32")
    assert [list(trace.drawn.inputs) for trace in verdict.traces.values()][:2] == [["query"], ["query", "mask"]]


def by_position(q: Any, k: Any, v: Any, /) -> Any:
    return attention(q, k, v)


def by_letters(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = q @ k.swapaxes(1, 2) / sqrt(q.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -inf)) @ v


def in_words(queries: Any, keys: Any, values: Any, mask: Any = None) -> Any:
    return by_letters(queries, keys, values, mask)


@pytest.mark.parametrize("function", [by_position, by_letters, in_words])
def test_usual_names_of_arrays_are_known(function: Any) -> None:
    verdict = assert_parity(function, "dot_product", empty_rows=False)
    last = list(verdict.traces.values())[-1]
    assert list(last.drawn.inputs) == ["query", "key", "value", *(["mask"] if function is not by_position else [])]


def test_a_number_called_k_is_no_key() -> None:
    def nearest(x: Any, k: int = 3) -> Any:
        assert k == 3
        return attention(x, x, x)

    verdict = assert_parity(nearest, "dot_product")
    assert verdict.not_given == ("k",)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda q, k, v, attn_mask: q, r"got attn_mask; write arguments={'mask': 'attn_mask'} \(a mask is True where"),
        (lambda a, b, c: a, r"got b, c; write arguments={'key': 'b', 'value': 'c'}$"),
        (lambda query, encoded: query, r"got encoded; write arguments={'key': 'encoded'}$"),
    ],
)
def test_arguments_of_other_names_are_asked_for(function: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        assert_parity(function, "dot_product")
