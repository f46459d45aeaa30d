"""Gated recurrent unit: a state walks along the sequence, and gates decide how much each step replaces."""

from dataclasses import dataclass, replace

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param


@dataclass(frozen=True, kw_only=True)
class LayerConfig(_base.Config):
    """Fields of one layer in one direction.

    Attributes:
        input_dim: width of the input.
        hidden_dim: width of the state, which is also the output.
        use_bias: biases of the gates.
        reset_after: the reset gate acts after the recurrent product, which then has a bias of its own.
        backward: the direction: it reads from the last position to the first.
    """

    class_name = "GRULayer"

    input_dim: int
    hidden_dim: int
    use_bias: bool = True
    reset_after: bool = True
    backward: bool = False

    def sizes(self) -> dict[str, int]:
        return {"f": 3, "d": self.input_dim, "e": self.hidden_dim, "a": self.hidden_dim}

    def own_params(self) -> dict[str, Param]:
        # torch.nn.GRU draws all four with the hidden width as the fan.
        weights = {"w_x": Param("f d e", "e"), "w_h": Param("f e a", "e")}
        biases = {"b_x": Param("f e", "e")}
        biases |= {"b_h": Param("f e", "e")} if self.reset_after else {}
        return weights | biases if self.use_bias else weights


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of a gated recurrent unit.

    Attributes:
        input_dim: width of the input.
        hidden_dim: width of the state, which is also the output.
        num_layers: how many layers are stacked, each reading the states of the one below.
        dropout: share of a layer's outputs set to 0 in training, on the way to the next layer.
        use_bias: two biases for each gate, one beside each product; one if reset_after is False.
        reset_after: the reset gate acts on the recurrent product (torch.nn.GRU); if False on the state before the
            product, as in the paper.
        bidirectional: a second unit in each layer reads from the last position to the first. Outputs have the states
            of both side by side; states are those of layer 0, layer 0 backward, layer 1, and so on.
    """

    class_name = "GatedRecurrentUnit"
    family = "recurrent"
    title = "Gated recurrent unit"
    idea = (
        "A state walks along the sequence and sums up what it has read. At each step an update gate decides, "
        "unit by unit, how much of the old state is kept, and a reset gate how much of it the new candidate "
        "may use."
    )
    formula = (
        r"r_t = \sigma(x_t w_x^r + b_x^r + h_{t-1} w_h^r + b_h^r),\quad "
        r"z_t = \sigma(x_t w_x^z + b_x^z + h_{t-1} w_h^z + b_h^z),\quad "
        r"n_t = \tanh(x_t w_x^n + b_x^n + r_t \odot (h_{t-1} w_h^n + b_h^n))\ \ "
        r"(\text{reset\_after; else } \tanh(x_t w_x^n + b_x^n + (r_t \odot h_{t-1}) w_h^n)),\quad "
        r"h_t = (1 - z_t) \odot n_t + z_t \odot h_{t-1}"
    )
    notation = {
        "W, U of the paper (inputs, state)": "w_x, w_h; gates r z n along the axis f",
        "weight_ih_l0, weight_hh_l0 of torch.nn.GRU": "layers.0.w_x, layers.0.w_h: r z n, transposed",
        "bias_ih_l0, bias_hh_l0 of torch.nn.GRU": "layers.0.b_x, layers.0.b_h",
        "weight_ih_l0_reverse, ... of torch.nn.GRU": "backward_layers.0.w_x, ...",
        "h~ (candidate)": "n",
        "E, the width of the state": "hidden_dim, axes e (before a step) and a (after it)",
    }
    cost = "time b t 3 e (d + e) per layer, one step after the other; memory b t 4 e"
    paper = (
        "Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine "
        "Translation, arXiv:1406.1078, section 2.3; equations as in torch.nn.GRU (reset after the recurrent "
        "product, two biases), with reset_after=False as in the paper"
    )
    equals = ("weights copied: torch.nn.GRU", "two calls, the second with the first one's state: one call")
    traps = (
        "the paper resets the state before the recurrent product, reset_after=False, PyTorch the product: the numbers "
        "differ",
        "a bidirectional unit sees the whole sequence: its outputs are not features for predicting the next position",
        "some layers keep one bias for each gate (flax.nnx.GRUCell has none on the recurrent product of n): "
        "they cannot hold weights trained with two",
        "the order of the gates differs (Keras z r h, PyTorch r z n), and so does the meaning of z = 1: here the "
        "state stays",
    )

    input_dim: int
    hidden_dim: int
    num_layers: int = 1
    dropout: float = 0.0
    use_bias: bool = True
    reset_after: bool = True
    bidirectional: bool = False

    def __post_init__(self) -> None:
        self.check_positive("input_dim", "hidden_dim")
        self.check_num_children("num_layers")
        self.check_rate("dropout")
        self.check_flag("use_bias", "reset_after", "bidirectional")

    def sizes(self) -> dict[str, int]:
        """`l` counts the layers, each direction by itself, `w` the connections between layers."""
        directions = 2 if self.bidirectional else 1
        return {
            "d": self.input_dim,
            "e": self.hidden_dim,
            "o": self.hidden_dim * directions,
            "l": self.num_layers * directions,
            "w": self.num_layers - 1,
        }

    def own_params(self) -> dict[str, Param]:
        return {}

    def children(self) -> dict[str, _base.Config | list[_base.Config]]:
        first = LayerConfig(
            input_dim=self.input_dim,
            hidden_dim=self.hidden_dim,
            use_bias=self.use_bias,
            reset_after=self.reset_after,
        )
        layers: list[_base.Config] = [first, *[replace(first, input_dim=self.sizes()["o"])] * (self.num_layers - 1)]
        children: dict[str, _base.Config | list[_base.Config]] = {"layers": layers}
        if self.bidirectional:
            children["backward_layers"] = [replace(layer, backward=True) for layer in layers]
        return children

    def arguments(self) -> dict[str, Arg]:
        return {
            "x": Arg("b t d"),
            "state": Arg("l b e", optional=True),
            "keep": Arg("w b t o", "keep", optional=True),
        }

    def second_output(self) -> str | None:
        return "l b e"

    def broken_relations(self) -> dict[str, str]:
        both = "the second direction begins at the last position"
        return {"a_sequence_in_pieces": both} if self.bidirectional else {}


EXAMPLES = {
    "single": Config(input_dim=7, hidden_dim=5),
    "plain": Config(input_dim=3, hidden_dim=7, num_layers=2, use_bias=False),
    "stacked": Config(input_dim=5, hidden_dim=11, num_layers=3, dropout=0.25),
    "both": Config(input_dim=5, hidden_dim=3, num_layers=2, dropout=0.5, reset_after=False, bidirectional=True),
}
