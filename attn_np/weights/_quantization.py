"""What a `config.json` says of quantised weights: schemes whose scales can be applied, and the names of the others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Codes of safetensors for numbers of eight bits, by the type that a scheme names.
CODES: Mapping[str, tuple[str, ...]] = {"float": ("F8_E4M3", "F8_E5M2"), "int": ("I8",)}
# What libraries call their schemes of four and fewer bits, by the field that says which one it is.
# What else the fields of a scheme may say without changing what the stored weights stand for.
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fmt", "weight_block_size", "activation_scheme", "modules_to_not_convert", "scale_fmt", "dequantize"),
    "compressed-tensors": (
        "format", "config_groups", "ignore", "quantization_status", "global_compression_ratio", "kv_cache_scheme",
        "version",
    ),
    "fbgemm_fp8": ("activation_scale_ub", "modules_to_not_convert"),
    "modelopt": (
        "quant_algo", "producer", "ignore", "exclude_modules", "kv_cache_quant_algo", "kv_cache_scheme",
        "config_groups", "targets",
    ),
}  # fmt: skip
KINDS = ("bnb_4bit_quant_type", "quant_algo", "format", "quant_type", "version")


@dataclass(frozen=True)
class Scheme:
    """Weights of eight bits, each the stored number times a stored scale.

    Attributes:
        method: the library's name for it.
        codes: the dtypes of the stored numbers, by their codes in the format.
        block: rows and columns that share a scale; 0 for all of them.
    """

    method: str
    codes: tuple[str, ...]
    block: tuple[int, int]

    def words(self) -> str:
        """The scheme, in a few words."""
        rows, columns = (n or "all" for n in self.block)
        return f"{self.method}, a scale for {rows} rows and {columns} columns"


def scheme_of(fields: Any) -> Scheme | str:
    """The scheme of a `quantization_config`; of one whose scales are not applied, its name."""
    if not isinstance(fields, Mapping):
        return "of no known kind"
    method = fields.get("quant_method", "of no known kind")
    of_method = {"fp8": fine_grained, "compressed-tensors": compressed, "fbgemm_fp8": by_rows, "modelopt": modelopt}
    block_and_kind = of_method[method](fields) if str(method) in of_method else None
    if block_and_kind is None:
        kinds = [str(fields[key]) for key in KINDS if isinstance(fields.get(key), str)]
        bits = "4 bits" if fields.get("load_in_4bit") else "8 bits" if fields.get("load_in_8bit") else ""
        bits = f"{fields['bits']} bits" if type(fields.get("bits")) is int else bits
        return ", ".join(filter(None, (str(method), *kinds, bits)))
    unknown = [key for key, x in fields.items() if x and key not in ("quant_method", *ELSEWHERE[str(method)])]
    if unknown:  # such as rotations of the weights
        return f"{method} with {', '.join(sorted(unknown))}"
    block, kind = block_and_kind
    return Scheme(str(method), CODES[kind], block)


def fine_grained(fields: Mapping[str, Any]) -> tuple[tuple[int, int], str] | None:
    """DeepSeek's: a scale for each block, or one for a whole tensor."""
    block = block_of(fields.get("weight_block_size"))
    return None if block is None or fields.get("fmt", "e4m3") not in ("e4m3", "e5m2") else (block, "float")


def by_rows(fields: Mapping[str, Any]) -> tuple[tuple[int, int], str] | None:
    """FBGEMM's: a scale for each row."""
    return (1, 0), "float"


def modelopt(fields: Mapping[str, Any]) -> tuple[tuple[int, int], str] | None:
    """Model Optimizer's, of which FP8 has one scale for a tensor."""
    return ((0, 0), "float") if fields.get("quant_algo") == "FP8" else None


def compressed(fields: Mapping[str, Any]) -> tuple[tuple[int, int], str] | None:
    """Those of compressed-tensors with eight bits, symmetric, and not packed."""
    groups = fields.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    found = {of_group(one) for one in weights if isinstance(one, Mapping)}
    formats = ("float-quantized", "int-quantized", "naive-quantized")
    one = found.pop() if len(found) == 1 else None
    return one if fields.get("format") in formats and len(weights) > 0 else None


def of_group(weights: Mapping[str, Any]) -> tuple[tuple[int, int], str] | None:
    """The block and the type of a group's weights."""
    kind, strategy, block = str(weights.get("type", "int")), weights.get("strategy", "tensor"), None
    if strategy in ("tensor", "channel"):
        block = (0, 0) if strategy == "tensor" else (1, 0)
    elif strategy == "block":
        block = block_of(weights.get("block_structure", 0))
    elif strategy == "group" and type(weights.get("group_size")) is int:
        block = (1, weights["group_size"])
    plain = weights.get("num_bits") == 8 and weights.get("symmetric", True) is True and not weights.get("actorder")
    return None if block is None or not plain or kind not in CODES else (block, kind)


def block_of(value: Any) -> tuple[int, int] | None:
    """Rows and columns of a block, from a list of two or "128x128"; all of both for null."""
    if value is None:
        return 0, 0
    sides = value.split("x") if isinstance(value, str) else value
    numbers = [int(n) for n in sides if str(n).isdigit()] if isinstance(sides, list) else []
    return (numbers[0], numbers[1]) if len(numbers) == len(sides) == 2 and min(numbers) > 0 else None
