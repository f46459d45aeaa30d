"""Mistakes that stand in gqa's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

CONSECUTIVE = "let consecutive query heads share a key/value head: repeat (repeat_interleave), do not tile"
ATTENDED = "\n        context = call.attend(q, k, v"
MEMBERS = "self.config.num_heads // self.config.num_kv_heads"
MERGED = 'linear("bthv,hvo->bto", context,'
grouped, shared = at("gqa.py", "gqa", "grouped"), at("gqa.py", "gqa", "cross")
MUTANTS = (
    grouped(
        "keys and values of the groups tiled",
        CONSECUTIVE,
        ATTENDED,
        f"\n        k, v = (concatenate([x] * ({MEMBERS}), 2) for x in (k, v)){ATTENDED}",
        needs=("concatenate",),
    ),
    shared(
        "values of the groups tiled, their keys not",
        CONSECUTIVE,
        ATTENDED,
        f"\n        k, v = repeat_heads(k, q), concatenate([v] * ({MEMBERS}), 2){ATTENDED}",
        needs=("concatenate", "repeat_heads"),
    ),
    shared(
        "one key/value head for all groups",
        "let each group of query heads use a key/value head of its own",
        ATTENDED,
        f"\n        k, v = k[:, :, :1], v[:, :, :1]{ATTENDED}",
    ),
    grouped(
        "scale from the width of a group",
        "take the scale from the width of one query head, head_dim, not from d_model / num_kv_heads",
        "memory_v=self.memory_v)",
        "memory_v=self.memory_v, scale=(self.config.d_model / self.config.num_kv_heads) ** -0.5)",
    ),
    shared(
        "grouped heads merged member by member",
        "merge the heads as (groups, members, width), the order of their projections",
        MERGED,
        'linear("bthv,hvo->bto", context.reshape(*context.shape[:2], self.config.num_kv_heads, -1,'
        " context.shape[3]).swapaxes(2, 3).reshape(context.shape),",
    ),
    at(SHARED, "gqa", "grouped", trees=NUMPY)(
        "mean over a group in the gradient of its shared head",
        "add the gradients of all query heads that share a key/value head",
        "np.sum(dx.reshape(b, s, heads, h // heads, k), axis=3)",
        "np.mean(dx.reshape(b, s, heads, h // heads, k), axis=3)",
    ),
)
