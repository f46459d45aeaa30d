"""What the field and other libraries call our variants, for the hints of error messages."""

# By the name as `normalized` makes it. `attend` is a function, the others are variants and presets.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "bahdanau": ("additive",),
    "bert": ("mha",),
    "concat": ("additive",),
    "cosine": ("qk_norm",),
    "cross": ("mha",),
    "deltanet": ("delta", "gated_delta"),
    "encoderdecoder": ("seq2seq",),
    "fox": ("forgetting",),
    "flash": ("blockwise", "attend"),
    "gateddeltanet": ("gated_delta",),
    "global": ("luong",),
    "gpt": ("decoder",),
    "hopfield": ("dot_product",),
    "kimi": ("kda",),
    "latent": ("mla",),
    "llama": ("decoder",),
    "local": ("sliding_window", "longformer"),
    "memoryefficient": ("blockwise", "attend"),
    "mamba": ("mamba2",),
    "multiquery": ("mqa",),
    "relative": ("shaw", "t5_bias", "transformer_xl"),
    "rope": ("rotary",),
    "rotaryembedding": ("rotary",),
    "scaleddotproduct": ("dot_product", "attend"),
    "ssd": ("mamba2",),
    "sdpa": ("dot_product", "attend"),
    "t5": ("t5_bias",),
    "vanilla": ("mha",),
}
SUFFIXES = ("attention", "attn", "layer", "cell")


def normalized(name: str) -> str:
    """A name in lower case without what only separates words."""
    return "".join(c for c in name.lower() if c.isalnum())


def meant(name: str, by_class_name: dict[str, str], known: list[str]) -> tuple[str, ...]:
    """The variants that a name surely means: by a class's name, another spelling, or what the field calls them.

    Args:
        name: what was asked for.
        by_class_name: class name to variant.
        known: the variants and presets.
    """
    names = {normalized(cls): (variant,) for cls, variant in by_class_name.items()}
    names |= {normalized(one): (one,) for one in known}
    key = normalized(name)
    stems = (key, *(key.removesuffix(suffix) for suffix in SUFFIXES if key.endswith(suffix)))
    return next((table[stem] for stem in stems for table in (names, SYNONYMS) if stem in table), ())
