"""Norms of what heads hold: queries, keys and contexts. The fields that describe one translate into a `Norm`."""

from dataclasses import dataclass
from typing import Any

from attn_np.contract._base import Config, Param, is_integer, require

KINDS = ("rms", "layer", "l2")
WEIGHTS = ("shared", "own")
TIED = (*WEIGHTS, "tied")  # of queries and keys


@dataclass(frozen=True)
class Norm:
    """A norm of an array `b t h k`.

    Attributes:
        kind: "rms": divided by the root of the mean square; "layer": after the mean is subtracted; "l2": by the length.
        over: "head": each head by itself; "all": all heads of a position together; a number: so many neighbouring
            heads together.
        weight: "shared": one weight for all heads, axis k; "own": each head has its own, axes h k; "tied": each head
            has its own, which queries and keys share; None: no weight.
        bias: a bias is added, with the axes of the weight.
        offset: added to the stored weight.
        eps: added under the root.
    """

    kind: str
    over: str | int = "head"
    weight: str | None = "shared"
    bias: bool = False
    offset: float = 0.0
    eps: float = 1e-6

    def groups(self, heads: int) -> int:
        """In how many groups so many heads are normalised."""
        return {"head": heads, "all": 1}[self.over] if isinstance(self.over, str) else heads // self.over

    def names(self, what: str) -> tuple[str, str]:
        """The names of weight and bias of the norm of `what`, whether or not it has them."""
        heads = "" if self.weight == "shared" else "_heads"
        what = "qk" if self.weight == "tied" else what
        return f"w_{what}_norm{heads}", f"b_{what}_norm{heads}"

    def params(self, **axes: str) -> dict[str, Param]:
        """The parameters of the norms of some arrays, by the letters of their heads and their width: q="h k"."""
        axes_of = {what: letters.split()[-1] if self.weight == "shared" else letters for what, letters in axes.items()}
        start = 1.0 - self.offset
        weights = {self.names(what)[0]: Param(a, a.split()[-1], init=start) for what, a in axes_of.items()}
        biases = {self.names(what)[1]: Param(a, a.split()[-1], init=0.0) for what, a in axes_of.items()}
        return ({} if self.weight is None else weights) | (biases if self.bias else {})


def norm_of(config: Any, field: str = "norm") -> Norm | None:
    """The norm that the field says with those that begin with its name and `_`; None if it is None."""
    kind = getattr(config, field)
    if kind is None:
        return None
    parts = {name: f"{field}_{name}" for name in ("over", "weight", "bias", "offset", "eps")}
    return Norm(kind, **{n: getattr(config, f) for n, f in parts.items() if hasattr(config, f)})


def check_norm(config: Config, field: str, **heads: int) -> None:
    """The fields of a norm say one; `heads` has the numbers of heads that it is over, by the fields that say them."""
    who, kind, over = config.variant, getattr(config, field), getattr(config, f"{field}_over")
    if kind is not None:
        config.check_one_of(field, KINDS)
    if isinstance(over, str) or not is_integer(over) or over < 1:
        config.check_one_of(f"{field}_over", ("head", "all"), also=", or how many heads from 1")
    else:
        fits = all(number % over == 0 for number in heads.values())
        got = ", ".join(f"{name}={number}" for name, number in {f"{field}_over": over, **heads}.items())
        require(fits, who, f"{' and '.join(heads)} divisible by {field}_over", got, "change one of them")
    config.check_number(f"{field}_eps", above=0.0)
    weight = getattr(config, f"{field}_weight", WEIGHTS[0])
    if weight is not None and hasattr(config, f"{field}_weight"):
        config.check_one_of(f"{field}_weight", TIED if "num_kv_heads" in heads else WEIGHTS)
    if weight == "tied":
        got, fix = ", ".join(f"{name}={number}" for name, number in heads.items()), "change one of them"
        require(len(set(heads.values())) == 1, who, f"as many heads of keys for {field}_weight='tied'", got, fix)
    config.check_flag(f"{field}_bias")
    got = f"{field}={kind!r}" + (f", {field}_weight={weight!r}" if hasattr(config, f"{field}_weight") else "")
    if getattr(config, f"{field}_bias"):
        fits, fix = kind == "layer" and weight not in (None, "tied"), f"leave {field}_bias out"
        require(fits, who, f"{field}='layer' with a weight of its own for {field}_bias=", got, fix)


def idle_fields(config: Any, field: str) -> tuple[str, ...]:
    """The fields of a norm that is None, but for the one that says so: they play no part."""
    return () if getattr(config, field) is not None else tuple(n for n in config.fields() if n.startswith(f"{field}_"))


def relations_broken_by_context_norm(config: Config, over: str | int) -> dict[str, str]:
    """The relations that a layer with a norm of the heads' outputs breaks."""
    reasons = {"the_output_is_the_weights_times_the_values": "the heads' outputs are normalised"}
    if "value" in config.arguments():
        reasons["the_output_is_linear_in_the_values"] = "the heads' outputs are normalised"
    if getattr(config, "context_norm_bias", False):
        reasons["a_query_without_keys_gives_nothing"] = "the norm of nothing is its bias"
    if over != "head":
        reasons["heads_stand_alone"] = "the norm of a head's output depends on the other heads"
    return reasons
