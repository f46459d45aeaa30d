"""Mistakes that stand in t5_bias's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import SHARED, at

encoder, decoder = at("t5_bias.py", "t5_bias", "encoder"), at("t5_bias.py", "t5_bias", "decoder")
BUCKET = "bucket=lookup(c.buckets(), relative_position + c.max_distance))"
# The bucket of each distance, with the logarithm rounded.
ROUNDED = (
    "(lambda side, log: tuple((side if r > 0 and c.bidirectional else 0) + (a if a < side // 2 else min(side - 1, "
    "side // 2 + round(log(a / (side // 2)) / log(c.max_distance / (side // 2)) * (side - side // 2)))) "
    "for r in range(-c.max_distance, c.max_distance + 1) for a in (abs(r) if c.bidirectional else max(-r, 0),)))"
    '(c.num_buckets // 2 if c.bidirectional else c.num_buckets, __import__("math").log)'
)
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
        "relative_bias_fn=relative_bias_fn",
        "relative_bias_fn=relative_bias_fn, scale=None",
    ),
    encoder(
        "table of biases read one bucket late",
        "the first row of the table is that of the position itself",
        "relative_position + c.max_distance))",
        "clip(relative_position + c.max_distance + 1, 0, 2 * c.max_distance)))",
    ),
    encoder(
        "buckets of both sides alike",
        "add half of the buckets where the key stands behind the query",
        "relative_position + c.max_distance))",
        "c.max_distance - abs(relative_position)))",
    ),
    encoder(
        "table of biases scaled with the scores",
        "add the table's numbers after the scores were scaled",
        "take(self.w_bias, bucket, fits=True).swapaxes(1, 3))\n",
        "take(self.w_bias, bucket, fits=True).swapaxes(1, 3) * q.shape[-1] ** -0.5)\n",
    ),
    encoder(
        "gradient of the table from one sequence",
        "every sequence of the batch reads the table: add up all their gradients",
        'relative_bias_vjp(tape, tape["position_bias"].shape)',
        'tape["dbiased"][:1]',
        trees=("attn_np",),
    ),
    encoder(
        "bias of the positions added after the softmax",
        "add the bias of the positions to the scores, before the softmax",
        "bias = by_pair if bias is None else by_pair + to_dtype(bias, dtype_name(by_pair))",
        "softmax_fn = (lambda added: lambda scores, visible: softmax(scores, visible) + added)(by_pair)",
        file=SHARED,
    ),
    encoder(
        "own position in the half of later keys",
        "a key is later where its position is larger than the query's, not where it is equal",
        BUCKET,
        BUCKET[:-1] + " + where(relative_position == 0, c.num_buckets // 2 if c.bidirectional else 0, 0))",
        needs=("where",),
    ),
    encoder(
        "logarithms of the distances rounded to the nearest bucket",
        "truncate the logarithm to a whole number: floor, int(); do not round it",
        BUCKET,
        BUCKET.replace("c.buckets()", ROUNDED),
    ),
)
