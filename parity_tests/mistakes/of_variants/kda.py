"""Mistakes that stand in kda's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

whole, recurrent, chunked = (at("kda.py", "kda", example) for example in ("whole", "recurrent", "chunked"))
LOG = "-(rate * softplus(a))"
MUTANTS = (
    recurrent(
        "padding lets the channels of the state fade",
        "where there is no position the state must not decay: the logarithm is 0",
        f'zero_unseen("bt->bthk", real, {LOG})',
        LOG,
    ),
    chunked(
        "the same decay in every channel",
        "each channel of the keys has a decay of its own",
        "call.continues, exp(log_decay)",
        "call.continues, 0.0 * log_decay + exp(log_decay[..., :1])",
    ),
    whole(
        "SiLU in place of the output gate's sigmoid",
        "gate the normed heads by a sigmoid",
        "gated = record(tape, gated=gate * normed)",
        "gated = record(tape, gated=linear('btz,zhv->bthv', gate_latent, self.w_gate_up, self.b_gate) * gate * normed)",
    ),
    whole(
        "bias of the output gates dropped",
        "add the bias of the output gates before the sigmoid",
        "gate_latent, self.w_gate_up, self.b_gate)))",
        "gate_latent, self.w_gate_up, None)))",
    ),
    recurrent(
        "values of the delta rule without silu",
        "silu is on queries, keys and values alike",
        "v_silu=silu(v))",
        "v_silu=v)",
    ),
    chunked(
        "first head of keys for all heads",
        "as many heads in a row use the same head of keys",
        "repeat_heads(k_unit, v_silu)\n        q_scaled",
        "repeat_heads(k_unit[:, :, :1], v_silu)\n        q_scaled",
    ),
    chunked(
        "keys not of length 1",
        "divide the keys by their length, after SiLU",
        "l2_normalize(silu(k), c.qk_eps()))\n        q_unit, k_unit, v_silu",
        "silu(k))\n        q_unit, k_unit, v_silu",
    ),
    chunked(
        "gradient of the rates of the first channel alone",
        "a head's rate is in the decay of all channels: sum their gradients",
        "-sum_to(dlog_decay * softplus(a), rate.shape)[:, 0]",
        "-sum_to((dlog_decay * softplus(a))[..., :1], rate.shape)[:, 0]",
        trees=NUMPY,
    ),
)
