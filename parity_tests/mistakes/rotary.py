"""Mistakes about rotary positions: which numbers pair, by which angles they turn, and what is turned."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

yarn, interleaved = (at(SHARED, "rotary", example) for example in ("yarn", "interleaved"))
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
        "a * cos - b * sin, b * cos + a * sin",
        "a * cos + b * sin, b * cos - a * sin",
    ),
    yarn(
        "rotary angles in float32",
        "make angles, cosines and sines in float64 and round the tables once",
        "xp.asarray(config.frequencies(length), dtype=xp.float64)",
        "xp.asarray(config.frequencies(length), dtype=xp.float32)",
    ),
    yarn(
        "attention factor of the rotary scaling left out",
        "multiply cosines and sines by the attention factor of yarn and longrope",
        " * config.amplitude()",
        "",
    ),
    interleaved(
        "keys not turned by their positions",
        "turn the keys as the queries, before they go into a cache",
        'rotate(linear("bsd,dhk->bshk", key, self.w_k, self.b_k), cos, sin, c.layout)',
        'linear("bsd,dhk->bshk", key, self.w_k, self.b_k)',
        file="rotary.py",
    ),
    interleaved(
        "rotary gradient turned forwards once more",
        "the gradient of a rotation is the rotation by the negative angle",
        "dq = rotate(dq, cos, sin, c.layout, back=True)",
        "dq = rotate(dq, cos, sin, c.layout)",
        file="rotary.py",
        trees=NUMPY,
    ),
    interleaved(
        "rotary base of 10000 whatever the config says",
        "read the base of the frequencies from the config: 500 000 in Llama 3, a million in Qwen2",
        "xp.asarray(config.frequencies(length), dtype=xp.float64)",
        "10000.0 ** -(xp.arange(config.rotary_width() // 2, dtype=xp.float64) * 2 / config.rotary_width())",
    ),
)
