"""Sequence to sequence with attention: a decoder looks back at everything the encoder read, at every step."""

from dataclasses import dataclass
from typing import Any

from attn_np.contract import _base, additive, gru
from attn_np.contract._base import Arg, Param, is_integer


@dataclass(frozen=True, kw_only=True)
class RecurrentDecoderConfig(_base.Config):
    """Fields of the decoder.

    Attributes:
        input_dim: width of the targets that it is fed.
        hidden_dim: width of its state and of the memory that it looks back at.
        num_layers: layers of its gated recurrent unit.
        output_dim: width of the outputs.
        dropout: share set to 0 in training, of the attention weights and between the recurrent layers.
    """

    class_name = "RecurrentDecoder"

    input_dim: int
    hidden_dim: int
    num_layers: int = 1
    output_dim: int
    dropout: float = 0.0

    def sizes(self) -> dict[str, int]:
        """`l` counts the recurrent layers, `w` the connections between them."""
        return {
            "d": self.input_dim,
            "e": self.hidden_dim,
            "l": self.num_layers,
            "w": self.num_layers - 1,
            "o": self.output_dim,
        }

    def own_params(self) -> dict[str, Param]:
        return {"w_o": Param("e o", "e"), "b_o": Param("o", "e")}

    def children(self) -> dict[str, _base.Config | list[_base.Config]]:
        e = self.hidden_dim
        return {
            "attention": additive.Config(query_dim=e, key_dim=e, hidden_dim=e, dropout=self.dropout),
            "gru": gru.Config(
                input_dim=e + self.input_dim, hidden_dim=e, num_layers=self.num_layers, dropout=self.dropout
            ),
        }

    def second_output(self) -> str | None:
        return "l b e"

    def arguments(self) -> dict[str, Arg]:
        return {
            "target": Arg("b t d"),
            "memory": Arg("b s e"),
            "state": Arg("l b e"),
            "mask": Arg("b t s", "mask", optional=True),
            "keep": Arg("b t s", "keep", optional=True),
            "gru_keep": Arg("w b t e", "keep", optional=True),
        }


@dataclass(frozen=True, kw_only=True)
class Config(_base.Config):
    """Fields of an encoder and a decoder with attention.

    Attributes:
        input_dim: width of sources and targets; with a vocabulary, of the tokens' embeddings.
        hidden_dim: width of all states, of the memory and of the attention's hidden layer.
        num_layers: recurrent layers, of the encoder and of the decoder.
        output_dim: width of the outputs; vocab_size by default, else input_dim.
        dropout: share set to 0 in training, of the attention weights and between recurrent layers.
        vocab_size: how many tokens there are; sources and targets are then tokens, outputs a score for each token.
    """

    class_name = "Seq2Seq"
    family = "recurrent"
    title = "Sequence to sequence with attention"
    idea = (
        "An encoder reads the source and leaves its state at every position as a memory. Before each step the decoder "
        "looks up, with its own state, which places of that memory matter now, and takes their average along with its "
        "input. The source no longer needs to fit into one vector."
    )
    formula = (
        r"m = \mathrm{GRU}(source),\quad c_t = \mathrm{additive}(h_{t-1}, m, m),\quad "
        r"h_t = \mathrm{GRU\ step}([c_t;\, x_t],\, h_{t-1}),\quad y_t = h_t w_o + b_o"
    )
    notation = {
        "h_j (annotation)": "memory, position s",
        "s_{i-1} (decoder state)": "the last layer's state before step t",
        "alpha_ij, c_i": "probs, context",
        "y_{i-1} (the word before)": "target, position t",
    }
    cost = "time b t (s e + 3 e (d + 2 e)), one step after the other; memory b (t + s) 4 e, and b t s with the weights"
    paper = (
        "Bahdanau, Cho, Bengio 2014, Neural Machine Translation by Jointly Learning to Align and Translate, "
        "arXiv:1409.0473, section 3; here the encoder reads in one direction, its last state is the decoder's first, "
        "and the output sees the state alone"
    )
    equals = (
        "a prefix of the target, then the rest with the returned state: the whole target at once",
        "the context of every step: additive, with the states before the steps as queries",
    )
    traps = (
        "softmax over axis 1 of (b, 1, s), one query: every weight is 1, w_q gets a gradient of exactly 0, and the "
        "decoder never learns where to look",
        "passing the encoder's outputs back with their axes exchanged: the next call reads time as batch",
        "running the encoder over padding: the state that the decoder starts from depends on how much there was",
    )

    input_dim: int
    hidden_dim: int
    num_layers: int = 1
    output_dim: int | None = None
    dropout: float = 0.0
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        self.check_positive("input_dim", "hidden_dim", "output_dim", "vocab_size")
        self.check_num_children("num_layers")
        self.check_rate("dropout")
        self.require(
            self.vocab_size is None or self.output_dim in (None, self.vocab_size),
            "one output for each token of the vocabulary",
            f"output_dim={self.output_dim}, vocab_size={self.vocab_size}",
            "leave output_dim out",
        )

    def sizes(self) -> dict[str, int]:
        """`l` counts the recurrent layers, `w` the connections between them."""
        sizes = {
            "d": self.input_dim,
            "e": self.hidden_dim,
            "l": self.num_layers,
            "w": self.num_layers - 1,
            "o": self.output_dim or self.vocab_size or self.input_dim,
        }
        return sizes if self.vocab_size is None else sizes | {"u": self.vocab_size}

    def own_params(self) -> dict[str, Param]:
        return {} if self.vocab_size is None else {"embedding": Param("u d", "d")}

    def children(self) -> dict[str, _base.Config | list[_base.Config]]:
        return {
            "encoder": gru.Config(
                input_dim=self.input_dim,
                hidden_dim=self.hidden_dim,
                num_layers=self.num_layers,
                dropout=self.dropout,
            ),
            "decoder": RecurrentDecoderConfig(
                input_dim=self.input_dim,
                hidden_dim=self.hidden_dim,
                num_layers=self.num_layers,
                output_dim=self.sizes()["o"],
                dropout=self.dropout,
            ),
        }

    def second_output(self) -> str | None:
        return "l b e"

    def arguments(self) -> dict[str, Arg]:
        tokens = self.vocab_size is not None
        return {
            "source": Arg("b s", "integers") if tokens else Arg("b s d"),
            "target": Arg("b t", "integers") if tokens else Arg("b t d"),
            "state": Arg("l b e", optional=True),
            "mask": Arg("b t s", "mask", optional=True),
            "keep": Arg("b t s", "keep", optional=True),
            "encoder_keep": Arg("w b s e", "keep", optional=True),
            "decoder_keep": Arg("w b t e", "keep", optional=True),
        }

    def check_generation(self, t: int, steps: int, *, tokens: bool, stop: Any = 0) -> None:
        """Refuse free-running decoding if outputs can't be inputs, or from more than one first input.

        Args:
            t: how many positions the first input has.
            steps: how many outputs are asked for.
            tokens: whether tokens are asked for.
            stop: the token after which there are no more.
        """
        d, o = self.input_dim, self.sizes()["o"]
        if tokens:
            self.require(
                self.vocab_size is not None,
                "a vocabulary to decode into",
                "vocab_size=None",
                "set vocab_size=, or call generate",
            )
        else:
            self.require(
                self.vocab_size is None,
                "outputs that are vectors, to be fed back",
                f"scores for vocab_size={self.vocab_size} tokens",
                "call greedy",
            )
            self.require(
                o == d,
                "output_dim equal to input_dim, so that outputs can be fed back",
                f"output_dim={o}, input_dim={d}",
                "pass every target, or build with equal widths",
            )
        self.require(t == 1, "one first input (t=1)", f"t={t}", "pass target[:, :1]")
        whole = is_integer(steps) and steps >= 0
        self.require(whole, "steps to be an integer from 0", repr(steps), "set steps=")
        fix = "set stop= to the token that ends a sentence, or to -1 for none"
        self.require(is_integer(stop), "stop to be an integer", repr(stop), fix)


EXAMPLES = {
    "plain": Config(input_dim=7, hidden_dim=5, output_dim=3),
    "free": Config(input_dim=5, hidden_dim=3, num_layers=2, dropout=0.25),
    "words": Config(input_dim=3, hidden_dim=7, num_layers=3, vocab_size=11),
}
