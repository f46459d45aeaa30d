"""Mistakes that stand in linear's own file, or that its examples alone can show."""

from typing import Any

from parity_tests.mistakes.plant import Mutant


def planted(name: str, fix: str, old: str, new: str, example: str, **own: Any) -> Mutant:
    return Mutant(name, "linear.py", old, new, "linear", example, fix=fix, **own)


MUTANTS = (
    planted(
        "feature map without its 1",
        "map q and k by elu(x) + 1: features must be positive",
        "return where(x > 0, x + 1.0, exp(where(x > 0, 0.0, x)))",
        "return where(x > 0, x, exp(where(x > 0, 0.0, x)) - 1.0)",
        "whole",
    ),
    planted(
        "padding hidden before the feature map",
        "hide padded keys behind the feature map: elu(0) + 1 is 1",
        'zero_unseen("bt->bthk", real, self.features(k, w))',
        'self.features(zero_unseen("bt->bthk", real, k), w)',
        "whole",
    ),
    planted(
        "negative features kept",
        "a relu is 0 below 0: features must not be negative",
        'where(x > 0, x, 0.0) if self.config.feature_map == "relu" else elu_features(x)\n',
        'x if self.config.feature_map == "relu" else elu_features(x)\n',
        "relu",
    ),
    planted(
        "random features without the square",
        "subtract half of the squared length in the exponent: exp(w x - |x|^2 / 2)",
        " - 0.5 * square[..., None]",
        "",
        "random",
    ),
    planted(
        "random features of queries and keys that are not scaled",
        "divide queries and keys by the fourth root of their width: the features estimate exp(q k / sqrt(k))",
        "x = x * x.shape[-1] ** -0.25",
        "x = x * 1.0",
        "random",
    ),
    planted(
        "gradient of the square left out",
        "the exponent falls with the square of x: its gradient is -x",
        "(dx - np.sum(dexponent, axis=-1, keepdims=True) * (x * scale)) * scale",
        "dx * scale",
        "random",
        trees=("attn_np",),
    ),
    planted(
        "a chunk begins with its own state",
        "begin each chunk from the state before it",
        "states_before=all_states[:, :-1]",
        "states_before=all_states[:, 1:]",
        "chunked",
    ),
    planted(
        "a query reads before its own key is added",
        "add the key of a position to the state first: a query sees itself",
        'einsum("bthk,bthkv->bthv", q, all_states[:, 1:])',
        'einsum("bthk,bthkv->bthv", q, all_states[:, :-1])',
        "recurrent",
    ),
    planted(
        "chunk not causal within itself",
        "hide later keys of a query's own chunk too",
        "masked_scores=where(causal_mask(chunk_size, q), scores, 0.0)",
        "masked_scores=scores",
        "chunked",
    ),
    planted(
        "gradient of the normaliser left out",
        "the divisor depends on queries and keys too: give its gradient to both",
        "-np.sum(dcontext * context / weight_sum, axis=-1, keepdims=True)",
        "0.0 * weight_sum",
        "whole",
        trees=("attn_np",),
    ),
)
