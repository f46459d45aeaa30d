"""Dot-product attention: a query takes the average of the values whose keys it resembles."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.dot_product import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape
from attn_np.ops.vjp import Grads


class DotProductAttention(Layer[Config]):
    """A query takes the average of the values whose keys it resembles."""

    def __call__(
        self,
        query: Float[Array, "b t k"],
        key: Float[Array, "b s k"] | None = None,
        value: Float[Array, "b s v"] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        q, k, v = call.inputs(projected=False)
        return call.end(call.attend(q, k, v))

    def vjp(self, tape: Tape, dy: Float[Array, "b t v"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order."""
        back = AttentionBackward(self, tape, dy)
        return back.end(*back.attend(back.dy))
