"""Tools that look for `nn.Linear` find our projections: adapters of peft train and merge, torchao rounds weights."""

from typing import Any

import numpy as np
import pytest
import torch

import attn_torch
from attn_np import contract
from parity_tests.tests.inputs import random_inputs
from parity_tests.tests.witness import bounded, ratio, weights_of

# Their warnings are theirs.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]
EPS = 2.0**-53
build: Any = attn_torch.build

# The projections that read the inputs as they are, and the one of the output. An adapter on each.
ADAPTED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "mha": ({"d_model": 12, "num_heads": 3, "causal": True, "use_bias": True}, ("w_q", "w_k", "w_v")),
    "decoder": ({"d_model": 12, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4, "causal": True}, ("w_q", "w_v")),
    "mla": (
        {"d_model": 12, "num_heads": 3, "kv_rank": 5, "nope_dim": 4, "rope_dim": 2, "value_head_dim": 7, "q_rank": 6},
        ("w_dq", "w_dkv", "w_k_rot"),
    ),
    "gated_delta": ({"d_model": 12, "num_heads": 3}, ("w_q", "w_k", "w_v", "w_gate")),
}


def rounded(tensors: Any, bits: int) -> None:
    """Each number to a multiple of 2^-bits, in place: products of such numbers, and their sums, are exact."""
    with torch.no_grad():
        for x in tensors:
            x.copy_(torch.round(x * 2.0**bits) / 2.0**bits)


@pytest.mark.parametrize("variant", ADAPTED)
def test_adapters_of_peft_train_and_merge(variant: str) -> None:
    """The loss falls, only adapters change, and merged it is a layer of ours with what the adapters gave.

    Inputs, weights and adapters are multiples of small powers of two, so that queries, keys and values are the same
    bits before and after. Only in the output projection, which reads what softmax gave, do the two sums differ: of its
    n + r terms, the adapter's of rank r, the scale and the bias, each is rounded at most n + r + 3 times on either way.
    """
    peft = pytest.importorskip("peft")
    fields, names = ADAPTED[variant]
    layer: Any = build(variant, dtype="float64", projections="modules", **fields)
    x = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rounded([x, *(p for p in layer.parameters())], 10)
    before = {name: p.detach().clone() for name, p in layer.params().items()}
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=[*names, "w_o"])  # the scale 2 is exact
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the adapters, which peft draws
        adapted = peft.get_peft_model(layer, config, autocast_adapter_dtype=False).double()
    trained = [p for p in adapted.parameters() if p.requires_grad]
    assert len(trained) == 2 * (len(names) + 1)
    optimizer, losses = torch.optim.SGD(trained, 0.5), []
    for _ in range(8):
        loss = (adapted(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and all(torch.any(p != 0) for p in trained)
    with pytest.raises(ValueError, match="merge what was added to it"):
        layer.params()

    rounded(trained, 8)
    reads: dict[str, torch.Tensor] = {}
    output = layer.w_o
    handle = output.register_forward_pre_hook(lambda _, given: reads.update(x=given[0].detach()))
    y = adapted(x).detach()
    handle.remove()
    down, up = (getattr(output, part)["default"].weight.detach() for part in ("lora_A", "lora_B"))
    sizes = reads["x"].abs() @ (output.base_layer.weight.abs().T + 2 * down.abs().T @ up.abs().T)
    sizes = sizes if output.base_layer.bias is None else sizes + output.base_layer.bias.abs()
    terms = reads["x"].shape[-1] + down.shape[0] + 3

    merged = adapted.merge_and_unload()
    assert merged is layer and all(type(getattr(layer, name)) is type(layer.w_o) for name in names)
    changed = {name for name, p in layer.params().items() if not torch.equal(p, before[name])}
    assert changed == {*names, "w_o"}
    assert torch.all((layer(x) - y).abs() <= 2 * terms * EPS * sizes)
    arrays: Any = build(variant, dtype="float64", **fields)
    arrays.set_params({name: p.detach() for name, p in layer.params().items()})
    weights = {name: p.detach().numpy() for name, p in layer.params().items()}
    want = bounded(layer.config, {"query": x.numpy()}, weights)["y"]
    assert ratio(arrays(x).detach().numpy(), want) <= 1 and ratio(layer(x).detach().numpy(), want) <= 1


@pytest.mark.parametrize("variant", ["mha", "decoder", "gated_delta"])
def test_weights_of_8_bits_stay_within_half_a_step(variant: str) -> None:
    """torchao's weights are ours to half a step of their scale; the layer computes with what they stand for."""
    quantization = pytest.importorskip("torchao.quantization")
    config = contract.config(variant, **ADAPTED[variant][0])
    weights = {name: x.astype("float32") for name, x in weights_of(config).items()}
    layer: Any = build(variant, projections="modules", **ADAPTED[variant][0])
    layer.set_params({name: torch.from_numpy(x) for name, x in weights.items()})
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    wide = {name: x.astype("float64") for name, x in weights.items()}
    for projection in layer.projections:
        weight = getattr(layer, projection.name).weight
        meant = weight.dequantize().detach().double().T.numpy()
        step = weight.scale.detach().double().T.numpy()
        was = wide[projection.name].reshape(meant.shape)
        assert meant.dtype == np.float64 and np.any(meant != was)
        # Of at most 128 steps, the quotient and the product back are each rounded in float32.
        assert np.all(np.abs(meant - was) <= step * (0.5 + 2 * 128 * 2.0**-24))
        wide[projection.name] = meant.reshape(*projection.inputs, *projection.outputs)
    inputs = {n: x.astype("float32") if x.dtype.kind == "f" else x for n, x in random_inputs(config, "plain").items()}
    y = layer(**{name: torch.from_numpy(x) for name, x in inputs.items()}).detach().numpy()
    exact = {name: x.astype("float64") if x.dtype.kind == "f" else x for name, x in inputs.items()}
    want = bounded(config, exact, wide, "float32")["y"]
    assert ratio(y, want) <= 1
    with pytest.raises(ValueError, match="to hold plain numbers for its parameters, got Int8Tensor"):
        layer.params()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dynamic_quantisation_finds_plain_modules_alone() -> None:
    """It takes the class itself, not ours; what it makes of a plain one is called, and holds no numbers for a file."""
    layer: Any = build("mha", projections="modules", **ADAPTED["mha"][0])
    given = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    before = {name: p.detach().clone() for name, p in layer.params().items()}
    quantize: Any = torch.ao.quantization.quantize_dynamic
    found = quantize(layer, {torch.nn.Linear})
    assert torch.equal(found(given), layer(given)) and torch.equal(found.params()["w_q"], before["w_q"])
    for projection in layer.projections:
        plain = torch.nn.Linear(projection.in_features, projection.out_features)
        plain.load_state_dict(getattr(layer, projection.name).state_dict())
        setattr(layer, projection.name, quantize(torch.nn.Sequential(plain), {torch.nn.Linear})[0])
        weight = getattr(layer, projection.name).weight()
        was = before[projection.name].reshape(projection.in_features, projection.out_features).T
        # Of at most 128 steps, the quotient and the product back are each rounded in float32.
        assert torch.all((weight.dequantize() - was).abs() <= weight.q_scale() * (0.5 + 2 * 128 * 2.0**-24))
    assert not torch.equal(layer(given), found(given))
    with pytest.raises(ValueError, match=r"weight and bias alone .* got none; load the layer before it was changed"):
        layer.params()
