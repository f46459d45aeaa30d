"""Models that no layout is for, and why: what no layer here does, or what names and sizes cannot show."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownType:
    """What is known of a `model_type`.

    Attributes:
        layouts: the layouts whose names and numbers its attention has.
        differs: what it does that the layers of other layouts do not.
    """

    layouts: tuple[str, ...]
    differs: str


INDEXER = "an index of its own chooses the keys that a query sees"
RECURRENT = "it has a state that is updated position by position, and no attention"
KNOWN_TYPES = {
    "axk2": KnownType((), INDEXER),
    "beam": KnownType((), "its gates have a bias for each head, and its queries a factor that depends on the position"),
    "bitnet": KnownType((), "it norms what the heads give before the output projection"),
    "deepseek_v32": KnownType((), INDEXER),
    "deepseek_v4": KnownType((), "its queries see keys that are compressed from several positions"),
    "dinov3_vit": KnownType(
        (), "it rotates by the row and the column of a patch, but not the tokens before the patches"
    ),
    "doge": KnownType((), "it chooses the keys that a query sees by what their values are"),
    "falcon_mamba": KnownType((), RECURRENT),
    "glm_moe_dsa": KnownType((), INDEXER),
    "hunyuan_v1_dense": KnownType((), "it norms queries and keys after it rotates them, with weights"),
    "hunyuan_v1_moe": KnownType((), "it norms queries and keys after it rotates them, with weights"),
    "jetmoe": KnownType((), "a router chooses the heads of each position"),
    "laguna": KnownType((), "its gates are a softplus of the input, not a sigmoid"),
    "mamba": KnownType((), RECURRENT),
    "mimo_v2_flash": KnownType((), "it multiplies values by a factor"),
    "ministral3": KnownType((), "the factor of its queries grows one position later than ours"),
    "nanochat": KnownType((), "it norms queries and keys after it rotates them, the other way round, without weights"),
    "prophetnet": KnownType((), "it predicts several tokens at once, by streams that see each other"),
    "reformer": KnownType((), "it sorts keys by their hash, and queries are keys"),
    "rwkv": KnownType((), RECURRENT),
    "xlstm": KnownType((), RECURRENT),
}
