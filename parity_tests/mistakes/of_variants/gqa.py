"""Mistakes that stand in gqa's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

CONSECUTIVE = "let consecutive query heads share a key/value head: repeat (repeat_interleave), do not tile"
REMEMBERED = "        k, v = append(step, k=k, v=v)\n"
MERGED = 'linear("bthv,hvo->bto", context,'
grouped, shared = at("gqa.py", "gqa", "grouped"), at("gqa.py", "gqa", "cross")
MUTANTS = (
    grouped(
        "keys and values of the groups tiled",
        CONSECUTIVE,
        REMEMBERED,
        f"{REMEMBERED}        k, v = (concatenate([x] * (c.num_heads // c.num_kv_heads), 2) for x in (k, v))\n",
        needs=("concatenate",),
    ),
    shared(
        "values of the groups tiled, their keys not",
        CONSECUTIVE,
        REMEMBERED,
        f"{REMEMBERED}        k, v = repeat_heads(k, q), concatenate([v] * (c.num_heads // c.num_kv_heads), 2)\n",
        needs=("concatenate", "repeat_heads"),
    ),
    shared(
        "one key/value head for all groups",
        "let each group of query heads use a key/value head of its own",
        REMEMBERED,
        f"{REMEMBERED}        k, v = k[:, :, :1], v[:, :, :1]\n",
    ),
    grouped(
        "scale from the width of a group",
        "take the scale from the width of one query head, head_dim, not from d_model / num_kv_heads",
        "scale=c.scale, softcap=c.softcap, tape",
        "scale=(c.d_model / c.num_kv_heads) ** -0.5, softcap=c.softcap, tape",
    ),
    shared(
        "grouped heads merged member by member",
        "merge the heads as (groups, members, width), the order of their projections",
        MERGED,
        'linear("bthv,hvo->bto", context.reshape(sizes["b"], sizes["t"], sizes["g"], sizes["h"] // sizes["g"],'
        ' sizes["v"]).swapaxes(2, 3).reshape(context.shape),',
    ),
    at(SHARED, "gqa", "grouped", trees=NUMPY)(
        "mean over a group in the gradient of its shared head",
        "add the gradients of all query heads that share a key/value head",
        "np.sum(dx.reshape(b, s, heads, h // heads, k), axis=3)",
        "np.mean(dx.reshape(b, s, heads, h // heads, k), axis=3)",
    ),
)
