"""Joint attention: two streams, each with projections of its own, attend to both by one softmax."""

from dataclasses import dataclass

from attn_np.contract._base import Arg, Param, Spec
from attn_np.contract._heads import Heads
from attn_np.contract._norms import Norm, idle_fields
from attn_np.contract._rotary import LAYOUTS, Rotary


@dataclass(frozen=True, kw_only=True)
class Config(Rotary, Heads):
    """Fields of joint attention.

    Attributes:
        d_model: width of the queries' stream.
        added_dim: width of the added stream, and of its output; d_model by default.
        use_bias: biases on all projections.
        norm: of queries and keys, those of each stream with a weight of their own: "rms", each head by itself, or None.
        norm_eps: added under the root.
        added_output: the added stream has queries and an output, and a call returns (y, added_y). False: it has keys
            and values alone, and a call returns y, as in the last block of Stable Diffusion 3.
        rope_base: queries and keys of both streams rotate with their positions, after the norms: pair i by
            rope_base^(-2i / head_dim) per position; None: no rotation, as in Stable Diffusion 3.
        rope_layout: "interleaved", a pair is two neighbours (FLUX, Qwen-Image), or "half", one dimension of each half.
    """

    class_name = "JointAttention"
    family = "dense"
    title = "Joint attention"
    idea = (
        "Text and picture are too unlike for one set of projections, and each should see the other. So each stream has "
        "projections of its own, as in two layers, and one softmax sees the keys of both: a word attends to words and "
        "patches, and a patch to patches and words."
    )
    formula = (
        r"q = [x\, w_q;\ c\, w_{aq}],\quad k = [x\, w_k;\ c\, w_{ak}],\quad v = [x\, w_v;\ c\, w_{av}],\qquad "
        r"[u;\ u_a] = \mathrm{softmax}\!\left(\tfrac{1}{\sqrt{K}}\, q k^\top\right) v,\qquad "
        r"y = b_o + \sum_h u_h\, w_{o,h},\quad y_a = b_{ao} + \sum_h u_{a,h}\, w_{ao,h}"
    )
    notation = {
        "x, y (picture); c, y_a (text)": "query, y; added, added_y",
        "hidden_states; encoder_hidden_states (diffusers)": "query; added",
        "to_q, to_k, to_v, to_out.0": "w_q, w_k, w_v, w_o",
        "add_q_proj, add_k_proj, add_v_proj, to_add_out": "w_added_q, w_added_k, w_added_v, w_added_o",
        "norm_q, norm_k; norm_added_q, norm_added_k": "w_q_norm, w_k_norm; w_added_q_norm, w_added_k_norm",
        "context_pre_only=True (SD3's last block)": "added_output=False",
        "encoder_hidden_states_mask (Qwen-Image)": "added_mask",
        "axes_dims_rope (FLUX, Qwen-Image), axes_dim; theta": "rope_axes; rope_base",
        "img_ids, txt_ids (FLUX), `t a` without a batch": "positions, added_positions, `a b t` and `a b s`",
        "image_rotary_emb (diffusers), its text first": "the pairs (cos, sin) as added_positions and positions",
        "[ ; ]": "one stream behind the other, along the positions: the queries' stream first",
    }
    cost = "time b (t + s)^2 h (k + v) for s positions of the added stream; memory b h (t + s)^2 on the textbook path"
    paper = (
        "Esser et al. 2024, Scaling Rectified Flow Transformers, arXiv:2403.03206, section 4; its norm of queries and "
        "keys: section 5.3.2; the rotation of FLUX: its authors' code"
    )
    equals = (
        "the same weights for both streams: mha of one behind the other; with rope_base=: rotary",
        "the projected streams one behind the other: attend",
    )
    traps = (
        "which stream comes first changes nothing but the order of the outputs: Stable Diffusion 3 puts the text last, "
        "FLUX first; with rotated positions each stream keeps its own",
        "two softmaxes, one over each stream's keys, are another layer: cross-attention beside self-attention",
        "padding of the text is a key to every patch unless added_mask hides it; pipelines of Stable Diffusion 3 and "
        "FLUX let it be seen, and their weights were trained so",
        "each stream's queries and keys have norm weights of their own: four in all",
        "FLUX's text has position 0 on every axis, as the first patch has; Qwen-Image's is behind the picture on every "
        "axis; the default is neither, but t to t + s - 1: say added_positions= with positions=",
        "in FLUX and Qwen-Image each axis has frequencies of its own, rope_axes=; with rope_sections= of other layers "
        "the axes share those of one head",
        "Qwen-Image counts rows and columns from the middle: below 0; add the same number to an axis in both streams, "
        "which changes nothing",
        "the last block of Stable Diffusion 3 drops the text's output; its checkpoint has add_q_proj all the same",
    )

    d_model: int
    num_heads: int
    added_dim: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    use_bias: bool = True
    norm: str | None = None
    norm_eps: float = 0.000001
    added_output: bool = True
    rope_base: float | None = None
    rope_layout: str = "interleaved"
    rope_axes: tuple[int, ...] | None = None
    max_positions: int | None = None

    dropout = 0.0  # what `Heads` and a call of `attend` read

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("added_dim")
        self.check_one_of("norm", (None, "rms"))
        self.check_number("norm_eps", above=0.0)
        self.check_flag("added_output")
        self.check_one_of("rope_layout", LAYOUTS)
        self.check_positive("max_positions")
        self.check_optional_rotary()
        if self.rope_base is None:
            fix = "nothing is rotated: leave it out"
            self.require(self.max_positions is None, "no max_positions without rope_base", self.max_positions, fix)

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"i": self.added_dim or self.d_model} | self.position_sizes()

    def qk_norm(self) -> Norm | None:
        """The norm of queries and keys."""
        return None if self.norm is None else Norm(self.norm, eps=self.norm_eps)

    def own_params(self) -> dict[str, Param]:
        added = {
            "w_added_q": Param("i h k", "i"),
            "w_added_k": Param("i h k", "i"),
            "w_added_v": Param("i h v", "i"),
            "w_added_o": Param("h v i", "h v"),
        }
        biases = {
            "b_added_q": Param("h k", "i"),
            "b_added_k": Param("h k", "i"),
            "b_added_v": Param("h v", "i"),
            "b_added_o": Param("i", "h v"),
        }
        added |= biases if self.use_bias else {}
        norm, normed = self.qk_norm(), {"q": "h k", "k": "h k", "added_q": "h k", "added_k": "h k"}
        if not self.added_output:
            added = {name: param for name, param in added.items() if name[-1] in "kv"}
            del normed["added_q"]
        return super().own_params() | added | ({} if norm is None else norm.params(**normed))

    def arguments(self) -> dict[str, Arg]:
        arguments = {
            "query": Arg("b t d"),
            "added": Arg("b s i"),
            "mask": Arg("b t", "mask", optional=True),
            "added_mask": Arg("b s", "mask", optional=True),
        }
        if self.max_positions is not None:
            axes = "a b" if self.position_sizes() else "b"
            for name, letter in (("positions", "t"), ("added_positions", "s")):
                arguments[name] = Arg(f"{axes} {letter}", "integers", optional=True, below=self.max_positions)
        return arguments

    def check(self, dtype: str | None, **specs: Spec | None) -> dict[str, int]:
        cos, sin = specs.pop("added_cos", None), specs.pop("added_sin", None)
        sizes = super().check(dtype, **specs)
        if cos is not None and sin is not None:
            self.check_cos_sin((cos, sin), sizes, dtype, stream="added_", letter="s")
        return sizes

    def second_output(self) -> str | None:
        return "b s i" if self.added_output else None

    def broken_relations(self) -> dict[str, str]:
        if self.norm is None:
            return {}
        return {"the_scale_belongs_to_the_queries": "larger queries are normalised to the same length"}

    def meaning(self) -> dict[str, object]:
        idle = idle_fields(self, "norm")
        return {name: value for name, value in super().meaning().items() if name not in idle}


EXAMPLES = {
    "both": Config(d_model=6, num_heads=2),
    "normed": Config(d_model=7, num_heads=3, added_dim=11, head_dim=5, value_head_dim=2, output_dim=13, norm="rms"),
    "last": Config(
        d_model=5,
        num_heads=2,
        added_dim=3,
        head_dim=7,
        scale=0.75,
        use_bias=False,
        norm="rms",
        norm_eps=0.125,
        added_output=False,
    ),
    "rotated": Config(
        d_model=5,
        num_heads=2,
        added_dim=7,
        head_dim=14,
        value_head_dim=3,
        norm="rms",
        rope_base=50.0,
        rope_axes=(2, 8, 4),
        max_positions=13,
    ),
    "half": Config(
        d_model=5,
        num_heads=2,
        head_dim=6,
        value_head_dim=3,
        use_bias=False,
        added_output=False,
        rope_base=20.0,
        rope_layout="half",
    ),
}
