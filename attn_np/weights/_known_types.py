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
    "deepseek_v4": KnownType((), "its queries see keys that are compressed from several positions"),
    "dinov3_vit": KnownType(
        (), "it rotates by the row and the column of a patch, but not the tokens before the patches"
    ),
    "doge": KnownType((), "it chooses the keys that a query sees by what their values are"),
    "falcon_mamba": KnownType((), RECURRENT),
    "jetmoe": KnownType((), "a router chooses the heads of each position"),
    "mamba": KnownType((), RECURRENT),
    "mimo_v2_flash": KnownType((), "it multiplies values by a factor"),
    "ministral3": KnownType((), "the factor of its queries grows one position later than ours"),
    "prophetnet": KnownType((), "it predicts several tokens at once, by streams that see each other"),
    "reformer": KnownType((), "it sorts keys by their hash, and queries are keys"),
    "rwkv": KnownType((), RECURRENT),
    "xlstm": KnownType((), RECURRENT),
}
# Causal models that are known by name alone: no layout reads them yet, and the layouts of types spelt alike may differ.
NO_LAYOUT_YET = frozenset({
    "bailing_hybrid", "bigbird_pegasus", "blt", "cohere_compass_text", "cpmant", "dots3_note", "dots3_note_text",
    "gemma4_assistant", "gemma4_unified_assistant", "git", "hrm_text", "hy_v4", "inkling2_text", "inkling_text", "lfm3",
    "longcat_flash", "minimax_m3_vl_text", "mllama", "moshi", "musicgen", "musicgen_melody", "qwen4_exp",
    "qwen4_exp_text", "zamba", "zamba2", "zaya",
})  # fmt: skip
