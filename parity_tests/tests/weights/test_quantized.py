"""Checkpoints of weights in eight bits: the scales, applied as their libraries say, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch

from attn_np import weights
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.weights.test_pretrained import LLAMA, llama

FLOAT8 = ml_dtypes.float8_e4m3fn
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [5, 7]}
BFLOAT16 = ml_dtypes.bfloat16


def group(**weights: Any) -> dict[str, Any]:
    """The config of compressed-tensors for one group of modules."""
    kind = "float" if weights.get("type") == "float" else "int"
    one = {"targets": ["Linear"], "weights": {"num_bits": 8, "symmetric": True, "dynamic": False} | weights}
    return {"quant_method": "compressed-tensors", "format": f"{kind}-quantized", "config_groups": {"group_0": one}}


# The scheme, the numbers' type, what follows the weight's name, the rows and columns of a block, the scales' shape.
SCHEMES: dict[str, tuple[dict[str, Any], Any, str, tuple[int, int]]] = {
    "blocks": (FP8, FLOAT8, "_scale_inv", (5, 7)),
    "blocks of another type": (FP8 | {"fmt": "e5m2"}, ml_dtypes.float8_e5m2, "_scale_inv", (5, 7)),
    "whole tensors": (FP8 | {"weight_block_size": None}, FLOAT8, "_scale_inv", (0, 0)),
    "compressed, whole": (group(type="float", strategy="tensor"), FLOAT8, "_scale", (0, 0)),
    "compressed, rows": (group(type="float", strategy="channel"), FLOAT8, "_scale", (1, 0)),
    "compressed, blocks": (group(type="float", strategy="block", block_structure="5x7"), FLOAT8, "_scale", (5, 7)),
    "compressed, integers": (group(type="int", strategy="channel"), np.int8, "_scale", (1, 0)),
    "compressed, groups": (group(type="int", strategy="group", group_size=4), np.int8, "_scale", (1, 4)),
    "by rows": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, FLOAT8, "_scale", (1, 0)),
    "Model Optimizer": ({"quant_method": "modelopt", "quant_algo": "FP8"}, FLOAT8, "_scale", (0, 0)),
}


def stored(x: np.ndarray, block: tuple[int, int], kind: Any, scale: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of eight bits and a scale for each block, of weights."""
    rows, columns = x.shape
    tall, wide = block[0] or rows, block[1] or columns
    top = 100.0 if kind is np.int8 else float(ml_dtypes.finfo(kind).max) / 4
    scales = np.zeros((-(-rows // tall), -(-columns // wide)))
    for i, j in np.ndindex(scales.shape):
        scales[i, j] = np.abs(x[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]).max() / top
    scales = scales.astype(scale)
    numbers = np.empty(x.shape, kind)
    for i, j in np.ndindex(x.shape):
        quotient = x[i, j] / float(scales[i // tall, j // wide])
        numbers[i, j] = np.rint(quotient) if kind is np.int8 else quotient
    return numbers, scales


def meant(numbers: np.ndarray, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """What they stand for, number by number, in float64, which holds each product."""
    rows, columns = numbers.shape
    tall, wide = block[0] or rows, block[1] or columns
    product = np.empty(numbers.shape)
    for i, j in np.ndindex(numbers.shape):
        product[i, j] = float(numbers[i, j]) * float(scales[i // tall, j // wide])
    return product


def quantized(folder: Path, scheme: str, *, scale: Any = np.float32) -> tuple[Path, Arrays]:
    """A folder of a Llama whose projections are quantised, and what they stand for."""
    stated, kind, end, block = SCHEMES[scheme]
    held, meaning = llama(), {}
    for name in [name for name in held if "_proj.weight" in name]:
        held[name], held[name + end] = stored(held[name], block, kind, scale)
        meaning[name] = meant(held[name], held[name + end], block)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": stated}))
    write(folder / "model.safetensors", held)
    return folder, meaning


def write(path: Path, arrays: Arrays) -> None:
    """A file with types that NumPy's writer does not have."""
    safetensors.torch.save_file(tensors(arrays), path)


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """The arrays as tensors, bit by bit."""
    bits = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}
    made = {}
    for name, x in arrays.items():
        kind = x.dtype.name
        x = np.array(x, order="C")
        made[name] = (
            torch.from_numpy(x.view(bits[kind])).view(getattr(torch, kind)) if kind in bits else torch.from_numpy(x)
        )
    return made


def change(folder: Path, changes: Arrays, without: str = "") -> None:
    """Other tensors in a folder's file, without one of them."""
    held = safetensors.torch.load_file(folder / "model.safetensors")
    kept = {name: x for name, x in held.items() if name != without}
    safetensors.torch.save_file(kept | tensors(changes), folder / "model.safetensors")


@pytest.mark.parametrize("scale", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_number_is_the_stored_one_times_the_scale_of_its_block(scheme: str, scale: Any, tmp_path: Path) -> None:
    folder, meaning = quantized(tmp_path, scheme, scale=scale)
    for dtype in ("float64", "float32", "bfloat16"):
        found = weights.read_pretrained(folder, 2, dequantize=True, dtype=None if dtype == "float32" else dtype)
        assert found.dtype == dtype
        want = {name: meaning[f"model.layers.2.self_attn.{name}_proj.weight"] for name in "qkvo"}
        ours = {"q": found.values["w_q"].reshape(12, 12).T, "k": found.values["w_k"].reshape(12, 4).T}
        ours |= {"v": found.values["w_v"].reshape(12, 4).T, "o": found.values["w_o"].reshape(12, 12).T}
        for name, x in want.items():
            assert np.array_equal(ours[name], weights._cast.round_to(x, dtype)), name
    assert sum(key.endswith(SCHEMES[scheme][2]) for key in found.keys) == 4


def test_the_three_packages_and_all_layers(tmp_path: Path) -> None:
    folder, meaning = quantized(tmp_path, "blocks")
    for tree in TREES.values():
        layers = tree.package.load_pretrained(folder, dequantize=True)
        for number, layer in enumerate(layers):
            w_v = np.asarray(tree.numpy(layer.params()["w_v"])).reshape(12, 4).T
            assert np.array_equal(w_v, meaning[f"model.layers.{number}.self_attn.v_proj.weight"].astype(np.float32))


def test_scales_of_powers_of_two(tmp_path: Path) -> None:
    """The exponents alone, in eight bits."""
    folder, _ = quantized(tmp_path, "blocks")
    key = "model.layers.0.self_attn.k_proj.weight"
    numbers = np.arange(48).reshape(4, 12).astype(FLOAT8)
    write(folder / "model.safetensors", {**{name: x for name, x in llama(1).items() if name != key}, key: numbers})
    held = safetensors.torch.load_file(folder / "model.safetensors")
    held[key + "_scale_inv"] = torch.tensor([[120, 130]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    safetensors.torch.save_file(held, folder / "model.safetensors")
    w_k = weights.read_pretrained(folder, 0, dequantize=True).values["w_k"].reshape(12, 4).T
    assert np.array_equal(w_k[:, :7], numbers[:, :7].astype(np.float32) * 2.0**-7)
    assert np.array_equal(w_k[:, 7:], numbers[:, 7:].astype(np.float32) * 2.0**3)


def test_weights_beside_that_are_not_quantised_stay(tmp_path: Path) -> None:
    """They are widened, which is exact, and rounded only with cast=True; scales of inputs and caches go."""
    folder, _ = quantized(tmp_path, "blocks")
    key, start = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn."
    plain = llama()[key].astype(BFLOAT16)
    others = {f"{start}{name}": np.ones(1, np.float32) for name in ("q_proj.input_scale", "k_scale", "v_scale")}
    change(folder, {key: plain, **others}, without=f"{key}_scale_inv")
    found = weights.read_pretrained(folder, 1, dequantize=True)
    assert found.dtype == "float32" and not {*others} & {*found.keys, *found.ignored}
    assert np.array_equal(found.values["w_q"].reshape(12, 12).T, plain.astype(np.float32))
    change(folder, {key: llama()[key]}, without=f"{key}_scale_inv")
    with pytest.raises(weights.DtypeMismatchError, match=r"expected bfloat16, got float32; pass cast=True"):
        weights.read_pretrained(folder, 1, dequantize=True, dtype="bfloat16")
    assert weights.read_pretrained(folder, 1, dequantize=True, dtype="bfloat16", cast=True).dtype == "bfloat16"


# Refusals -------------------------------------------------------------------------------------------------------------


def test_scales_are_applied_only_where_that_is_asked_for(tmp_path: Path) -> None:
    folder, _ = quantized(tmp_path, "blocks")
    words = r"got quantised ones \(fp8, a scale for 5 rows and 7 columns\); pass dequantize=True to load_pretrained"
    for tree in TREES.values():
        with pytest.raises(weights.ConfigMismatchError, match=words):
            tree.package.load_pretrained(folder, 1)
        with pytest.raises(weights.ConfigMismatchError, match=words):
            tree.package.load(folder / "model.safetensors", layout="llama", layer=1)
    stated = {"model_type": "llava", "text_config": LLAMA, "quantization_config": FP8}
    (folder / "config.json").write_text(json.dumps(stated))
    with pytest.raises(weights.ConfigMismatchError, match=words):  # of the whole model, not of its text model
        weights.read_pretrained(folder, 1)
    assert weights.read_pretrained(folder, 1, dequantize=True).dtype == "float32"


OTHERS: dict[str, tuple[Any, str]] = {
    "bitsandbytes, 4 bits": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        "bitsandbytes, nf4, 4 bits",
    ),
    "bitsandbytes, 8 bits": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes, 8 bits"),
    "GPTQ": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq, 4 bits"),
    "AWQ": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "awq, gemm, 4 bits"),
    "MXFP4": ({"quant_method": "mxfp4"}, "mxfp4"),
    "NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt, NVFP4"),
    "packed": (
        group(num_bits=4, type="int", strategy="group", group_size=32) | {"format": "pack-quantized"},
        "compressed-tensors, pack-quantized",
    ),
    "with a zero": (group(type="int", symmetric=False), "compressed-tensors, int-quantized"),
    "no group": (group() | {"config_groups": {}}, "compressed-tensors, int-quantized"),
    "a block without sides": (FP8 | {"weight_block_size": [128]}, "fp8"),
    "a block of words": (FP8 | {"weight_block_size": ["a", "b"]}, "fp8"),
    "rotated": (
        group() | {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}},
        "compressed-tensors with transform_config",
    ),
    "a field that nobody knows": (FP8 | {"colour": 1}, "fp8 with colour"),
    "no method": ({"bits": 4}, "of no known kind, 4 bits"),
    "no object": ("fp8", "of no known kind"),
    "a method that is a list": ({"quant_method": ["fp8"]}, r"\['fp8'\]"),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("dequantize", [False, True])
def test_other_schemes_are_refused_by_name(case: str, dequantize: bool, tmp_path: Path) -> None:
    """Before weights are looked for."""
    stated, name = OTHERS[case]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": stated}))
    with pytest.raises(weights.ConfigMismatchError, match=rf"quantised ones \({name}\), which are not read; get the"):
        weights.read_pretrained(tmp_path, 0, dequantize=dequantize)


def test_scales_that_do_not_fit(tmp_path: Path) -> None:
    folder, _ = quantized(tmp_path, "blocks")
    key = "model.layers.1.self_attn.o_proj.weight"
    scales = np.full((3, 2), 0.5, np.float32)
    with pytest.raises(
        weights.ShapeMismatchError, match=r"expected shape \(3, 2\), fp8, a scale for 5 rows.*got \(2, 3\)"
    ):
        change(folder, {f"{key}_scale_inv": scales.T})
        weights.read_pretrained(folder, 1, dequantize=True)
    with pytest.raises(weights.MissingKeysError, match=r"expected .*_scale_inv or .*_scale, as this tensor is F8_E4M3"):
        change(folder, {}, without=f"{key}_scale_inv")
        weights.read_pretrained(folder, 1, dequantize=True)
    with pytest.raises(weights.DtypeMismatchError, match="expected F8_E4M3 or F8_E5M2, as it has scales"):
        change(folder, {key: np.ones((12, 12), np.float32), f"{key}_scale_inv": scales})
        weights.read_pretrained(folder, 1, dequantize=True)
    ones = np.ones((12, 12), FLOAT8)
    with pytest.raises(weights.DtypeMismatchError, match="expected one of F64, F32, F16, BF16, F8_E8M0, got U8"):
        change(folder, {key: ones, f"{key}_scale_inv": scales.astype(np.uint8)})
        weights.read_pretrained(folder, 1, dequantize=True)
    with pytest.raises(weights.DtypeMismatchError, match=r"float16.*up to 100000, beyond its range"):
        change(folder, {key: ones, f"{key}_scale_inv": np.full((3, 2), 1e5, np.float32)})
        weights.read_pretrained(folder, 1, dequantize=True, dtype="float16", cast=True)
    with pytest.raises(weights.NonFiniteWeightError, match="o_proj"):
        change(folder, {key: np.full((12, 12), np.nan, FLOAT8), f"{key}_scale_inv": scales})
        weights.read_pretrained(folder, 1, dequantize=True)


def test_without_a_scheme_dequantize_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    write(tmp_path / "model.safetensors", {name: x.astype(np.float16) for name, x in llama().items()})
    found = weights.read_pretrained(tmp_path, 1, dequantize=True)
    assert found.dtype == "float16" and all(x.dtype == np.float16 for x in found.values.values())


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("scheme", ["blocks", "whole tensors"])
def test_the_numbers_are_those_of_the_library(scheme: str, tmp_path: Path) -> None:
    """In blocks that divide the tensors: no others does it take."""
    integrations = pytest.importorskip("transformers.integrations.finegrained_fp8")
    folder, _ = quantized(tmp_path, scheme)
    if scheme == "blocks":
        stated, held = FP8 | {"weight_block_size": [2, 6]}, llama()
        for name in [name for name in held if "_proj.weight" in name]:
            if ".mlp." not in name:
                held[name], held[name + "_scale_inv"] = stored(held[name], (2, 6), FLOAT8, np.float32)
        write(folder / "model.safetensors", held)
        (folder / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": stated}))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    found = weights.read_pretrained(folder, 1, dequantize=True)
    for name in "qkv":
        key = f"model.layers.1.self_attn.{name}_proj.weight"
        scales = tensors[f"{key}_scale_inv"]
        theirs = integrations.Fp8Dequantize(None)._dequantize_one(tensors[key], scales, torch.float32).numpy()
        assert np.array_equal(found.values[f"w_{name}"].reshape(12, -1).T, theirs)
