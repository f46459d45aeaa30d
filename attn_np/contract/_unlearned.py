"""Attention without heads that has nothing to learn: what variants of it share."""

from attn_np.contract._base import Arg, Config, Param


class Unlearned(Config):
    """Checks, arguments and the cache of variants without parameters, whose widths come with the call.

    Attributes:
        scale: factor on the scores; 1/sqrt(width of the queries) by default, 1.0 for unscaled.
        causal: query i sees the keys up to its own position, aligned at the last key.
    """

    scale: float | None
    causal: bool

    def __post_init__(self) -> None:
        self.check_number("scale")
        self.check_flag("causal")

    def sizes(self) -> dict[str, int]:
        return {}

    def own_params(self) -> dict[str, Param]:
        return {}

    def arguments(self) -> dict[str, Arg]:
        return {
            "query": Arg("b t k"),
            "key": Arg("b s k", falls_back_to="query"),
            "value": Arg("b s v", falls_back_to="key"),
            "mask": Arg("b t s", "mask", optional=True),
        }

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s k", "v": "b s v"} if self.causal else {}
