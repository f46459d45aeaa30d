"""Mistakes that stand in gated's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

OPENED, GATED = "opened=sigmoid(gate)", "gated=context * opened"
element, one = at("gated.py", "gated", "element"), at("gated.py", "gated", "head")
MUTANTS = (
    element("gate without a sigmoid", "put a sigmoid around the gate's scores", OPENED, "opened=gate"),
    one("SiLU in place of the gate's sigmoid", "gate with the sigmoid alone", OPENED, "opened=gate * sigmoid(gate)"),
    element(
        "gate the wrong way round", "multiply by sigmoid, not by 1 - sigmoid", GATED, "gated=context * (1 - opened)"
    ),
    one(
        "gates of the first head for all heads",
        "give every head gates of its own",
        GATED,
        "gated=context * opened[:, :, :1]",
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
        "total(dquery, dgating)",
        "dquery",
        trees=NUMPY,
    ),
)
