"""The functions that models call for attention, on this library: PyTorch's, JAX's and Hugging Face's.

import torch.nn.functional as F
F.scaled_dot_product_attention = attn_torch.drop_in.scaled_dot_product_attention

attn_torch.drop_in.register()  # in transformers, for this process
model = AutoModel.from_pretrained(name, attn_implementation="attn_parity")
"""

from typing import Any

import torch
from torch import Tensor

import attn_torch.attention.drop_in as shared
from attn_np.contract import _drop_in as drop_in_contract
from attn_np.contract._base import field_error
from attn_torch.attention.attend import attend
from attn_torch.attention.drop_in import dot_product_attention as dot_product_attention
from attn_torch.attention.functions import to_python_scalar
from attn_torch.ops.specs import checked_specs

__all__ = ["dot_product_attention", "register", "scaled_dot_product_attention", "transformers_attention"]

# Arguments of `transformers` that `attend` cannot honour: refused if passed.
UNSUPPORTED_ARGUMENTS = ("position_bias", "cache", "block_indices", "indices", "block_mask", "score_mod")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, with its arguments, axes and meaning.

    A query that sees no key gets zeros, as there. Dropout is drawn from PyTorch's generator, but not in its order.

    Raises:
        ValueError: shapes that do not fit, or values that mean nothing here.
        TypeError: dtypes that do not fit.
    """
    keep, dropout_p = None, to_python_scalar(dropout_p)
    if isinstance(dropout_p, float) and 0 < dropout_p < 1:
        arrays = checked_specs(drop_in_contract.TORCH_FUNCTION, query=query, key=key, value=value)
        batch, heads, _ = drop_in_contract.checked_heads_first_sizes(
            drop_in_contract.TORCH_FUNCTION, arrays, "attn_mask", may_share_heads=enable_gqa
        )
        shape = (*batch, heads, query.shape[-2], key.shape[-2])
        keep = torch.rand(shape, device=query.device, dtype=torch.float32) >= dropout_p
    return shared.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, keep=keep
    )


def transformers_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention function of `transformers`: from `b h t k`, the output `b t h v` and the weights, if asked for.

    Without a mask, a module that is causal attends causally, as with "sdpa". Windows come as masks; caps and sinks are
    arguments.

    Raises:
        ValueError: an argument that no attention here has.
    """
    unknown = [name for name in UNSUPPORTED_ARGUMENTS if options.get(name) is not None]
    if unknown:
        fix = 'set attn_implementation="eager" for this model'
        raise field_error(
            drop_in_contract.TRANSFORMERS_FUNCTION, "no other input of the scores", ", ".join(unknown), fix
        )
    arrays = {"query": query, "key": key, "value": value, "s_aux": s_aux}
    drop_in_contract.check_transformers(
        checked_specs(drop_in_contract.TRANSFORMERS_FUNCTION, attention_mask=attention_mask, **arrays), scaling, softcap
    )
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    t, s = query.shape[2], key.shape[2]
    causal = bool(is_causal) and attention_mask is None and t > 1
    if causal and s > t:  # a cache with room that is not filled: query i is at position i
        key, value = key[:, :, :t], value[:, :, :t]
    if attention_mask is not None:
        attention_mask = attention_mask[..., :s]
    is_bool = attention_mask is not None and attention_mask.dtype == torch.bool
    keep = None
    if dropout > 0:
        keep = torch.rand((*query.shape[:3], key.shape[2]), device=query.device, dtype=torch.float32) >= dropout
    context, weights = attend(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        mask=attention_mask if is_bool else None,
        bias=None if is_bool else attention_mask,
        causal=causal,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        keep=keep,
        rate=float(dropout),
        return_weights=bool(options.get("output_attentions")),
    )
    return context, weights


def register(name: str = "attn_parity") -> None:
    """Make this library's attention known to `transformers` under a name, with the masks of its "sdpa".

    Raises:
        ModuleNotFoundError: `transformers` is not installed.
    """
    transformers = __import__("transformers", fromlist=["AttentionInterface", "AttentionMaskInterface"])
    masks = __import__("transformers.masking_utils", fromlist=["sdpa_mask"])
    transformers.AttentionInterface.register(name, transformers_attention)
    transformers.AttentionMaskInterface.register(name, masks.sdpa_mask)
