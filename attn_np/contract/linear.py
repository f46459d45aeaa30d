"""Linear attention: a feature map instead of the softmax, so that a state of fixed size sums up the keys."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_np.contract._base import Arg, Param, Spec
from attn_np.contract._states import FORMS as FORMS
from attn_np.contract._states import StateHeads

FEATURE_MAPS = ("elu", "relu", "exp")


@dataclass(frozen=True, kw_only=True)
class Config(StateHeads):
    """Fields of linear attention.

    Attributes:
        num_heads: how many heads attend.
        feature_map: phi: "elu", elu(x) + 1; "relu"; "exp", Performer's positive features of softmax attention; or a
            function of your own, queries or keys `b t h k` -> features `b t h m`, none below 0. In NumPy it has a
            backward pass as its attribute `vjp`. No weight file can hold it.
        num_features: "exp": how many features, the rows of w_features, there are; more of them come closer to softmax.
            A function: how many it returns; head_dim by default.
        causal: query i sees the keys up to its own position.
        form: how a causal layer is computed, with the same result: "recurrent" passes a state from position to
            position, "chunked" scores all pairs within a chunk and passes a state from chunk to chunk, and "parallel"
            takes the sequence as one chunk. "auto" is "recurrent" for one position, "chunked" for more than
            `chunk_size`, and else "parallel", also in `torch.export` programs for any length. Without causality the
            keys are summed up once.
        normalize: the output of a query is divided by the sum of its weights.
        eps: added to that sum.
        use_bias: biases on the four projections.
    """

    class_name = "LinearAttention"
    family = "linear"
    title = "Linear attention"
    idea = (
        "Softmax weighs a key by exp(q k), which has to be computed for every pair. With phi(q) phi(k) instead, the "
        "sums over the keys come first: phi(k) v summed up is a matrix of fixed size that any query can read. Causal, "
        "that matrix is the state of a recurrent network. Any phi that is nowhere negative will do: a shifted elu, a "
        "relu, or random exponentials whose products are on average exp(q k)."
    )
    formula = (
        r"s_t = s_{t-1} + \phi(k_t)\, v_t^\top,\quad z_t = z_{t-1} + \phi(k_t),\quad "
        r"c_t = \frac{\phi(q_t)^\top s_t}{\phi(q_t)^\top z_t + \epsilon},\quad \phi(x) = \mathrm{elu}(x) + 1"
        r"\ \ (\mathrm{elu}),\quad \max(x, 0)\ \ (\mathrm{relu}),\quad \tfrac{1}{\sqrt{M}}\, "
        r"e^{w_{features} x' - |x'|^2 / 2},\ x' = x / K^{1/4}\ \ (\mathrm{exp})"
    )
    notation = {
        "D, M (widths of queries and values)": "K = head_dim, V = value_head_dim",
        "phi(Q), phi(K)": "q_features, k_features on the tape",
        "S_i (attention memory), Z_i (normalizer memory)": "the cache's state and key_sum; on the tape Z is the last "
        "column of the states, beside the values",
        "numerator and denominator of equation 12": "the columns of sums on the tape, the denominator last",
        "omega_1 ... omega_m of Performer": "the rows of w_features, of all heads; standard normal at first",
    }
    cost = "time b t h k v, plus b t c h (k + v) within chunks of c (parallel: c = t); the state is b h k v"
    paper = (
        "Katharopoulos et al. 2020, Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention, "
        "arXiv:2006.16236, equations 5 to 7 and 16 to 20; exp: Choromanski et al. 2021, Rethinking Attention with "
        "Performers, arXiv:2009.14794, equation 7"
    )
    equals = (
        "the three forms: each other",
        "causal, use_bias=False: self_attention with weights phi(q) phi(k)",
    )
    traps = (
        "elu(x) + 1 written as where(x > 0, x + 1, exp(x)) has NaN for a gradient where exp(x) overflows: guard it",
        "phi(0) need not be 0 (elu(0) + 1 is 1): a padded key is hidden after the feature map",
        "the features of exp estimate softmax as long as w_features is standard normal: a parameter that is trained "
        "moves away from it, and one that is drawn anew for each package makes them differ",
        "the scale 1/sqrt(K) of softmax is inside of exp's features: each of q and k is divided by K^(1/4)",
        "of long queries and keys exp's features underflow, and their weights are 0",
        "a normaliser that misses the query's own key, or counts padding, shows in the first positions only",
        "a chunk that reads the state after itself sees its own keys twice",
    )

    not_in_results = ("form", "chunk_size")

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    feature_map: str | Callable[[Any], Any] = "elu"
    num_features: int | None = None
    causal: bool = False
    form: str = "auto"
    chunk_size: int = 64
    normalize: bool = True
    eps: float = 0.000001
    use_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("num_features")
        self.check_number("eps")
        if not callable(self.feature_map):
            self.check_one_of("feature_map", FEATURE_MAPS, " or a function")
        self.check_flag("causal", "normalize", "use_bias")
        self.require(self.eps >= 0, "eps of at least 0", repr(self.eps), "it is added to a sum of weights")
        self.require(
            self.eps > 0 or self.feature_map in ("elu", "exp") or not self.normalize,
            "eps above 0 for feature_map='relu' or a function",
            repr(self.eps),
            "the weights of a query may all be 0",
        )
        self.require(
            callable(self.feature_map) or (self.feature_map == "exp") == (self.num_features is not None),
            "num_features for feature_map='exp' or a function, and for them only",
            f"num_features={self.num_features}, feature_map={self.feature_map!r}",
            "set num_features=" if self.feature_map == "exp" else "leave num_features out, or set feature_map='exp'",
        )

    def meaning(self) -> dict[str, Any]:
        return {name: value for name, value in super().meaning().items() if self.normalize or name != "eps"}

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        return sizes if self.num_features is None else sizes | {"m": self.num_features}

    def own_params(self) -> dict[str, Param]:
        weights = {
            "w_q": Param("d h k", "d"),
            "w_k": Param("d h k", "d"),
            "w_v": Param("d h v", "d"),
            "w_o": Param("h v o", "h v"),
        }
        if self.feature_map == "exp":
            weights["w_features"] = Param("m k", "k", normal=True)
        biases = {
            "b_q": Param("h k", "d"),
            "b_k": Param("h k", "d"),
            "b_v": Param("h v", "d"),
            "b_o": Param("o", "h v"),
        }
        return weights | biases if self.use_bias else weights

    def arguments(self) -> dict[str, Arg]:
        return {name: arg for name, arg in super().arguments().items() if self.causal or name != "documents"}

    def check(self, dtype: str | None, **specs: Spec | None) -> dict[str, int]:
        fix = "set causal=True, or give each document a batch row"
        fits = self.causal or specs.get("documents") is None
        self.require(fits, "no documents with causal=False", "some", fix)
        return super().check(dtype, **specs)

    def cache_axes(self) -> dict[str, str]:
        if not self.causal:
            return {}
        m = "k" if self.num_features is None else "m"
        return {"state": f"b h {m} v"} | ({"key_sum": f"b h {m}"} if self.normalize else {}) | {"documents": "b"}

    def check_features(self, x: Spec | None, features: Spec | None) -> None:
        """Refuse what a function returned as features.

        Raises:
            ValueError: another shape than that of x with the number of features.
            TypeError: no array, or one of another dtype.
        """
        if x is None:
            return
        expected = (*x[0][:-1], self.num_features or x[0][-1])
        shape, dtype = features or ((), "None")
        fix = "return one vector of features for each head and position, or set num_features="
        self.require(shape == expected, f"features of shape {expected} from feature_map", shape, fix)
        if dtype != x[1]:
            fix = "keep the dtype of its argument"
            raise TypeError(f"{self.variant}: expected features of dtype {x[1]} from feature_map, got {dtype}; {fix}")


EXAMPLES = {
    "whole": Config(d_model=6, num_heads=2),
    "recurrent": Config(d_model=7, num_heads=3, head_dim=5, causal=True, form="recurrent", normalize=False),
    "chunked": Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, causal=True, chunk_size=2,
                      eps=0.25, use_bias=False),
    "relu": Config(d_model=7, num_heads=2, head_dim=3, output_dim=5, feature_map="relu", causal=True, chunk_size=3,
                   use_bias=False),
    "random": Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=2, feature_map="exp", num_features=7,
                     causal=True, chunk_size=2),
}  # fmt: skip
