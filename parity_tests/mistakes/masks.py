"""Mistakes about who sees whom: masks, causality, windows, and queries that see nothing."""

from parity_tests.mistakes.plant import SHARED, at

BAND = "def in_window("  # in its file: other shared files have the same texts
cross, bare = at(SHARED, "mha", "cross"), at(SHARED, "dot_product", "scaled")
causal, capped = (at(SHARED, "mha", example, beside=BAND) for example in ("wide", "capped"))

SOFTMAX = "softmax(scores, visible,"
FILL = "scores = {where}(allowed, scores, -{np}.inf)"
PROBS = "probs=softmax(scores, visible, attend_contract.SOFTMAX_AXIS[normalize_over]))"
POSITIONS = "in_window(arange(t, like)[None, :] + (s - t),"
RIGHT = "relative_position <= right"
SIDES = "left, right = window_limits(window)"
SELECT = "put -inf where a key is hidden, by selection (where), and give a query without keys weights of 0"


def filled(value: str) -> str:
    return f"scores = {{where}}(allowed, scores, {value})"


MUTANTS = (
    bare(
        "mask after the softmax in additive attention",
        "hide keys before the softmax, so that the remaining weights add up to 1",
        "probs=softmax(scores, hide_neg_inf(allowed, bias), SOFTMAX_AXIS[c.normalize_over]))",
        "probs=where(True if allowed is None else hide_neg_inf(allowed, bias), "
        "softmax(scores, None, SOFTMAX_AXIS[c.normalize_over]), 0.0))",
        file="additive.py",
        variant="additive",
        example="equal",
        needs=("where",),
    ),
    # Masks
    cross(
        "mask ignored",
        "apply the mask: a hidden key gets weight 0",
        SOFTMAX,
        "softmax(scores, None,",
        argument="mask",
    ),
    cross(
        "mask inverted",
        "invert the mask: True = may attend here, while torch.nn.MultiheadAttention means True = ignore",
        SOFTMAX,
        "softmax(scores, ~allowed,",
    ),
    cross("hidden scores filled with -50", SELECT, FILL, filled("-50.0")),
    cross("hidden scores filled with -1e4", SELECT, FILL, filled("-1e4")),
    cross("hidden scores filled with -1e9", SELECT, FILL, filled("-1e9")),
    cross("hidden scores filled with the smallest float", SELECT, FILL, filled("{np}.finfo(scores.dtype).min")),
    cross(
        "mask added to the scores as 0 and 1",
        "do not add a boolean mask: select -inf where it is False",
        SOFTMAX,
        "softmax(scores + 1.0 * allowed, None,",
    ),
    cross(
        "infinity multiplied by the mask",
        "select -inf with where: 0 * -inf is NaN",
        SOFTMAX,
        'softmax(scores - (1.0 - 1.0 * allowed) * float("inf"), None,',
    ),
    cross(
        "mask multiplied into the scores",
        "hide keys by -inf: a score of 0 is an ordinary score",
        SOFTMAX,
        "softmax(scores * allowed, None,",
    ),
    cross(
        "hidden scores filled with -1e-25",
        "fill with -inf: -1e-25 is a slip for -1e25 and hides nothing",
        FILL,
        filled("-1e-25"),
    ),
    cross(
        "mask after the softmax without normalising again",
        "hide keys before the softmax, so that the remaining weights add up to 1",
        PROBS,
        "probs=where(True if visible is None else visible, "
        "softmax(scores, None, attend_contract.SOFTMAX_AXIS[normalize_over]), 0.0))",
        needs=("where",),
    ),
    cross(
        "mask of the first head used for all heads",
        "broadcast the mask over the heads only where it has no axis for them",
        SOFTMAX,
        "softmax(scores, visible[:, :1],",
        argument="mask",
    ),
    cross(
        "mask of the first batch row used for all rows",
        "give every batch row its own mask",
        SOFTMAX,
        "softmax(scores, visible[:1],",
        argument="mask",
    ),
    cross(
        "padding mask on the rows of the queries",
        "put a padding mask on the axis of the keys: mask[:, None, None, :]",
        SOFTMAX,
        "softmax(scores, visible[..., :1],",
        argument="mask",
    ),
    at(SHARED, "fused_qkv", "heads")(
        "mask transposed",
        "give the mask its axes in the order queries, keys",
        SOFTMAX,
        "softmax(scores, visible if visible is None else visible.swapaxes(-1, -2),",
        argument="mask",
    ),
    at("additive.py", "additive", "cross")(
        "mask ignored by the additive score",
        "apply the mask: a hidden key gets weight 0",
        "softmax(scores, hide_neg_inf(allowed, bias),",
        "softmax(scores, None,",
    ),
    at("luong.py", "luong", "general")(
        "mask inverted by the general score",
        "invert the mask: True = may attend here",
        "softmax(scores, visible)",
        "softmax(scores, visible if visible is None else ~visible)",
    ),
    cross(
        "row without a key is NaN",
        "give a query without allowed keys weights of 0: divide by 1 where the sum is 0",
        "where(total == 0, 1.0, total)",
        "where(total == 0, total, total)",
    ),
    # Nothing that is hidden may leak
    bare(
        "hidden values not selected away",
        "select hidden values to 0 before the product: 0 * NaN is NaN",
        'v = zero_unseen(head_subscripts("bhts->bshv", q), allowed, v)',
        "v = v",
    ),
    bare(
        "hidden keys not selected away",
        "select hidden keys to 0 before the product, or NaN in them reaches the gradient of the queries",
        'k = zero_unseen(head_subscripts("bhts->bshk", q), allowed, k)',
        "k = k",
    ),
    bare(
        "queries that see nothing not selected away",
        "select queries without keys to 0 before the product, or NaN in them reaches the gradient of the keys",
        'q = zero_unseen(head_subscripts("bhts->bthk", q), allowed, q)',
        "q = q",
    ),
    cross(
        "padding reaches the projections",
        "select hidden inputs to 0 before they are projected, or NaN in them reaches the gradient of the weights",
        'key, value = zero_unseen(f"{axes}->bsi", key_mask, key), zero_unseen(f"{axes}->bsj", key_mask, value)',
        "key, value = key, value",
    ),
    # Causality
    causal(
        "causal off by one",
        "let a query see the keys up to its own position, and not the next one",
        POSITIONS,
        POSITIONS.replace("(s - t)", "(s - t) + 1"),
    ),
    causal(
        "causal hides a query's own position",
        "include the diagonal: a query sees its own position",
        "right = 0 if causal else right",
        "right = -1 if causal else right",
    ),
    causal(
        "causal aligned at the first key",
        "align at the last key: query i stands at position i + s - t",
        POSITIONS,
        POSITIONS.replace(" + (s - t)", ""),
    ),
    causal(
        "causal ignored",
        "hide the keys after a query's own position",
        "right = 0 if causal else right",
        "right = right",
    ),
    causal(
        "causal mask upside down",
        "hide the future, not the past: keep the lower triangle (tril)",
        RIGHT,
        "relative_position >= right",
    ),
    causal(
        "mask and causality joined by or",
        "combine both with and: a key is seen only where the mask and causality allow it",
        "allowed & mask",
        "allowed | mask",
    ),
    # Windows
    capped(
        "window one key too narrow on the left",
        "count the keys before a query's own: left = 2 sees two earlier keys and its own",
        "relative_position >= -left",
        "relative_position > -left",
    ),
    capped(
        "window one key too wide on the left",
        "count the keys before a query's own: left = 2 sees two earlier keys and its own",
        "relative_position >= -left",
        "relative_position >= -left - 1",
    ),
    capped(
        "window one key too narrow on the right",
        "count the keys after a query's own: right = 1 sees one later key",
        RIGHT,
        "relative_position < right",
    ),
    capped(
        "window one key too wide on the right",
        "count the keys after a query's own: right = 1 sees one later key",
        RIGHT,
        "relative_position <= right + 1",
    ),
    capped(
        "window without its right side",
        "bound the window on both sides",
        " & (relative_position <= right)",
        "",
    ),
    capped(
        "window without its left side",
        "bound the window on both sides",
        "(relative_position >= -left) & ",
        "",
    ),
    capped(
        "sides of the window swapped",
        "give the window as (left, right): keys before, keys after",
        SIDES,
        "right, left = window_limits(window)",
    ),
    capped(
        "window as wide on the right as on the left",
        "use each side of the window by itself: (left, right)",
        SIDES,
        "left, right = (None, None) if window is None else (window[0], window[0])",
    ),
    capped(
        "window ignored",
        "hide the keys outside of the window",
        SIDES,
        "left, right = None, None",
    ),
    causal(
        "causal dropped where a mask is given",
        "combine both: a key is seen only where the mask and causality allow it",
        "allowed if mask is None else allowed & mask",
        "allowed if mask is None else mask",
    ),
)
