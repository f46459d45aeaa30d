"""Intermediates by name, for a tape and for the policies of `jax.checkpoint`."""

from typing import Any

from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer

from attn_np import contract


def record(tape: Any, **values: Any) -> Any:
    """As the contract's `record`; under a transform each value has its name for `save_only_these_names` and the like,
    with a tape or without.
    """
    named = {name: checkpoint_name(x, name) if isinstance(x, Tracer) else x for name, x in values.items()}
    return contract.record(tape, **named)
