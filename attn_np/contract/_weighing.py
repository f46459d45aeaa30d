"""How scores become weights, as the path for blocks of rows needs to know it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Weighing:
    """Which function makes weights of scores, row by row, and its options.

    Attributes:
        name: "sigmoid", "sparsemax", "entmax15", or "softmax", for `talking_heads`, whose maps mix the heads.
        scale: factor on the scores.
        softcap: scores become softcap * tanh(scores / softcap); None: they stay.
        score_offset: what a sigmoid adds to every score; None: -log(n) where a query sees n keys.
    """

    name: str
    scale: float
    softcap: float | None
    score_offset: Any = None

    @property
    def elementwise(self) -> bool:
        """Whether the weight of a key does not depend on the other keys' scores."""
        return self.name == "sigmoid"
