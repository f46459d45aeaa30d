"""Mistakes about rotary positions: which numbers pair, by which angles they turn, and what is turned."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

BY_POSITION = "rotate queries and keys by their positions: cosines and sines belong to the axis of the sequence"
OFF_BY_ONE = "give queries and keys the same positions: in decoding too a query's own key has its position"
LATER = (
    r"rotate(rotate(\1, cos, sin, c.rope_layout), "
    r"cos[:, 1:2] / c.cos_sin_factor(), sin[:, 1:2] / c.cos_sin_factor(), c.rope_layout)"
)
# What is rotated, as the variants write it.
KEYS = r"rotate\((k|(?:linear|einsum)\([^\n]*self\.w_k\w*(?:, [\w.]+)?\)), cos, sin, c\.rope_layout\)"
QUERIES = r"rotate\((q|q\[[^\n]*?\]|linear\([^\n]*self\.w_q, [\w.]+\)), cos, sin, c\.rope_layout\)"
# The keys and values behind the rotation, on their way into a cache.
BEFORE_CACHE = r"(cos, sin, c\.rope_layout\)\)?\n(?:[^\n]*\n){0,24})( +)(context = call\.attend\()"

FREQUENCIES = "xp.asarray(config.frequencies(length), dtype=xp.float64)"
# The 8 leading bits of a float64: Veltkamp's splitting; and 11.
IN_FLOAT16 = "{x} * (2.0**42 + 1.0) - ({x} * (2.0**42 + 1.0) - {x})"
IN_BFLOAT16 = "{x} * (2.0**45 + 1.0) - ({x} * (2.0**45 + 1.0) - {x})"

turned = at("rotary.py", "rotary", "interleaved", pattern=True)
yarn, interleaved = (at(SHARED, "rotary", example) for example in ("yarn", "interleaved"))
in_turn = at(SHARED, "decoder", "gated")
MUTANTS = (
    interleaved(
        "rotary layouts exchanged",
        "pair as the weights were trained: halves (Llama, NeoX) or neighbours (GPT-J); rotary_layout moves columns",
        'layout == "half"',
        'layout != "half"',
        many=True,
    ),
    yarn(
        "rotary angles the wrong way round",
        "turn (a, b) to (a cos - b sin, b cos + a sin), queries and keys alike",
        "join_pairs(-sin, sin, layout, xp)",
        "join_pairs(sin, -sin, layout, xp)",
    ),
    yarn(
        "rotary angles in float32",
        "make angles, cosines and sines in float64 and round the tables once",
        FREQUENCIES,
        "xp.asarray(config.frequencies(length), dtype=xp.float32)",
    ),
    yarn(
        "frequencies of the rotary positions rounded to bfloat16",
        "keep them in float32 or more: module.to(bfloat16) rounds a buffer, and float() does not mend it",
        FREQUENCIES,
        f"(lambda f: {IN_BFLOAT16.format(x='f')})({FREQUENCIES})",
    ),
    yarn(
        "cosines and sines of the rotary positions rounded to bfloat16",
        "keep the tables in float32 or more until they are multiplied",
        "return xp.asarray(cos_sin, dtype=getattr(xp, dtype))",
        f"return xp.asarray({IN_BFLOAT16.format(x='cos_sin')}, dtype=getattr(xp, dtype))",
    ),
    yarn(
        "cosines and sines of the rotary positions rounded to float16",
        "keep the tables in float32 or more until they are multiplied",
        "return xp.asarray(cos_sin, dtype=getattr(xp, dtype))",
        f"return xp.asarray({IN_FLOAT16.format(x='cos_sin')}, dtype=getattr(xp, dtype))",
    ),
    interleaved(
        "rotary frequencies by the width of the model",
        "divide the exponents by the width of one head, or of the part of it that is rotated",
        FREQUENCIES,
        f"{FREQUENCIES} * xp.asarray([config.rope_base ** (2 * i / config.rotary_width() - 2 * i / "
        'config.sizes()["d"]) for i in range(config.rotary_width() // 2)], dtype=xp.float64)',
    ),
    yarn(
        "cosines and sines repeated in pairs, numbers paired by halves",
        "give both halves the same angles: cat((freqs, freqs), -1) with rotate_half, repeat_interleave with neighbours",
        "return join_pairs(cos, cos, layout, xp), join_pairs(-sin, sin, layout, xp)",
        "other = 'interleaved' if layout == 'half' else 'half'\n"
        "    signs = join_pairs(0 * sin - 1, 0 * sin + 1, layout, xp)\n"
        "    return join_pairs(cos, cos, other, xp), join_pairs(sin, sin, other, xp) * signs",
    ),
    at(SHARED, "rotary", "longrope")(
        "rotary frequencies by the width of the head where a part of it is rotated",
        "divide the exponents by rotary_dim, the width of the part that is rotated",
        FREQUENCIES,
        f"{FREQUENCIES} * xp.asarray([config.rope_base ** (2 * i / config.rotary_width() - 2 * i / "
        'config.sizes()["k"]) for i in range(config.rotary_width() // 2)], dtype=xp.float64)',
    ),
    yarn(
        "attention factor of the rotary scaling left out",
        "multiply cosines and sines by the attention factor of yarn and longrope",
        " * config.cos_sin_factor()",
        "",
    ),
    turned("queries one position further than their keys", OFF_BY_ONE, QUERIES, LATER),
    turned("keys one position further than their queries", OFF_BY_ONE, KEYS, LATER),
    turned(
        "keys and queries rotated in opposite directions",
        "rotate queries and keys by the same angles in the same direction",
        KEYS,
        r"rotate(\1, cos, -sin, c.rope_layout)",
    ),
    turned(
        "keys not turned by their positions",
        "turn the keys as the queries, before they go into a cache",
        KEYS,
        r"\1",
    ),
    turned("queries not rotated", "rotate the queries as the keys", QUERIES, r"\1"),
    turned(
        "values rotated, too",
        "rotate queries and keys alone: a position belongs to the scores, not to the values",
        BEFORE_CACHE,
        r"\1\2v = rotate(v, cos, sin, c.rope_layout)\n\2\3",
    ),
    interleaved(
        "rotary positions counted from 1",
        "count positions from 0; scores know distances alone, but a cache and given positions count from 0",
        "angles = xp.arange(count, dtype=xp.float64)[:, None] * ",
        "angles = (1.0 + xp.arange(count, dtype=xp.float64))[:, None] * ",
        survives="scores depend on the distances of positions alone",
    ),
    interleaved(
        "queries and keys not rotated by their positions (not at all, or along the heads)",
        BY_POSITION,
        "if cos is None or sin is None:",
        "if cos is None or sin is not None:",
    ),
    interleaved(
        "rotary angles of base^(-i/d), without the 2",
        "pair i turns by base^(-2i/d) for each position; without the 2 the numbers are those of the root of the base",
        FREQUENCIES,
        "config.rope_base ** -(xp.arange(config.rotary_width() // 2, dtype=xp.float64) / config.rotary_width())",
    ),
    interleaved(
        "all pairs rotated by the first axis of the positions",
        "deal the pairs out to the axes by their sections: time, row and column in M-RoPE",
        "x[i][..., end - n : end] for",
        "x[0][..., end - n : end] for",
    ),
    in_turn(
        "pairs of interleaved sections dealt out in blocks",
        "let the axes take pairs in turn, time, row, column, time, as Qwen3-VL does",
        "(pair % axes == axis) & (pair < axes * count)",
        "(pair >= sum(sections[:axis])) & (pair < sum(sections[: axis + 1]))",
    ),
    interleaved(
        "rotated along the heads",
        BY_POSITION,
        "    width = cos.shape[-1]\n",
        "    if x.ndim == 4:\n        cos, sin = (y.swapaxes(1, 2)[:, :, : x.shape[2]] for y in (cos, sin))\n"
        "    width = cos.shape[-1]\n",
    ),
    interleaved(
        "rotary gradient turned forwards once more",
        "the gradient of a rotation is the rotation by the negative angle",
        "dq = rotate(dq, cos, sin, c.rope_layout, inverse=True)",
        "dq = rotate(dq, cos, sin, c.rope_layout)",
        file="rotary.py",
        trees=NUMPY,
    ),
    interleaved(
        "rotary base of 10000 whatever the config says",
        "read the base of the frequencies from the config: 500 000 in Llama 3, a million in Qwen2",
        FREQUENCIES,
        "xp.asarray(__import__('dataclasses').replace(config, rope_base=10000.0).frequencies(length), "
        "dtype=xp.float64)",
    ),
)
