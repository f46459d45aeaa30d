"""The refusal of calls within PyTorch's `context_parallel`, where each process holds a part of every sequence."""

import torch

# As it was before anything replaced it, even if this file is imported in such a context.
scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention  # type: ignore[attr-defined]


def refuse_context_parallel(who: str) -> None:
    """Refuse a call within `torch.distributed.tensor.experimental.context_parallel`.

    The context splits sequences between processes and replaces PyTorch's own attention by one that exchanges the parts.
    Ours would attend to the part of its own process, and count positions from its start.

    Raises:
        ValueError: within the context.
    """
    current = torch.nn.functional.scaled_dot_product_attention
    if current is scaled_dot_product_attention:
        return
    if str(getattr(current, "__module__", "")).startswith("torch.distributed.tensor.experimental"):
        raise ValueError(
            f"{who}: expected whole sequences, got a call within context_parallel, which splits them between "
            "processes; call it outside of the context, and split the sequence by attn_torch.parallel"
        )
