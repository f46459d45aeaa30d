"""Graded exercises of lesson 4: several heads."""

import numpy as np

from attn_np.ops import einsum, softmax
from parity_tests.exercises._exercise import Exercise, arrays, normal


def split_heads(x, heads):
    b, t, d = x.shape
    return x.reshape(b, t, heads, d // heads).swapaxes(1, 2)


def mha(x, w_q, w_k, w_v, w_o):
    q, k, v = (einsum("btd,dhk->bhtk", x, w) for w in (w_q, w_k, w_v))
    p = softmax(einsum("bhtk,bhsk->bhts", q, k) / np.sqrt(k.shape[-1]))
    return einsum("bhtv,hvd->btd", einsum("bhts,bhsv->bhtv", p, v), w_o)


def output_vjp(dy, context, w_o):
    return einsum("btd,hvd->bthv", dy, w_o), einsum("bthv,btd->hvd", context, dy)


def with_weights(weights, merge=lambda heads, w_o: einsum("bhtv,hvd->btd", heads, w_o)):
    """The layer with other weights, a function of scores without a scale and of both widths, and another merging."""

    def layer(x, w_q, w_k, w_v, w_o):
        q, k, v = (einsum("btd,dhk->bhtk", x, w) for w in (w_q, w_k, w_v))
        p = weights(einsum("bhtk,bhsk->bhts", q, k), k.shape[-1], x.shape[-1])
        return merge(einsum("bhts,bhsv->bhtv", p, v), w_o)

    return layer


def scaled(z, k, d):
    return softmax(z / np.sqrt(k))


def reversed_heads(heads, w_o):
    return einsum("bhtv,hvd->btd", np.flip(heads, 1), w_o)


def first_head(heads, w_o):
    return einsum("bhtv,hvd->btd", heads[:, :1], w_o[:1])


def merged_without_moving(heads, w_o):
    b, h, t, v = heads.shape
    return einsum("bte,ed->btd", heads.reshape(b, t, h * v), w_o.reshape(h * v, -1))


def along(axis):
    return lambda z, k, d: softmax((z / np.sqrt(k)).swapaxes(axis, 3)).swapaxes(axis, 3)


def draw_rows(rng):
    return {"x": normal(rng, 2, 5, 12), "heads": 3}


EXERCISES = (
    Exercise(
        "4.4",
        "Cut `x` (b, t, d) into heads, (b, heads, t, d / heads). Each head takes neighbouring numbers.",
        split_heads,
        draw_rows,
        {
            "heads split as k h": lambda x, heads: np.transpose(
                x.reshape(*x.shape[:2], x.shape[2] // heads, heads), (0, 3, 1, 2)
            ),
            "reshaped to (b, h, t, k) without moving the head axis": lambda x, heads: x.reshape(
                x.shape[0], heads, x.shape[1], x.shape[2] // heads
            ),
            "the head axis not moved: (b, t, h, k)": lambda x, heads: x.reshape(*x.shape[:2], heads, -1),
            "one axis for batch and heads": lambda x, heads: split_heads(x, heads).reshape(
                x.shape[0] * heads, x.shape[1], -1
            ),
        },
    ),
    Exercise(
        "4.5",
        (
            "The layer of this lesson, its answers `y`: `x` (b, t, d), `w_q` and `w_k` (d, h, k), `w_v` (d, h, v), "
            "`w_o` (h, v, d)."
        ),
        mha,
        arrays(x="btd", w_q="dhk", w_k="dhk", w_v="dhv", w_o="hvd"),
        {
            "scale missing": with_weights(lambda z, k, d: softmax(z)),
            "scale from the width of the model": with_weights(lambda z, k, d: softmax(z / np.sqrt(d))),
            "scale without the root": with_weights(lambda z, k, d: softmax(z / k)),
            "scale after the softmax": with_weights(lambda z, k, d: softmax(z) / np.sqrt(k)),
            "softmax over the queries": with_weights(along(2)),
            "softmax over the heads": with_weights(along(1)),
            "softmax over the batch": with_weights(along(0)),
            "heads merged in reverse order": with_weights(scaled, reversed_heads),
            "heads merged without moving their axis back": with_weights(scaled, merged_without_moving),
            "one head alone": with_weights(scaled, first_head),
            "heads averaged in place of summed": lambda x, w_q, w_k, w_v, w_o: mha(x, w_q, w_k, w_v, w_o) / len(w_o),
            "queries and keys exchanged": lambda x, w_q, w_k, w_v, w_o: mha(x, w_k, w_q, w_v, w_o),
        },
    ),
    Exercise(
        "4.6",
        "The backward of the output, `y = einsum('bthv,hvd->btd', context, w_o)`: `(dcontext, dw_o)` from `dy`.",
        output_vjp,
        lambda rng: arrays(dy="btd", context="bthv", w_o="hvd")(rng),
        {
            "gradient of the weights averaged over the batch": lambda dy, context, w_o: (
                output_vjp(dy, context, w_o)[0],
                output_vjp(dy, context, w_o)[1] / len(dy),
            ),
            "gradient of the weights of the first text alone": lambda dy, context, w_o: (
                output_vjp(dy, context, w_o)[0],
                output_vjp(dy[:1], context[:1], w_o)[1],
            ),
            "gradient of the weights averaged over all words": lambda dy, context, w_o: (
                output_vjp(dy, context, w_o)[0],
                output_vjp(dy, context, w_o)[1] / (dy.shape[0] * dy.shape[1]),
            ),
            "both gradients exchanged": lambda dy, context, w_o: output_vjp(dy, context, w_o)[::-1],
            "gradient of the context averaged over the heads": lambda dy, context, w_o: (
                output_vjp(dy, context, w_o)[0] / len(w_o),
                output_vjp(dy, context, w_o)[1],
            ),
        },
    ),
)
