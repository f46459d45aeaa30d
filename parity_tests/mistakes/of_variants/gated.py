"""Mistakes that stand in gated's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

SIGMOID, GATED = "gate=sigmoid(gate_scores)", "gated=context * gate"
element, one = at("gated.py", "gated", "element"), at("gated.py", "gated", "head")
MUTANTS = (
    element("gate without a sigmoid", "put a sigmoid around the gate's scores", SIGMOID, "gate=gate_scores"),
    one(
        "SiLU in place of the gate's sigmoid",
        "gate with the sigmoid alone",
        SIGMOID,
        "gate=gate_scores * sigmoid(gate_scores)",
    ),
    element("gate the wrong way round", "multiply by sigmoid, not by 1 - sigmoid", GATED, "gated=context * (1 - gate)"),
    one(
        "gates of the first head for all heads",
        "give every head gates of its own",
        GATED,
        "gated=context * gate[:, :, :1]",
    ),
    element(
        "bias of the gates dropped",
        "add the bias of the gates before the sigmoid",
        "query, self.w_gate, self.b_gate))\n",
        "query, self.w_gate, None))\n",
    ),
    element(
        "gate's part missing in the gradient of the query",
        "the query reaches the output through the gate too: add both gradients",
        "sum_grads(dquery, dquery_gate)",
        "dquery",
        trees=NUMPY,
    ),
)
