"""Multi-head latent attention: all heads' keys and values are made from one small latent per position."""

from dataclasses import dataclass

from attn_np.contract._base import Param, Preset, require
from attn_np.contract._rotary import LAYOUTS, Rotary


@dataclass(frozen=True, kw_only=True)
class Config(Rotary):
    """Fields of multi-head latent attention.

    Attributes:
        num_heads: how many heads attend.
        kv_rank: width of the latent that keys and values are made from.
        nope_dim: width of the part of a head's queries and keys that is not rotated.
        rope_dim: width of the rotated part: of a head's queries, and of the one key that all heads share.
        value_head_dim: width of a head's values.
        q_rank: width of the latent that queries are made from; None makes them from the input.
        absorbed: False computes every head's keys and values; True multiplies w_uk into the queries and w_uv into the
            output instead and attends to the latents themselves. The numbers are the same, and so are the weights.
        use_bias: biases on the projections to the latents, to the shared key and to the output.
        norm_eps: added to the mean of squares in the norms of the latents.
        scale: factor on the scores; 1/sqrt(nope_dim + rope_dim) by default.
        causal: a position sees itself and earlier ones.
        rope_base: pair i rotates by rope_base^(-2i / rope_dim) per position; None: no rotation, as in Kimi Linear.
        rope_layout: "interleaved", a pair is two neighbours (DeepSeek), or "half", one dimension of each half.
        index_keys: how many keys a query attends to, which an indexer chooses (DSA of DeepSeek-V3.2); None for all.
        index_heads: how many heads the indexer has.
        index_dim: width of the queries of the indexer's heads, and of its key, which its heads share.
        index_rope_layout: how their first rope_dim numbers are rotated: "half" (DeepSeek-V3.2), "interleaved" (GLM-5).
        index_norm_eps: added to the variance in the norm of the indexer's key.
    """

    class_name = "MultiHeadLatentAttention"
    family = "heads"
    projects = {"w_uk": False, "w_uv": False}
    title = "Multi-head latent attention"
    idea = (
        "Keys and values of all heads are computed from one latent, much smaller than they are together, and only the "
        "latent is cached. Positions are encoded in a small part of their own, which is rotated and which all heads "
        "share, so that the projection from latents to keys can be multiplied into the queries."
    )
    formula = (
        r"c = \mathrm{norm}(x\, w_{dkv}),\quad k_h = [c\, w_{uk,h};\ R\, x\, w_{k,rot}],\quad v_h = c\, w_{uv,h},\quad "
        r"q_h = [q^C_h;\ R\, q^R_h],\quad "
        r"y = \sum_h \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, q_h k_h^\top\right) v_h\, w_{o,h}"
    )
    notation = {
        "W^DQ, c^Q": "w_dq, q_latent",
        "W^UQ and W^QR": "w_q[..., :nope_dim] and w_q[..., nope_dim:]",
        "W^DKV, c^KV": "w_dkv, latent",
        "W^UK, W^UV": "w_uk, w_uv",
        "W^KR, k^R": "w_k_rot, k_rot",
        "W^O": "w_o",
        "d_c, d'_c": "Z = kv_rank, axis z; E = q_rank, axis e",
        "d_h, d_h^R": "nope_dim and value_head_dim, axes q and v; rope_dim, axis y",
        "I_ts, q^I, k^I, w^I": "index_scores, from w_index_q, w_index_k and w_index_heads",
        "H^I, d^I": "index_heads, axis r; index_dim, axis m",
    }
    cost = (
        "time b t t h (k + v), absorbed b t t h (2 z + y); the cache holds z + y numbers for each position, where mha "
        "holds h (k + v); with an indexer of n keys b t t r m for the choice and b t n h (k + v), in memory b t n, and "
        "m more numbers in the cache"
    )
    paper = (
        "DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1 and equations 37 to 47; the indexer: DeepSeek-AI "
        "2025, DeepSeek-V3.2, arXiv:2512.02556, section 2.1, equations 1 and 2"
    )
    equals = (
        "absorbed=True: absorbed=False",
        "index_keys as many as there are keys: index_keys=None",
        "its keys and values written out: rotary with rotary_dim=rope_dim, the rotated part first",
    )
    traps = (
        "the scale is 1/sqrt(nope_dim + rope_dim), also where queries are compared with latents of width kv_rank",
        "the shared key is cached after its rotation; neither the latent nor the keys made of it are rotated",
        "checkpoints store w_dkv and w_k_rot in one array, the latent first, and w_uk and w_uv in one per head",
        "DeepSeek pairs neighbours; its code moves them to halves first, which changes neither the weights nor the "
        "scores",
        "DeepSeek's yarn multiplies the scale by mscale^2 and leaves cosines alone: attention_factor=1.0 and scale=",
        "the norm is of the latent alone, not of the shared key, and w_uk can't be multiplied in before it",
        "the choice of an indexer has no gradient: its weights learn from a loss of their own, such as one between the "
        "softmax of index_scores and the weights, both of which the tape has",
        "where several keys have the same score of an indexer, such as 0 where no head is positive, the first is "
        "chosen; other libraries may choose another",
    )

    not_in_results = ("absorbed", "max_positions")

    d_model: int
    num_heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_head_dim: int
    q_rank: int | None = None
    output_dim: int | None = None
    absorbed: bool = False
    use_bias: bool = False
    norm_eps: float = 0.000001
    scale: float | None = None
    causal: bool = False
    dropout: float = 0.0
    rope_base: float | None = 10000.0
    rope_layout: str = "interleaved"
    rope_sections: tuple[int, ...] | None = None
    max_positions: int | None = None
    rope_scaling: str | None = None
    rope_scaling_factor: float | None = None
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    yarn_truncate: bool = True
    attention_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    index_keys: int | None = None
    index_heads: int | None = None
    index_dim: int | None = None
    index_rope_layout: str = "half"
    index_norm_eps: float = 0.000001

    def __post_init__(self) -> None:
        self.check_positive("d_model", "num_heads", "kv_rank", "nope_dim", "rope_dim", "value_head_dim", "q_rank")
        self.check_positive("output_dim")
        self.check_number("norm_eps", above=0.0)
        self.check_number("scale")
        self.check_rate("dropout")
        self.check_flag("absorbed", "causal", "use_bias")
        self.check_optional_rotary()
        self.check_indexer()

    def check_indexer(self) -> None:
        """The fields of an indexer stand together, and its keys have room for the rotated part."""
        sizes = {name: getattr(self, name) for name in ("index_keys", "index_heads", "index_dim")}
        self.check_positive(*sizes)
        self.check_one_of("index_rope_layout", LAYOUTS)
        self.check_number("index_norm_eps", above=0.0)
        missing = [name for name, size in sizes.items() if size is None]
        fits = len(missing) in (0, len(sizes))
        expected = f"{', '.join(sizes)} together, or none of them"
        require(fits, self.variant, expected, f"no {' and no '.join(missing)}", "set them")
        if not missing:
            expected, got = "index_dim of at least rope_dim", f"{self.index_dim} and {self.rope_dim}"
            require(sizes["index_dim"] >= self.rope_dim, self.variant, expected, got, "the first rope_dim are rotated")

    def rotary_width(self) -> int:
        return self.rope_dim

    def score_scale(self) -> float:
        """What the scores are multiplied by, in either form."""
        return (self.nope_dim + self.rope_dim) ** -0.5 if self.scale is None else self.scale

    def sizes(self) -> dict[str, int]:
        indexer = {"r": self.index_heads, "m": self.index_dim}
        return {
            "d": self.d_model,
            "h": self.num_heads,
            "e": self.q_rank or self.d_model,
            "z": self.kv_rank,
            "q": self.nope_dim,
            "y": self.rope_dim,
            "k": self.nope_dim + self.rope_dim,
            "v": self.value_head_dim,
            "o": self.output_dim or self.d_model,
            **{letter: size for letter, size in indexer.items() if size is not None},
            **self.position_sizes(),
        }

    def own_params(self) -> dict[str, Param]:
        queries = {"w_dq": Param("d e", "d"), "w_q_norm": Param("e", "e", init=1.0)} if self.q_rank is not None else {}
        biases = {"b_dkv": Param("z", "d"), "b_k_rot": Param("y", "d"), "b_o": Param("o", "h v")}
        biases |= {"b_dq": Param("e", "d")} if self.q_rank is not None else {}
        weights = queries | {
            "w_q": Param("e h k", "e"),
            "w_dkv": Param("d z", "d"),
            "w_kv_norm": Param("z", "z", init=1.0),
            "w_k_rot": Param("d y", "d"),
            "w_uk": Param("z h q", "z"),
            "w_uv": Param("z h v", "z"),
            "w_o": Param("h v o", "h v"),
        }
        if self.index_keys is not None:
            weights |= {
                "w_index_q": Param("e r m", "e"),
                "w_index_k": Param("d m", "d"),
                "w_index_norm": Param("m", "m", init=1.0),
                "b_index_norm": Param("m", "m", init=0.0),
                "w_index_heads": Param("d r", "d"),
            }
        return weights | biases if self.use_bias else weights

    def broken_relations(self) -> dict[str, str]:
        rotated = {"keys_have_no_order": "scores depend on the distance of queries and keys"}
        decided = ("a_large_bias_decides", "indifferent_scores_share_evenly")
        chosen = dict.fromkeys(decided, "an index chooses the keys, of which the scores know nothing")
        by_head = ("heads_stand_alone", "weights_add_up_to_one")
        chosen |= dict.fromkeys(by_head, "the keys are chosen for all heads: a mask of one may hide them all")
        return ({} if self.rope_base is None else rotated) | ({} if self.index_keys is None else chosen)

    def cache_axes(self) -> dict[str, str]:
        indexed = {} if self.index_keys is None else {"index_k": "b s m"}
        return {"latent": "b s z", "k_rot": "b s y"} | indexed if self.causal else {}


PRESETS = {
    "dsa": Preset(
        title="DeepSeek sparse attention (DSA)",
        idea=(
            "An indexer, small enough to compare every query with every key, chooses the keys that matter, and latent "
            "attention sees these alone. Its heads share one key, and the query says how much each of them counts."
        ),
        paper="DeepSeek-AI 2025, DeepSeek-V3.2, arXiv:2512.02556, section 2.1, equations 1 and 2; GLM-5 has it, too",
        fields={"causal": True, "index_keys": 2048, "index_heads": 64, "index_dim": 128},
    ),
}


EXAMPLES = {
    "expanded": Config(
        d_model=7,
        num_heads=2,
        kv_rank=13,
        nope_dim=5,
        rope_dim=6,
        value_head_dim=3,
        output_dim=11,
        causal=True,
        rope_scaling="yarn",
        rope_scaling_factor=4.0,
        original_max_positions=29,
        beta_fast=2.5,
        beta_slow=0.25,
        yarn_truncate=False,
    ),
    "absorbed": Config(
        d_model=5,
        num_heads=3,
        kv_rank=11,
        nope_dim=3,
        rope_dim=2,
        value_head_dim=2,
        q_rank=7,
        use_bias=True,
        absorbed=True,
        norm_eps=0.0625,
        causal=True,
        rope_base=50.0,
        rope_layout="half",
        max_positions=13,
        rope_scaling="llama3",
        rope_scaling_factor=3.0,
        original_max_positions=7,
        low_freq_factor=0.5,
        high_freq_factor=2.0,
    ),
    "both-ways": Config(
        d_model=5,
        num_heads=2,
        kv_rank=3,
        nope_dim=7,
        rope_dim=6,
        value_head_dim=11,
        q_rank=2,
        scale=0.25,
        dropout=0.25,
        rope_sections=(1, 2),
        max_positions=13,
        rope_scaling="longrope",
        original_max_positions=1,
        attention_factor=1.25,
        short_factor=(1.0, 1.5, 2.0),
        long_factor=(1.25, 3.0, 4.5),
    ),
    "indexed": Config(
        d_model=13,
        num_heads=2,
        kv_rank=2,
        nope_dim=3,
        rope_dim=4,
        value_head_dim=5,
        q_rank=11,
        absorbed=True,
        causal=True,
        index_keys=2,
        index_heads=3,
        index_dim=17,
        index_rope_layout="interleaved",
        index_norm_eps=0.125,
    ),
}
