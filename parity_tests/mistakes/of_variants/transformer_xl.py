"""Mistakes that stand in transformer_xl's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

both, causal = (at("transformer_xl.py", "transformer_xl", example) for example in ("both", "causal"))
MUTANTS = (
    both(
        "encoding of the distance key minus query",
        "encode the distance query minus key: it is 0 or more for what came before",
        "clip(-relative_position, low, high - 1)",
        "clip(relative_position, low, high - 1)",
    ),
    causal(
        "biases of contents and of distances exchanged",
        "add u where contents are compared and v where distances are",
        "q_content, q_position = q + upcast(self.b_content), q + upcast(self.b_position)",
        "q_content, q_position = q + upcast(self.b_position), q + upcast(self.b_content)",
    ),
    causal(
        "part of the distances not scaled",
        "divide both parts of the scores by sqrt(head_dim)",
        'scores=(content + position) * (1 / sqrt(sizes["k"]) if c.scale is None else c.scale))',
        'scores=content * (1 / sqrt(sizes["k"]) if c.scale is None else c.scale) + position)',
    ),
    causal(
        "every query reads the distances of the last",
        "shift the row of distances by one more for each query",
        "q_position, rel, relative_index, k.shape[1])",
        "q_position, rel, relative_index[:, -1:] + 0 * relative_index, k.shape[1])",
    ),
    causal(
        "bias of the contents left out",
        "add the learned vectors to the queries, one for contents and one for distances",
        "= q + upcast(self.b_content), ",
        "= q + 0 * upcast(self.b_content), ",
    ),
    both(
        "gradient of the queries from the contents alone, in Transformer-XL",
        "the queries meet contents and distances: add both gradients",
        "dq=sum_grads(dq_content, dq_position)",
        "dq=dq_content",
        trees=("attn_np",),
    ),
)
