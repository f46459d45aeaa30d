"""Mistakes that stand in mamba2's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

whole, recurrent, chunked = (at("mamba2.py", "mamba2", example) for example in ("whole", "recurrent", "chunked"))
MUTANTS = (
    whole(
        "values written without the step",
        "the step multiplies the value that is written as well as the decay's exponent",
        "q_heads, k_heads, v, step, decay[..., None]",
        "q_heads, k_heads, v, 0.0 * step + 1.0, decay[..., None]",
    ),
    whole(
        "decay without the step",
        "the state fades by exp(-step * rate)",
        "decay = exp(-(exp(upcast(self.a_log)) * step))",
        "decay = exp(-(exp(upcast(self.a_log)) + 0.0 * step))",
    ),
    recurrent(
        "padding lets the state of Mamba-2 fade",
        "the step is 0 at padding: nothing fades and nothing is written",
        'step=zero_unseen("bt->bth", real, softplus(dt))',
        "step=softplus(dt)",
    ),
    recurrent(
        "one norm over all heads for a norm in groups",
        "each group of heads is divided by its own size",
        "normed = rms_norm(in_groups(gated, c.norm_groups), weight, c.norm_eps)",
        "normed = rms_norm(in_groups(gated, 1), in_groups(self.w_norm, 1), c.norm_eps)",
    ),
    chunked(
        "norm before the gate of Mamba-2",
        "gate first, then norm",
        "gated = record(tape, gated=silu(gate_scores) * context)",
        "gated = record(tape, gated=silu(gate_scores) * rms_norm(context, None, c.norm_eps))",
    ),
    chunked(
        "D added before the SiLU of the values",
        "D multiplies the values after convolution and SiLU",
        "+ upcast(self.skip)[:, None] * v_silu)",
        "+ upcast(self.skip)[:, None] * v)",
    ),
    recurrent(
        "bias of the convolution left out",
        "add the convolution's bias before SiLU",
        "v + upcast(self.b_v_conv)",
        "v",
    ),
    chunked(
        "gradient of the rate without the rate",
        "a_log is a logarithm: its gradient has the factor exp(a_log)",
        'dw["a_log"] = sum_to(dexponent * step, rate.shape) * rate',
        'dw["a_log"] = sum_to(dexponent * step, rate.shape)',
        trees=NUMPY,
    ),
    whole(
        "values' gradient without the skip",
        "the value is read twice: by the state and by D",
        "sum_grads(dv_silu, upcast(self.skip)[:, None] * dcontext)",
        "dv_silu",
        trees=NUMPY,
    ),
)
