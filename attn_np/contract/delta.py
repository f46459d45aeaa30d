"""Delta rule: a key's old value is removed from the state before the new one is written."""

from dataclasses import dataclass

from attn_np.contract._base import Param
from attn_np.contract._states import FORMS as FORMS
from attn_np.contract._states import StateHeads


@dataclass(frozen=True, kw_only=True)
class Config(StateHeads):
    """Fields of the delta rule.

    Attributes:
        use_norm: each head's context is divided by its root mean square and scaled by learned weights.
        norm_eps: added under the roots of that norm and of the norms of queries and keys.
    """

    class_name = "DeltaRule"
    family = "linear"
    title = "Delta rule"
    idea = (
        "A state that only adds up keys times values fills up, and old values stay in the way. Here what the state "
        "holds for a key is looked up first, and only a share of the difference to the new value is written: the state "
        "learns, by one step of gradient descent for each position, to give the value for the key."
    )
    formula = (
        r"s_t = s_{t-1} + \beta_t\, k_t \left(v_t - s_{t-1}^\top k_t\right)^\top,\quad c_t = s_t^\top q_t,\quad "
        r"\beta_t = \sigma(x_t w_\beta),\quad q, k = \mathrm{unit}(\mathrm{silu}(x\, w_{q, k}))"
    )
    notation = {
        "S_t": "states on the tape, state in the cache: transposed, keys by values",
        "beta_t (writing strength)": "beta",
        "v_t^new, u_t (pseudo-values)": "v_new: the value written for a key",
        "T = (I + tril(diag(beta) K K^T, -1))^-1": "key_products below the diagonal; inverse: its T without beta",
        "W, U": "w, u: what a chunk removes from the state before it, and what it would write into an empty one",
    }
    cost = "time b t h k v, plus b t c h (k + v + c) within chunks of c; the state is b h k v"
    paper = (
        "Schlag et al. 2021, Linear Transformers Are Secretly Fast Weight Programmers, arXiv:2102.11174, section 4.2; "
        "Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over Sequence Length, "
        "arXiv:2406.06484, section 3, for the chunks"
    )
    equals = ("the three forms: each other", "no decay, no gate, silu on the values: gated_delta")
    traps = (
        "keys that are not of length 1 make I - beta k k^T grow, and the state with it",
        "the lookup is in the state before this position writes, by this position's own key",
        "the triangular system has to be solved: a position needs the corrected values before it, not the given ones",
        "silu comes before the norm of queries and keys",
    )

    not_in_results = ("form", "chunk_size")

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    form: str = "auto"
    chunk_size: int = 64
    use_norm: bool = True
    norm_eps: float = 0.000001

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_number("norm_eps", above=0.0)
        self.check_flag("use_norm")

    def own_params(self) -> dict[str, Param]:
        params = {
            "w_q": Param("d h k", "d"),
            "w_k": Param("d h k", "d"),
            "w_v": Param("d h v", "d"),
            "w_beta": Param("d h", "d"),
            "w_o": Param("h v o", "h v"),
        }
        return params | ({"w_norm": Param("v", "", init=1.0)} if self.use_norm else {})


EXAMPLES = {
    "whole": Config(d_model=6, num_heads=2, output_dim=5, form="parallel"),
    "recurrent": Config(d_model=7, num_heads=3, head_dim=5, form="recurrent", use_norm=False, norm_eps=0.25),
    "chunked": Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, chunk_size=2),
}
