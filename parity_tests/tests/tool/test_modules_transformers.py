"""Models of `transformers` as the installed library builds them, beside ports and copies with a mistake."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from parity_tests import ModuleComparison, assert_parity, compare_modules
from parity_tests.judge.candidates import from_torch
from parity_tests.ports.modules.known import attention_of
from parity_tests.ports.parity import ParityError
from parity_tests.tests.tool.llama_ports import (
    BASE,
    EPS,
    GROUPS,
    HEAD,
    HEADS,
    HIDDEN,
    MISTAKES,
    PORTS,
    WIDTH,
    hidden,
    original,
)
from parity_tests.tests.tool.test_modules import ONE_BLOCK, PLACES

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error::RuntimeWarning"),
]

IDS = np.arange(14).reshape(2, 7) % 11
MASK = np.array([[1] * 7, [1] * 5 + [0] * 2])
SMALL = {"vocab_size": 11, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 20, "num_hidden_layers": 2}
T5 = {"vocab_size": 11, "d_model": 24, "num_layers": 2, "num_heads": 2, "d_ff": 20, "d_kv": 6}
GEMMA = {
    "vocab_size": 11,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "intermediate_size": 20,
}
VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "image_size": 8,
    "patch_size": 4,
}


def built(name: str, fields: dict[str, Any], attention: str = "eager") -> Any:
    """A model with weights drawn, the same for the same arguments."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config = getattr(transformers, f"{name.removesuffix('Model').removesuffix('ForCausalLM')}Config")
    config = transformers.Gemma3TextConfig if name == "Gemma3ForCausalLM" else config
    torch.manual_seed(0)
    return getattr(transformers, name)._from_config(config(**fields), attn_implementation=attention).eval()


def known(model: Any) -> dict[str, tuple[str, Any]]:
    """The attention that is known in a model, with its variant and whether it is causal."""
    weights = {name: from_torch(x) for name, x in model.state_dict().items()}
    found = attention_of(dict(model.named_modules()), weights)
    return {name: (x.variant, x.config.get("causal")) for name, x in found.items()}


@pytest.mark.parametrize(("name", "fields", "at", "variant"), [
    ("ViTModel", VIT, "layers.{i}.attention", ("mha", False)),
    ("RobertaModel", SMALL, "encoder.layer.{i}.attention.self", ("mha", False)),
    ("BertModel", SMALL, "encoder.layer.{i}.attention.self", ("mha", False)),
    ("T5Model", T5, "encoder.block.{i}.layer.0.SelfAttention", ("t5_bias", False)),
    ("T5Model", T5, "decoder.block.{i}.layer.0.SelfAttention", ("t5_bias", True)),
    ("T5Model", T5, "decoder.block.{i}.layer.1.EncDecAttention", ("mha", False)),
])  # fmt: skip
def test_attention_is_known_as_the_library_names_it(name: str, fields: Any, at: str, variant: Any) -> None:
    found = known(built(name, fields))
    assert [found.get(at.format(i=i)) for i in range(2)] == [variant] * 2, found


def test_attention_of_a_part_is_known() -> None:
    """A layer alone has no model around it."""
    assert known(built("BertModel", SMALL).encoder.layer[1]) == {"attention.self": ("mha", False)}
    assert known(built("T5Model", T5).decoder.block[0].layer[0]) == {"SelfAttention": ("t5_bias", True)}


def with_scale(name: str, fields: Any, at: str, given: dict[str, Any]) -> tuple[ModuleComparison, Any]:
    a = built(name, fields)
    b = deepcopy(a)
    b.get_submodule(at).scaling *= 1.3
    return compare_modules(a, b, given), b


@pytest.mark.parametrize(("name", "padded"), [("BertModel", False), ("BertModel", True), ("RobertaModel", True)])
def test_the_advice_for_an_output_projection_outside_can_be_run(name: str, padded: bool) -> None:
    at = "encoder.layer.1.attention.self"
    given = {"input_ids": IDS} | ({"attention_mask": MASK} if padded else {})
    result, b = with_scale(name, SMALL, at, given)
    assert [row.a for row in result.differences] == [at], str(result)
    assert result.finding is not None and "scale of the scores" in result.finding.causes[0].name
    with pytest.raises(ParityError, match="scale of the scores"):
        eval(result.advice, {"assert_parity": assert_parity, "b": b})  # noqa: S307 - our own words


@pytest.mark.parametrize("at", ["decoder.block.1.layer.1.EncDecAttention", "decoder.block.1.layer.0.SelfAttention"])
def test_attention_of_a_decoder_with_a_source_of_another_length(at: str) -> None:
    given = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": IDS[:, :5]}
    result, b = with_scale("T5Model", T5, at, given)
    assert [row.a for row in result.differences] == [at], str(result)
    assert result.finding is not None and "scale of the scores" in result.finding.causes[0].name
    if "EncDec" not in at:  # a later block of a decoder gets its bias from the first
        table = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        assert f"{at} of b gets from outside what {table} makes: wrap it in a function" in result.advice
        return
    # What attends to a source gets one in the advice, too: the gradients of both are judged.
    with pytest.raises(ParityError, match="scale of the scores"):
        eval(result.advice, {"assert_parity": assert_parity, "b": b})  # noqa: S307 - our own words
    b.get_submodule(at).scaling /= 1.3
    verdict = eval(result.advice, {"assert_parity": assert_parity, "b": b})  # noqa: S307 - our own words
    assert {"query", "key"} <= verdict.traces["plain"].drawn.inputs.keys()
    assert {"dquery", "dkey"} <= {row.name for row in verdict.rows}


@pytest.mark.parametrize(("name", "fields"), [("Gemma3ForCausalLM", GEMMA), ("BertModel", SMALL)])
def test_two_implementations_of_attention_agree(name: str, fields: Any) -> None:
    a, b = (built(name, fields, attention) for attention in ("eager", "sdpa"))
    given = {"input_ids": IDS, "attention_mask": MASK}
    assert compare_modules(a, b, given).agree


def llama(dtype: str, seed: int = 0) -> Any:
    """The Llama of `transformers`, with sizes and weights of the ports."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=GROUPS, head_dim=HEAD, rms_norm_eps=EPS, max_position_embeddings=32,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
    )  # fmt: skip
    return original(lambda: transformers.LlamaModel._from_config(config, attn_implementation="sdpa"), dtype, seed)


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mistake", [None, *MISTAKES])
@pytest.mark.parametrize("framework", PORTS)
def test_llama_of_transformers(framework: str, mistake: str | None, dtype: str) -> None:
    """The two-layer model as it is, with keywords and a result of its own; a mistake in attention gets its cause."""
    port = PORTS[framework]
    b = port.model(mistake, dtype)
    calls = (
        lambda m, inputs_embeds: m(inputs_embeds=inputs_embeds, use_cache=False),
        lambda m, inputs_embeds: m(inputs_embeds),
    )
    result = compare_modules(llama(dtype), b, {"inputs_embeds": hidden()}, names=port.names, calls=calls)
    places = [row.a for row in result.differences]
    assert places == ([] if mistake is None else [f"layers.1.{PLACES[mistake]}"]), str(result)
    if mistake == "attention":
        assert result.finding is not None and "width" in result.finding.causes[0].name
    # A Flax layer whose dtype is float64 is not run in another type, and the original's frequencies are float32.
    if mistake == "attention" and (framework == "torch" or (framework, dtype) == ("nnx", "float32")):
        with pytest.raises(ParityError, match="width"):
            eval(result.advice, {"assert_parity": assert_parity, "b": b})  # noqa: S307 - our own words


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mistake", [None, *MISTAKES])
@pytest.mark.parametrize("framework", PORTS)
def test_a_decoder_layer_of_transformers(framework: str, mistake: str | None) -> None:
    """It gets its rotary positions from outside, nested; the port makes its own."""
    angles = np.arange(7)[:, None] * BASE ** -(np.arange(0, HEAD, 2) / HEAD)
    angles = np.concatenate([angles, angles], -1)[None]
    inputs = {"hidden_states": hidden(), "position_embeddings": (np.cos(angles), np.sin(angles))}
    causal = np.tril(np.ones((7, 7), bool))[None, None]
    b = PORTS[framework].block(mistake, "float32")
    calls = (
        lambda m, **given: m(attention_mask=torch.from_numpy(causal), **given),
        lambda m, hidden_states, **_: m(hidden_states),
    )
    result = compare_modules(llama("float32").layers[0], b, inputs, names=ONE_BLOCK, calls=calls)
    assert [row.a for row in result.differences] == ([] if mistake is None else [PLACES[mistake]]), str(result)
