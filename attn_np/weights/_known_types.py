"""Models that no layout is for, and what is known of them: names and sizes cannot show how they differ."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownType:
    """What is known of a `model_type`.

    Attributes:
        layouts: the layouts whose names and numbers its attention has.
        differs: how it differs from others with the same names and shapes, where no field of `config.json` shows it.
    """

    layouts: tuple[str, ...]
    differs: str


NEIGHBOURS = "it rotates neighbouring dimensions of a head, not those half a head apart"
KNOWN_TYPES = {
    "ernie4_5": KnownType(("cohere",), NEIGHBOURS),
    "ernie4_5_moe": KnownType(("cohere",), NEIGHBOURS),
    "helium": KnownType(("cohere",), NEIGHBOURS),
    "minicpm3": KnownType((), "it rotates dimensions half a head apart, not neighbouring ones"),
    "nanochat": KnownType((), "it norms queries and keys after it rotates them, the other way round, without weights"),
}
