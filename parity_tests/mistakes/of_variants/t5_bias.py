"""Mistakes that stand in t5_bias's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

encoder, decoder = at("t5_bias.py", "t5_bias", "encoder"), at("t5_bias.py", "t5_bias", "decoder")
MUTANTS = (
    encoder(
        "offset of the bucket is query minus key",
        "look up the bucket of the key's position minus the query's",
        "clip(relative_position.swapaxes(1, 2),",
        "clip(-relative_position.swapaxes(1, 2),",
    ),
    decoder(
        "T5's scores divided by the root of the width",
        "leave the scores of T5 unscaled, or scale them by what the config says",
        "causal=c.causal, scale=c.scale",
        "causal=c.causal, scale=None",
    ),
    encoder(
        "table of biases read one bucket late",
        "the first row of the table is that of the position itself",
        "[relative_position + c.max_distance]",
        "[clip(relative_position + c.max_distance + 1, 0, 2 * c.max_distance)]",
    ),
    encoder(
        "buckets of both sides alike",
        "add half of the buckets where the key stands behind the query",
        "[relative_position + c.max_distance]",
        "[c.max_distance - abs(relative_position)]",
    ),
    encoder(
        "table of biases scaled with the scores",
        "add the table's numbers after the scores were scaled",
        "take(self.w_bias, bucket).swapaxes(1, 3))\n",
        "take(self.w_bias, bucket).swapaxes(1, 3) * q.shape[-1] ** -0.5)\n",
    ),
    encoder(
        "gradient of the table from one sequence",
        "every sequence of the batch reads the table: add up all their gradients",
        'relative_bias_vjp(tape, tape["position_bias"].shape)',
        'tape["dbiased"][:1]',
        trees=("attn_np",),
    ),
)
