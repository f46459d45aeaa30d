"""The key of zeros of `nn.MultiheadAttention(add_zero_attn=True)`, which no parameter shows: a sink of 0 here."""

import sys
from collections.abc import Iterator
from typing import Any

from attn_np.contract import Config

ADVICE = "take variant 'sinks' with sink='zero', which is its key of zeros"


def adds_zero_key(module: Any) -> bool:
    """Whether a module is, or contains, PyTorch's attention with a key of zeros."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        return False
    kind = torch.nn.MultiheadAttention
    return any(isinstance(part, kind) and part.add_zero_attn for part in module.modules())


def variants_in(module: Any) -> Iterator[str]:
    """The variants of the layers of ours in a PyTorch module, or of a layer itself."""
    parts = module.modules() if hasattr(module, "modules") else [module]
    configs = (getattr(part, "config", None) for part in parts)
    return (config.variant for config in configs if isinstance(config, Config))


def refuse_zero_key(who: str, module: Any, variants: tuple[str, ...]) -> None:
    """Refuse to hold a module with a key of zeros against layers that have none.

    Raises:
        ValueError: naming the variant that has one.
    """
    if variants and "sinks" not in variants and adds_zero_key(module):
        got = " and ".join(map(repr, dict.fromkeys(variants)))
        expected = "variant 'sinks' beside a module with add_zero_attn=True"
        raise ValueError(f"{who}: expected {expected}, got {got}; {ADVICE}")
