"""Heads that each have a state, which sums up the positions so far: what variants with them share."""

from typing import Any

from attn_np.contract._base import DOCUMENTS, Arg, Config

FORMS = ("auto", "parallel", "recurrent", "chunked")


class StateHeads(Config):
    """Checks, sizes, the arguments and the cache, from the fields that these variants share.

    Attributes:
        num_heads: how many heads, each with a state.
        form: how it is computed, with the same result: "recurrent" passes a state from position to position, "chunked"
            from chunk to chunk, and "parallel" takes the sequence as one chunk. "auto" is "recurrent" for one position,
            "chunked" for more than `chunk_size`, and else "parallel", also in `torch.export` programs for any length.
    """

    d_model: int
    num_heads: int
    head_dim: Any  # None where a contract takes a share of d_model for it
    output_dim: int | None
    form: str
    chunk_size: int

    def __post_init__(self) -> None:
        widths = ("head_dim", "value_head_dim", "output_dim")
        self.check_positive("d_model", "num_heads", *(x for x in widths if x in self.fields()), "chunk_size")
        self.check_one_of("form", FORMS)
        self.check_divisible("d_model", "num_heads", unless="head_dim")

    def sizes(self) -> dict[str, int]:
        k = self.head_dim or self.d_model // self.num_heads
        v = getattr(self, "value_head_dim", None) or k
        return {"d": self.d_model, "h": self.num_heads, "k": k, "v": v, "o": self.output_dim or self.d_model}

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t d"), "mask": Arg("b t", "mask", optional=True), "documents": DOCUMENTS}

    def cache_axes(self) -> dict[str, str]:
        return {"state": "b h k v", "documents": "b"}

    def cache_slots(self) -> int | None:
        return 1
