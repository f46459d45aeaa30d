"""Mistakes that stand in gla's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

whole, recurrent, chunked = (at("gla.py", "gla", example) for example in ("whole", "recurrent", "chunked"))
LOG = "-(softplus(-a) * (1 / c.temperature))"
MUTANTS = (
    recurrent(
        "temperature inside the sigmoid",
        "take the sigmoid first, then its power: softplus(-a) is divided by the temperature, not a",
        LOG,
        "-softplus(-a * (1 / c.temperature))",
    ),
    chunked(
        "decay of 1 minus the sigmoid",
        "a decay is sigmoid(a), not sigmoid(-a)",
        LOG,
        "-(softplus(a) * (1 / c.temperature))",
    ),
    recurrent(
        "padding lets the channels fade",
        "where there is no position the state must not decay: the logarithm is 0",
        f'zero_unseen("bt->bthk", real, {LOG})',
        LOG,
    ),
    whole(
        "bias of the decays dropped",
        "add the bias of the decays before the sigmoid",
        "latent, self.w_a_up, self.b_a))\n        # the",
        "latent, self.w_a_up, None))\n        # the",
    ),
    chunked(
        "one decay for all channels of a head",
        "each channel of the keys has a decay of its own",
        "call.continues, exp(log_decay)",
        "call.continues, 0.0 * log_decay + exp(log_decay[..., :1])",
    ),
    whole(
        "output gate without SiLU",
        "gate the normed heads by silu(x w_gate)",
        "gated=silu(gate_scores) * normed",
        "gated=gate_scores * normed",
    ),
    recurrent(
        "gradient of the decay without its exponential",
        "a decay's logarithm gets the decay's gradient times the decay",
        "dlog_decay=ddecay * decay",
        "dlog_decay=ddecay",
        trees=NUMPY,
    ),
)
