"""Mistakes around the heads: projections in and out, splitting, sharing and merging."""

from parity_tests.mistakes.plant import SHARED, at

split, wide, cross = (at("mha.py", "mha", example) for example in ("split", "wide", "cross"))
patterned = at("mha.py", "mha", "split", pattern=True)
fused, single = at("fused_qkv.py", "fused_qkv", "heads"), at("self_attention.py", "self_attention", "plain")
shared = at(SHARED, "attend", "")
by_index = at(SHARED, "attend", "", trees=("attn_np", "attn_torch"))
by_broadcast = at(SHARED, "attend", "", trees=("attn_jax",))

Q = 'q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)'
K = 'k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)'
V = 'v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)'
Y = 'linear("bthv,hvo->bto", context, self.w_o, self.b_o))\n'
QKV = "q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]"
SIDE_BY_SIDE = 'context.reshape((sizes["b"], sizes["t"], sizes["h"] * sizes["k"]))'
REPEATED = "arange(like.shape[2], like) // (like.shape[2] // x.shape[2])"
REPEATED_IN_JAX = "broadcast_to(x[:, :, :, None], (*x.shape[:3], like.shape[2] // x.shape[2], *x.shape[3:]))"

OWN = "give queries, keys and values each their own weights"
ORDER = "read the joint projection in the order of its file: (3, heads, width), q then k then v"
SEPARATE = "reshape (b, t, h k) to (b, t, h, k) first and move the head axis afterwards"
VIEWED = r"(lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).swapaxes(1, 2))(\1)"
CONSECUTIVE = "let consecutive query heads share a key/value head: repeat (repeat_interleave), do not tile"


def projected(letters: str) -> str:
    """A pattern of the projections with these weights, whatever their axes are called."""
    return rf"(linear\(\"[^\"]+\", \w+, self\.w_{letters}, [\w.]+\))"


MUTANTS = (
    # Projections in
    at(SHARED, "mha", "split")(
        "biases of the projections dropped",
        "add the biases of the projections",
        "return y if bias is None else y + upcast(bias)",
        "return y",
    ),
    split("bias of the queries dropped", "add the bias of the queries", Q, Q.replace("self.b_q", "None")),
    split(
        "bias of the keys dropped",
        "add the bias of the keys",
        K,
        K.replace("self.b_k", "None"),
        example="capped",  # without a softcap this bias moves all scores of a query alike, and no weight
    ),
    split("bias of the values dropped", "add the bias of the values", V, V.replace("self.b_v", "None")),
    split("queries projected with the weights of the keys", OWN, Q, Q.replace("self.w_q", "self.w_k")),
    split("keys projected with the weights of the queries", OWN, K, K.replace("self.w_k", "self.w_q")),
    split("values projected with the weights of the keys", OWN, V, V.replace("self.w_v", "self.w_k")),
    single(
        "one matrix for queries and keys",
        OWN,
        "query, self.w_q, self.b_q)\n        k",
        "query, self.w_k, self.b_q)\n        k",
    ),
    split("values projected from the keys", "project the values from the value input", V, V.replace("value,", "key,")),
    split("keys projected from the values", "project the keys from the key input", K, K.replace("key,", "value,")),
    wide(
        "query weights transposed",
        "transpose the weights: torch's Linear keeps [out, in], here they are [in, out]",
        Q,
        Q.replace("btd,dhk->bthk", "btk,dhk->bthd"),
    ),
    single(
        "value weights transposed",
        "transpose the weights: torch's Linear keeps [out, in], here they are [in, out]",
        'v = linear("bsd,dv->bsv"',
        'v = linear("bsv,dv->bsd"',
    ),
    split(
        "values not projected",
        "project the values too",
        V,
        'v = value.reshape(*value.shape[:2], call.sizes["h"], call.sizes["v"])',
    ),
    # Heads
    split(
        "heads split as k h",
        "split a projection as (heads, width): reshape to (b, t, h, k)",
        f"{Q}\n",
        f'{Q}.reshape(call.sizes["b"], call.sizes["t"], call.sizes["k"], call.sizes["h"]).swapaxes(2, 3)\n',
    ),
    split(
        "heads split before their axis stands behind the positions",
        "reshape to (b, t, h, k) and exchange the axes; reshaping to (b, h, t, k) mixes positions and heads",
        projected("k"),
        VIEWED,
        pattern=True,
    ),
    *(
        patterned(f"{name} reshaped to (b, h, t, k) without moving the head axis", SEPARATE, projected(letter), VIEWED)
        for letter, name in (("q", "queries"), ("v", "values"))
    ),
    patterned(
        "queries, keys and values reshaped to (b, h, t, k) without moving the head axis",
        SEPARATE,
        projected("[qkv]"),
        VIEWED,
        many=True,
    ),
    split(
        "heads merged without moving their axis back",
        "move the head axis behind the positions before the heads are merged",
        r", (context|gated|normed), self\.w_o, ([\w.]+)\)",
        r", \1.swapaxes(1, 2).reshape(\1.shape), self.w_o, \2)",
        pattern=True,
    ),
    cross(
        "heads merged in reverse order",
        "keep the heads in one order from the split to the merge",
        Y,
        Y.replace("context,", 'context[:, :, call.sizes["h"] - 1 - arange(call.sizes["h"], context)],'),
        needs=("arange",),
    ),
    by_index("shared heads tiled", CONSECUTIVE, REPEATED, "arange(like.shape[2], like) % x.shape[2]"),
    by_broadcast(
        "shared heads tiled in a broadcast",
        CONSECUTIVE,
        REPEATED_IN_JAX,
        "broadcast_to(x[:, :, None], (*x.shape[:2], like.shape[2] // x.shape[2], *x.shape[2:]))",
    ),
    shared(
        "shared heads tiled for the values only",
        CONSECUTIVE,
        "repeat_heads(v, q)\n",
        "v if v.ndim == 3 else v[:, :, arange(q.shape[2], q) % v.shape[2]]\n",
        file=SHARED,
        needs=("arange",),
    ),
    shared(
        "shared heads tiled for the keys only",
        CONSECUTIVE,
        "k, v = repeat_heads(k, q), repeat_heads(v, q)\n    context,",
        "k, v = k if k.ndim == 3 else k[:, :, arange(q.shape[2], q) % k.shape[2]], repeat_heads(v, q)\n    context,",
        file=SHARED,
        needs=("arange",),
    ),
    by_index(
        "shared heads in reverse order",
        "let query head h use key/value head h // r",
        REPEATED,
        f"x.shape[2] - 1 - {REPEATED}",
    ),
    by_broadcast(
        "shared heads in reverse order in a broadcast",
        "let query head h use key/value head h // r",
        REPEATED_IN_JAX,
        REPEATED_IN_JAX.replace("x[:, :, :, None]", "x[:, :, ::-1, None]"),
    ),
    by_index(
        "one key/value head for all query heads",
        "let query head h use key/value head h // r",
        REPEATED,
        "arange(like.shape[2], like) * 0",
    ),
    by_broadcast(
        "one key/value head for all query heads in a broadcast",
        "let query head h use key/value head h // r",
        REPEATED_IN_JAX,
        REPEATED_IN_JAX.replace("x[:, :, :, None]", "x[:, :, :1, None]"),
    ),
    # Joint projections
    fused("q and k swapped in the joint projection", ORDER, QKV, "q, k, v = qkv[:, :, 1], qkv[:, :, 0], qkv[:, :, 2]"),
    fused("k and v swapped in the joint projection", ORDER, QKV, "q, k, v = qkv[:, :, 0], qkv[:, :, 2], qkv[:, :, 1]"),
    fused(
        "joint projection read as (heads, 3, width)",
        "tell the heads apart after q, k and v: (3, heads, width) here, (heads, 3, width) in GPT-NeoX",
        QKV,
        'qkv = qkv.reshape((call.sizes["b"], call.sizes["t"], call.sizes["h"], 3, call.sizes["k"]))\n'
        "        q, k, v = qkv[:, :, :, 0], qkv[:, :, :, 1], qkv[:, :, :, 2]",
    ),
    fused(
        "bias of the joint projection dropped",
        "add the bias of the joint projection",
        "x, self.w_qkv, self.b_qkv)",
        "x, self.w_qkv, None)",
    ),
    fused(
        "heads interleaved in the output",
        "put the heads side by side: (b, t, h, k) to (b, t, h k)",
        SIDE_BY_SIDE,
        SIDE_BY_SIDE.replace("context.", "context.swapaxes(2, 3)."),
        example="causal",
    ),
    # Projections out
    split(
        "bias of the output dropped",
        "add the bias of the output projection",
        Y,
        Y.replace("self.b_o", "None"),
    ),
    split(
        "output projection left out",
        "multiply the joined heads by the output projection",
        Y,
        'context.reshape((call.sizes["b"], call.sizes["t"], call.sizes["d"])))\n',
    ),
    wide(
        "output weights transposed",
        "transpose the output weights: torch's Linear keeps [out, in], here they are [in, out]",
        Y,
        Y.replace("bthv,hvo->bto", "btho,hvo->btv"),
    ),
    split(
        "input added to the output",
        "leave the residual connection to the caller",
        Y,
        f"{Y[:-2]} + query)\n",
    ),
)
