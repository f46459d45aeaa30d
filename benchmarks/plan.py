"""What is run against what, and what is hoped for: the table of races and their targets."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

# ASKED: part of no run, unless `--only` matches it.
QUICK, USUAL, FULL, ASKED = 0, 1, 2, 3
ROUNDS = {QUICK: 10, USUAL: 30, FULL: 30}
WINDOW = 256
LENGTHS = {QUICK: (16, 512, 2048), USUAL: (16, 64, 256, 512, 2048, 8192), FULL: (16, 64, 256, 512, 2048, 8192, 16384)}
BOTH = "forward+backward"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is computed.

    Attributes:
        what: "attend", the function; "mha" or "decoder", a layer with its projections; "rotary", a decoder that turns
            its queries and keys; "decode", steps of one token; "variant", the layer of a variant.
        length: positions; of the cache when decoding.
        passes: "forward", or "forward+backward": the output and the gradients of all inputs and parameters.
        mask: "full", "causal", "window" (causal, of 256 keys before the own one), "mask" (boolean), or a feature:
            "softcap", "sinks", "alibi" (causal, a bias).
        dtype: of inputs and parameters.
        batch, heads, kv_heads, width: sizes; width is that of a head.
        variant: its name, where the work is that of one.
    """

    what: str = "attend"
    length: int = 2048
    passes: str = "forward"
    mask: str = "full"
    dtype: str = "float32"
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    width: int = 64
    variant: str = ""


@dataclass(frozen=True)
class Entrant:
    """Who does which work; its name within a race says the mask where several run."""

    who: str
    work: Work
    name: str


@dataclass(frozen=True)
class Target:
    """What a ratio should be at most, or, without somebody to compare with, a size in bytes."""

    ours: str
    theirs: str | None
    at_most: float


@dataclass(frozen=True)
class Race:
    """Entrants that take turns on the same numbers.

    Attributes:
        name: what `--only` matches.
        entrants: in the order in which they are shown.
        targets: what is judged; other ratios are shown beside them.
        level: the smallest run that it is part of.
        process: which process it runs in; races of the same one share it. Keras chooses its backend at import.
        kind: "time", or "memory": each entrant once in a process of its own.
        threads: how many it has; None: those of the run. Races of fewer threads than the run has run side by side.
        seconds: after how many no new round begins; None: all rounds of the run are run.
        weighed: the entrant of whose calls one is weighed before the rounds; "" for none.
    """

    name: str
    entrants: tuple[Entrant, ...]
    targets: tuple[Target, ...] = ()
    level: int = USUAL
    process: str = "frameworks"
    kind: str = "time"
    threads: int | None = None
    seconds: float | None = None
    weighed: str = ""

    @property
    def work(self) -> Work:
        return self.entrants[0].work

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def race(name: str, work: Work, who: tuple[str, ...], targets: tuple[Target, ...] = (), **more: Any) -> Race:
    return Race(name, tuple(Entrant(one, work, one) for one in who), targets, **more)


def least_level(length: int) -> int:
    return min(level for level, lengths in LENGTHS.items() if length in lengths)


TREES = ("attn_np", "attn_torch", "attn_jax")
FUNCTIONS = ("attn_np", "two products", "attn_torch", "torch SDPA", "attn_jax", "jax.nn")
TEXTBOOKS = tuple(f"{tree} textbook" for tree in TREES)
FEATURES = ("softcap", "sinks", "alibi", "window")
# How many bytes beyond inputs and output are allowed where memory should grow with the length, not with its square.
ROOM = 100e6
# Asked from some hundred positions on: below, the check of a call and the views alone are more than 3 %, and code
# that is plain and works in every transform comes first.
AS_SDPA, FROM = 1.03, 512
# At most so many times `nn.MultiheadAttention`, whose short calls are one fused operation; 1 at other lengths.
AS_FUSED = {16: 1.5, 128: 1.15}


def forward() -> Iterator[Race]:
    """The function alone, forward: every length, who sees whom, features, grouped heads, 16 bits."""
    for length in LENGTHS[FULL]:
        targets = [Target("attn_torch", "torch SDPA", AS_SDPA)] if length >= FROM else []
        if length >= 2048:
            targets += [Target("attn_jax", "jax.nn", 1 / 3), Target("attn_jax", "torch SDPA", 1.0)]
            targets += [Target("attn_np", "torch SDPA", 1.15), Target("attn_np", "two products", 1.25)]
        else:
            targets += [Target("attn_jax", "jax.nn", 1.0)]
        who = FUNCTIONS + (TEXTBOOKS if length <= 2048 else ())
        yield race(f"attend/forward/full/{length}", Work(length=length), who, tuple(targets), level=least_level(length))
    for length in (2048, 8192):
        masks = {"attn_np": "full", "attn_np causal": "causal", "attn_np window": "window"}
        entrants = tuple(Entrant("attn_np", Work(length=length, mask=mask), name) for name, mask in masks.items())
        targets = [Target("attn_np causal", "attn_np", 0.6)]
        if length == 8192:
            targets += [Target("attn_np window", "attn_np", 0.1)]
        level = QUICK if length == 2048 else USUAL
        yield Race(f"attend/forward/numpy masks/{length}", entrants, tuple(targets), level)
    sdpa = (Target("attn_torch", "torch SDPA", AS_SDPA),)
    for length, who in ((512, FUNCTIONS), (2048, FUNCTIONS), (8192, (*TREES, "torch SDPA")), (16384, TREES)):
        who = tuple(one for one in who if one != "two products")
        level = {2048: QUICK, 16384: FULL}.get(length, USUAL)
        causal = race(f"attend/forward/causal/{length}", Work(length=length, mask="causal"), who, level=level)
        yield Race(causal.name, causal.entrants, sdpa if "torch SDPA" in who else (), level)
    for length in (512, 2048):
        who = ("attn_np", "attn_torch", "torch SDPA", "attn_jax", "jax.nn")
        yield race(f"attend/forward/mask/{length}", Work(length=length, mask="mask"), who, sdpa)
        grouped = Work(length=length, kv_heads=2)
        yield race(f"attend/forward/grouped/{length}", grouped, who, sdpa)
    for length in (2048, 4096):
        for mask in FEATURES:
            targets = (Target("attn_torch", "attn_torch textbook", 0.5),)
            who = ("attn_torch", "attn_torch textbook", "attn_np", "attn_jax")
            who += ("torch SDPA", "jax.nn") if mask in ("window", "alibi") else ()
            level = USUAL if length == 2048 else FULL
            yield race(f"attend/forward/{mask}/{length}", Work(length=length, mask=mask), who, targets, level=level)
    who = ("attn_np", "attn_torch", "attn_jax")
    yield race("attend/forward/window/8192", Work(length=8192, mask="window"), who)
    for length in (512, 2048, 8192):
        for mask in ("full", "causal"):
            work = Work(length=length, dtype="bfloat16", mask=mask)
            who = tuple(one for one in FUNCTIONS if one != "two products")
            yield race(f"attend/forward/{mask}/{length}/bfloat16", work, who, sdpa, level=FULL)


def backward() -> Iterator[Race]:
    """The function alone with gradients of its inputs."""
    sdpa = (Target("attn_torch", "torch SDPA", AS_SDPA),)
    who = ("attn_torch", "torch SDPA", "attn_jax", "jax.nn")
    for length in (16, 128, 512, 2048, 4096, 8192):
        targets = [*sdpa] if length >= FROM else []
        if length >= 2048:
            targets += [Target("attn_jax", "jax.nn", 1 / 2.3), Target("attn_jax", "torch SDPA", 1.1)]
        else:
            targets += [Target("attn_jax", "jax.nn", 1.0)]
        level = {512: QUICK, 2048: QUICK, 8192: FULL}.get(length, USUAL)
        books = ("attn_torch textbook", "attn_jax textbook") if length <= 2048 else ()
        work = Work(length=length, passes=BOTH)
        yield race(f"attend/{BOTH}/full/{length}", work, who + books, tuple(targets), level=level)
    for length in (512, 2048):
        for mask in ("causal", "mask"):
            yield race(f"attend/{BOTH}/{mask}/{length}", Work(length=length, passes=BOTH, mask=mask), who, sdpa)
    for mask in FEATURES:
        targets = (Target("attn_torch", "attn_torch textbook", 0.5),)
        work = Work(passes=BOTH, mask=mask)
        yield race(
            f"attend/{BOTH}/{mask}/2048", work, ("attn_torch", "attn_torch textbook", "attn_jax"), targets, level=FULL
        )
    for length in (512, 2048):
        work = Work(length=length, passes=BOTH, dtype="bfloat16")
        yield race(f"attend/{BOTH}/full/{length}/bfloat16", work, who, sdpa, level=FULL)


def layers() -> Iterator[Race]:
    """Whole layers, projections included, beside those of the libraries; all of the same width, with biases."""
    # Keras chooses its backend at import, so each of the two has a process of its own.
    groups = {
        "torch": ("attn_torch", "nn.MultiheadAttention", "Keras on torch"),
        "jax": ("attn_jax", "nnx.MultiHeadAttention", "Keras on JAX", "Equinox"),
    }
    for framework, (ours, *peers) in groups.items():
        for what in ("mha", "decoder"):
            for passes in ("forward", BOTH):
                for length in (16, 128, 512, 2048, 8192):
                    work = Work(what=what, length=length, passes=passes, mask="causal" if what == "decoder" else "full")
                    first = AS_FUSED.get(length, 1.0) if framework == "torch" else 1.0
                    targets = (Target(ours, peers[0], first),)
                    if length >= 128:
                        targets += tuple(Target(ours, peer, 1.0) for peer in peers[1:])
                    quick = length in (16, 512) and passes == "forward" and what == "mha"
                    level = QUICK if quick else FULL if length == 8192 else USUAL
                    more = ("attn_np",) if framework == "torch" and length <= 2048 else ()
                    yield race(
                        f"layers/{framework}/{what}/{passes}/{length}",
                        work,
                        (ours, *peers, *more),
                        targets,
                        level=level,
                        process=framework,
                    )
    for length in (512, 2048):
        work = Work(what="rotary", length=length, mask="causal")
        yield race(f"layers/jax/rotary/forward/{length}", work, ("attn_jax", "Equinox"), process="jax", level=FULL)


def decoding() -> Iterator[Race]:
    """Tokens per second of `layer.step` where the cache holds so many positions."""
    for length in (256, 512, 1024, 2048, 4096, 8192):
        level = {256: QUICK, 2048: QUICK, 1024: USUAL, 4096: USUAL, 8192: USUAL}.get(length, FULL)
        yield race(
            f"decode/{length}", Work(what="decode", length=length, mask="causal"), (*TREES, "torch loop"), level=level
        )


def memory() -> Iterator[Race]:
    """The highest memory of one call, beyond what there was before and what it returns."""
    for length in (512, 2048, 8192, 16384):
        books = length <= 2048
        who = FUNCTIONS + (TEXTBOOKS if books else ()) if length <= 8192 else (*TREES, "torch SDPA")
        targets = (Target("attn_np", None, ROOM),) if length == 16384 else ()
        level = QUICK if length == 2048 else USUAL
        name = f"memory/forward/full/{length}"
        yield race(name, Work(length=length), who, targets, level=level, kind="memory")
    for passes in ("forward", BOTH):
        for mask in FEATURES:
            targets = (Target("attn_torch", None, ROOM),)
            work = Work(length=4096, mask=mask, passes=passes)
            who = ("attn_torch", "attn_torch textbook")
            yield race(f"memory/{passes}/{mask}/4096", work, who, targets, kind="memory")
    who = ("attn_torch", "torch SDPA", "attn_jax", "jax.nn")
    for length in (2048, 4096):
        yield race(f"memory/{BOTH}/full/{length}", Work(length=length, passes=BOTH), who, kind="memory")


def races() -> tuple[Race, ...]:
    """All of them, those of one process together."""
    return (*forward(), *backward(), *decoding(), *layers(), *memory())
