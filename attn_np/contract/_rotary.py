"""Rotary positions: the angles that each position is rotated by, from the published formulas."""

from math import ceil, floor, inf, log, pi, sqrt
from typing import Any

from attn_np.contract._base import Arg, Config, Spec, field_error, is_integer, is_number, require, rounded

LAYOUTS = ("half", "interleaved")

# The fields that each kind of scaling requires, and those that it allows.
SCALINGS: dict[str | None, tuple[tuple[str, ...], tuple[str, ...]]] = {
    None: ((), ()),
    "linear": (("rope_scaling_factor",), ()),
    "dynamic": (("rope_scaling_factor", "original_max_positions"), ()),
    "yarn": (
        ("rope_scaling_factor", "original_max_positions"),
        ("beta_fast", "beta_slow", "yarn_truncate", "attention_factor"),
    ),
    "llama3": (("rope_scaling_factor", "original_max_positions", "low_freq_factor", "high_freq_factor"), ()),
    "longrope": (
        ("original_max_positions", "short_factor", "long_factor"),
        ("rope_scaling_factor", "attention_factor"),
    ),
    "proportional": ((), ("rope_scaling_factor",)),
}
SCALING_FIELDS = tuple(dict.fromkeys(name for groups in SCALINGS.values() for names in groups for name in names))


class Rotary(Config):
    """Base of configs with rotary positions: their arguments, the checks of their fields, and the angles.

    A contract declares the base, the layout and some of the others as fields; the rest keep the values they have here.

    Attributes:
        rope_base: pair i rotates by rope_base^(-2i / rotary_dim) per position; None: no rotation.
        rotary_dim: how many dimensions of a head are rotated, the first ones; head_dim by default.
        rope_layout: "half", a pair is one dimension of the first half and one of the second (Llama, GPT-NeoX), or
            "interleaved", two neighbours (GPT-J, Cohere).
        rope_sections: of positions on several axes: how many pairs each axis rotates, such as (16, 24, 24) for
            time, row and column in Qwen2-VL (M-RoPE); `positions` are then `a b t`, one entry of a for each axis.
        rope_sections_interleaved: the axes take pairs in turn, as in Qwen3-VL, so that each has fast and slow ones;
            what is left at the end is the first one's.
        rope_axes: of positions on several axes, each with frequencies of its own: how many dimensions each axis
            rotates, such as (16, 56, 56) for frame, row and column in FLUX: pair i of an axis of n dimensions by
            rope_base^(-2i / n). `positions` are `a b t`, as with rope_sections, whose axes share the frequencies of one
            head.
        max_positions: exclusive limit of the positions that a call may pass; without it a call passes none, or the
            pair (cos, sin) as `positions`: of `rotary_angles`, or a model's own, which has each angle twice.
        rope_scaling: how angles change beyond the lengths in training: None, "linear", "dynamic", "yarn", "llama3",
            "longrope" or "proportional": pairs and exponents are those of the whole head, but only the first
            rotary_dim / 2 pairs turn (Gemma 4's layers without a window). "dynamic" and "longrope" depend on the
            length: that of a full pass, `max_length` of a cache when decoding, and the largest position + 1 if a full
            pass is given positions.
        rope_scaling_factor: how many times longer than in training; "longrope" and "proportional" need none.
        original_max_positions: the length in training; "linear" and "proportional" have none.
        low_freq_factor: "llama3": pairs with fewer turns than this over the original length are slowed down fully.
        high_freq_factor: "llama3": pairs with more turns than this stay as they are.
        beta_fast: "yarn": pairs with more turns than this over the original length stay as they are; 32 by default.
        beta_slow: "yarn": pairs with fewer turns than this are slowed down fully; 1 by default.
        yarn_truncate: "yarn": the ramp between the two begins and ends at whole pairs.
        attention_factor: "yarn", "longrope": factor on cosines and sines; from rope_scaling_factor by default.
        short_factor: "longrope": divides each pair's angle, up to the original length.
        long_factor: "longrope": divides each pair's angle beyond the original length.
    """

    not_in_results = ("max_positions",)

    rope_base: Any  # a number; None where a contract has layers without positions
    rotary_dim: int | None = None
    rope_layout: str
    rope_sections: tuple[int, ...] | None = None
    rope_sections_interleaved: bool = False
    rope_axes: tuple[int, ...] | None = None
    max_positions: int | None = None
    rope_scaling: str | None = None
    rope_scaling_factor: float | None = None
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    yarn_truncate: bool = True
    attention_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None

    def unshown_sizes(self) -> tuple[int, ...]:
        return (self.rotary_width(),)

    def meaning(self) -> dict[str, Any]:
        values, width = super().meaning(), self.rotary_width()
        angles = {name: values.pop(name, None) for name in ("rope_base", "rotary_dim", "rope_scaling", *SCALING_FIELDS)}
        if self.rope_base is None:
            for name in ("rope_layout", "rope_sections", "rope_sections_interleaved", "rope_axes"):
                values.pop(name, None)
            return values
        if width == 2:  # one pair, which both layouts make of the two dimensions
            values.pop("rope_layout", None)
        original = self.original_max_positions or 1
        values |= {"frequencies": (self.frequencies(original),), "cos_sin_factor": rounded(self.cos_sin_factor())}
        if self.rope_scaling == "longrope" and self.frequencies(original) != self.frequencies(original + 1):
            values |= {"frequencies": tuple(map(self.frequencies, (original, original + 1))), "original": original}
        if self.rope_scaling == "dynamic":
            values |= {name: angles[name] for name in ("rope_base", "rope_scaling_factor", "original_max_positions")}
        return values

    def rotary_width(self) -> int:
        """How many dimensions of a head are rotated, be it by an angle of 0."""
        return self.sizes()["k"] if self.rope_scaling == "proportional" else self.rotary_dim or self.sizes()["k"]

    def position_sizes(self) -> dict[str, int]:
        """The size of axis `a`, how many axes positions are counted on; empty where it is one."""
        axes = self.rope_sections if self.rope_axes is None else self.rope_axes
        return {"a": len(axes)} if isinstance(axes, tuple) else {}

    def pairs_of_axes(self) -> tuple[int, ...] | None:
        """How many pairs each axis of positions rotates; None for positions on one axis."""
        return self.rope_sections if self.rope_axes is None else tuple(n // 2 for n in self.rope_axes)

    def check_axes(self) -> None:
        """Refuse rope_axes that do not deal out all rotated dimensions in pairs, or beside what has other frequencies.

        Raises:
            ValueError: naming the field.
        """
        axes: Any = self.rope_axes
        if axes is None:
            return
        width = self.rotary_width()
        are_even = isinstance(axes, tuple) and all(is_integer(n) and n > 0 and n % 2 == 0 for n in axes)
        if not (are_even and sum(axes) == width):
            expected = f"rope_axes to be even numbers that add up to {width}"
            fix = "say how many dimensions each axis of positions rotates"
            raise field_error(self.variant, expected, repr(axes), fix)
        for name in ("rope_sections", "rope_scaling"):
            value, fix = getattr(self, name), "leave one of them out"
            self.require(value is None, f"no {name} with rope_axes=", repr(value), fix)

    def check_sections(self, name: str) -> None:
        """Refuse sections that do not deal out all rotated pairs.

        Raises:
            ValueError: naming the field.
        """
        sections: Any = getattr(self, name)
        pairs = self.rotary_width() // 2
        are_counts = isinstance(sections, tuple) and all(is_integer(n) and n > 0 for n in sections)
        if sections is not None and not (are_counts and sum(sections) == pairs):
            expected = f"{name} to be counts of pairs that add up to {pairs}"
            fix = "say how many pairs each axis of positions rotates"
            raise field_error(self.variant, expected, repr(sections), fix)
        flag = f"{name}_interleaved"
        self.check_flag(flag)
        if getattr(self, flag):
            self.require(are_counts, f"{name} for {flag}=", "none", f"set {name}=, or leave {flag} out")
            # Pair i is of axis i mod the number of axes; the first axis takes those that no other one has.
            counts: tuple[int, ...] = tuple(sections or ())
            most = tuple(pairs if n == 0 else (pairs - n - 1) // len(counts) + 1 for n in range(len(counts)))
            fits = all(n <= limit for n, limit in zip(counts, most, strict=True))
            fix = "put the axis with the most pairs first"
            self.require(fits, f"{name} of at most {most}, as the axes take turns", counts, fix)

    def check_rotary(self) -> None:
        """Refuse fields that cannot be right.

        Raises:
            ValueError: naming the field.
        """
        variant, width, head_width = self.variant, self.rotary_width(), self.sizes()["k"]
        self.check_positive("rotary_dim", "max_positions", "original_max_positions")
        self.check_number("rope_base", above=1.0)
        for name in ("rope_scaling_factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"):
            self.check_number(name, above=0.0)
        self.check_number("attention_factor", above=0.0)
        self.check_flag("yarn_truncate")
        self.check_one_of("rope_layout", LAYOUTS)
        self.check_axes()
        names = [name for name in ("rotary_dim", "rope_dim", "head_dim") if name in self.__dataclass_fields__]
        require(width % 2 == 0, variant, "an even number of rotated dimensions", width, f"set {(*names, 'width')[0]}=")
        if width > head_width:
            raise field_error(variant, f"rotary_dim of at most the head's width {head_width}", width, "set rotary_dim=")
        has_rotary_dim = "rotary_dim" in self.__dataclass_fields__  # which torch.compile can ask, unlike fields()
        self.check_one_of("rope_scaling", tuple(x for x in SCALINGS if x != "proportional" or has_rotary_dim))
        if self.rope_scaling == "proportional":
            turning, fix = self.rotary_dim, f"set rotary_dim= to at most {head_width}"
            fits = turning is not None and turning % 2 == 0 and turning <= head_width
            self.require(fits, "an even rotary_dim for rope_scaling='proportional'", turning, fix)
        required, allowed = SCALINGS[self.rope_scaling]
        for name in SCALING_FIELDS:
            value = getattr(self, name)
            if name in required:
                require(
                    value is not None, variant, f"{name} for rope_scaling={self.rope_scaling!r}", "none", f"set {name}="
                )
            elif name not in allowed:
                unset = value is (True if name == "yarn_truncate" else None)
                require(
                    unset,
                    variant,
                    f"no {name} for rope_scaling={self.rope_scaling!r}",
                    repr(value),
                    f"leave {name} out",
                )
        for name in ("short_factor", "long_factor"):
            value = getattr(self, name)
            fits = value is None or (
                isinstance(value, tuple)
                and len(value) == width // 2
                and all(is_number(x) and 0 < x < inf for x in value)
            )
            if not fits:
                fix = "give one for each rotated pair"
                raise field_error(variant, f"{name} to be {width // 2} finite numbers above 0", repr(value), fix)
        self.check_sections("rope_sections")
        for name in ("rope_sections", "rope_axes"):
            if getattr(self, name) is not None:
                expected, fix = f"max_positions for {name}", "set it above the largest position"
                require(self.max_positions is not None, variant, expected, "none", fix)
        if self.rope_scaling == "dynamic":
            require(
                width > 2,
                variant,
                "more than one rotated pair for rope_scaling='dynamic'",
                width // 2,
                "set rotary_dim=",
            )
        if self.rope_scaling == "llama3":
            low, high = self.low_freq_factor or 0, self.high_freq_factor or 0
            if low >= high:
                raise field_error(variant, "low_freq_factor below high_freq_factor", f"{low} and {high}", "swap them")
        if self.rope_scaling == "longrope" and self.attention_factor is None and self.original_max_positions == 1:
            raise field_error(variant, "original_max_positions of at least 2", 1, "or set attention_factor=")

    def check_optional_rotary(self) -> None:
        """As `check_rotary`, or rope_base=None, with which the fields of what it rotates must be unset.

        Raises:
            ValueError: naming the field.
        """
        fields = ("rope_base", "rope_scaling", "rotary_dim", "rope_sections", "rope_axes")
        if any(getattr(self, name) is not None for name in fields) or self.rope_sections_interleaved is not False:
            self.check_rotary()
            *others, last = (f"{name}=" for name in fields[1:] if name in self.__dataclass_fields__)
            expected = f"rope_base for {' or '.join([', '.join(others), last]) if others else last}"
            self.require(self.rope_base is not None, expected, "none", "set rope_base=")

    def arguments(self) -> dict[str, Arg]:
        arguments = {
            "query": Arg("b t d"),
            "mask": Arg("b h t t", "mask", optional=True),
            "bias": Arg("b h t t", "bias", optional=True),
            "keep": Arg("b h t t", "keep", optional=True),
        }
        if self.max_positions is not None:
            axes = "a b t" if self.position_sizes() else "b t"
            arguments["positions"] = Arg(axes, "integers", optional=True, below=self.max_positions)
        return arguments

    def check(self, dtype: str | None, **specs: Spec | None) -> dict[str, int]:
        fix = "set max_positions= above the largest position"
        for name in ("positions", "added_positions"):
            allowed = self.max_positions is not None or specs.get(name) is None
            self.require(allowed, f"no {name} without max_positions", "some", fix)
        cos, sin = specs.pop("cos", None), specs.pop("sin", None)
        sizes = super().check(dtype, **specs)
        if cos is not None and sin is not None:
            self.check_cos_sin((cos, sin), sizes, dtype)
        return sizes

    def check_cos_sin(
        self,
        pair: tuple[Spec, Spec],
        sizes: dict[str, int],
        dtype: str | None,
        *,
        stream: str = "",
        letter: str = "t",
    ) -> None:
        """Refuse cosines and sines that cannot be those of a call's positions.

        Args:
            pair, sizes, dtype: of the cosines and sines, of the call's axes, of the layer.
            stream: what stands before the names of a stream's positions.
            letter: the axis of these positions.

        Raises:
            ValueError: a shape that does not fit.
            TypeError: a dtype that does not fit.
        """
        variant, compute_dtype = self.variant, "float64" if dtype == "float64" else "float32"
        require(self.rope_base is not None, variant, "no (cos, sin) without rope_base", "them", "set rope_base=")
        b, t, pairs = sizes["b"], sizes[letter], self.rotary_width() // 2
        for name, (shape, got) in zip((f"{stream}cos", f"{stream}sin"), pair, strict=True):
            if got != compute_dtype:
                raise TypeError(
                    f"{variant}: expected {name} of dtype {compute_dtype}, as it is computed in, got {got}; convert it"
                )
            if shape[:-1] not in ((t,), (1, t), (b, t)) or shape[-1] not in (pairs, 2 * pairs):
                shapes = f"({letter}, r) or (b, {letter}, r)"
                expected = f"{name} of shape {shapes}, with b={b}, {letter}={t} and r={pairs} rotated pairs"
                fix = "make it by rotary_angles, or pass a model's, with each angle twice"
                raise field_error(variant, expected, shape, fix)
        widths = tuple(shape[-1] for shape, _ in pair)
        require(widths[0] == widths[1], variant, "cos and sin of one width", widths, "make both by rotary_angles")

    def check_copies(self, *, known: bool, equal: bool, same: bool) -> None:
        """Refuse cosines and sines that have each angle twice, unless their values say in which order.

        Args:
            known: whether their values are known.
            equal: whether the two halves, or all neighbours, are equal.
            same: whether the halves and the neighbours that are equal have the same angles.

        Raises:
            ValueError: naming what they are.
        """
        pairs = self.rotary_width() // 2
        expected = "cos and sin with each angle once, or twice: in two equal halves, or as equal neighbours"
        fix = f"pass each angle once: cos[..., :{pairs}] of halves, cos[..., ::2] of neighbours"
        self.require(known, expected, f"{2 * pairs} of which a compiled program does not know the values", fix)
        self.require(equal, expected, f"{2 * pairs} that are neither", "make them by rotary_angles")
        self.require(same, expected, f"{2 * pairs} that may be either", fix)

    def check_position_range(self, low: int, high: int) -> None:
        """Refuse positions whose least and largest are not from 0 to `max_positions` - 1.

        Raises:
            ValueError: naming the range.
        """
        last = (self.max_positions or 1) - 1
        fits, fix = low >= 0 and high <= last, "count from 0, and set max_positions= above the largest"
        self.require(fits, f"positions from 0 to {last}", f"{low} to {high}", fix)

    def depends_on_length(self, length: int) -> bool:
        """Whether the angles change with the length of a pass, for some length up to `length`."""
        return self.rope_scaling in ("dynamic", "longrope") and length > (self.original_max_positions or 1)

    def check_traced_length(self) -> None:
        """Refuse "dynamic": a compiled program does not know the largest position, on which its angles depend.

        Raises:
            ValueError: `rope_scaling="dynamic"`.
        """
        expected = "positions whose values are known for rope_scaling='dynamic', which depends on the largest"
        fix = "pass them outside compiled programs, or leave them out"
        self.require(self.rope_scaling != "dynamic", expected, "traced ones", fix)

    def frequencies(self, length: int) -> tuple[float, ...]:
        """The angle between neighbouring positions for each pair of dimensions, in a pass over `length` positions.

        Su et al. 2021 (arXiv:2104.09864), section 3.2.2: base^(-2i/width) for pair i. Then by the kind of scaling:

        - linear: positions are divided by the factor (Chen et al. 2023, arXiv:2306.15595).
        - dynamic: beyond the original length L the base grows with the length (NTK-aware interpolation, as in
          Hugging Face's transformers): base (factor length / L - factor + 1)^(width / (width - 2)).
        - yarn: pairs that rotate fast keep their angle, slow ones are slowed down by the factor, with a ramp between
          (Peng et al. 2023, arXiv:2309.00071, section 3.2). The ramp is over the indices of the pairs, as in the
          authors' code and every model; equation 13 has it over their numbers of turns.
        - llama3: the same with a ramp over the pairs' numbers of turns within the original length, the inverses of
          their wavelengths (Llama 3.1's reference code).
        - longrope: each pair is slowed down by its own factor, from one list up to the original length and from
          another beyond it (Ding et al. 2024, arXiv:2402.13753).
        - proportional: the first pairs alone turn, rotary_dim / 2 of them, and slower by the factor, if there is one
          (Gemma 4).

        With rope_axes each axis has those of its own width.
        """
        width, base, factor = self.rotary_width(), self.rope_base, self.rope_scaling_factor or 1.0
        original = self.original_max_positions or 1
        if self.rope_scaling == "dynamic" and length > original:
            base = base * (factor * length / original - (factor - 1)) ** (width / (width - 2))
        widths = (width,) if self.rope_axes is None else self.rope_axes
        frequencies = [base ** (-2 * i / n) for n in widths for i in range(n // 2)]
        if self.rope_scaling == "linear":
            frequencies = [f / factor for f in frequencies]
        elif self.rope_scaling == "yarn":
            low, high = (self._pair_that_turns(n) for n in (self.beta_fast or 32.0, self.beta_slow or 1.0))
            if self.yarn_truncate:
                low, high = floor(low), ceil(high)
            low, high = max(low, 0), min(high, width - 1)
            high = high + 0.001 if low == high else high
            ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(width // 2)]
            frequencies = [f / factor * r + f * (1 - r) for f, r in zip(frequencies, ramp, strict=True)]
        elif self.rope_scaling == "llama3":
            low, high = self.low_freq_factor or 1.0, self.high_freq_factor or 4.0
            turns = [original * f / (2 * pi) for f in frequencies]
            ramp = [min(max((n - low) / (high - low), 0.0), 1.0) for n in turns]
            frequencies = [f / factor * (1 - r) + f * r for f, r in zip(frequencies, ramp, strict=True)]
        elif self.rope_scaling == "longrope":
            factors = (self.long_factor if length > original else self.short_factor) or ()
            frequencies = [f / divisor for f, divisor in zip(frequencies, factors, strict=True)]
        elif self.rope_scaling == "proportional":
            turning = (self.rotary_dim or 0) // 2
            frequencies = [f / factor if i < turning else 0.0 for i, f in enumerate(frequencies)]
        return tuple(frequencies)

    def _pair_that_turns(self, n: float) -> float:
        """Index of the pair that makes n turns within the original length, as a real number."""
        return self.rotary_width() * log((self.original_max_positions or 1) / (n * 2 * pi)) / (2 * log(self.rope_base))

    def cos_sin_factor(self) -> float:
        """Factor on cosines and sines: `attention_factor`, or a value that the scaling derives from its factor."""
        factor = self.rope_scaling_factor or 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if factor > 1 and self.rope_scaling == "yarn":
            return 0.1 * log(factor) + 1.0
        if factor > 1 and self.rope_scaling == "longrope":
            return sqrt(1 + log(factor) / log(self.original_max_positions or 1))
        return 1.0


def unpack_positions_pair(who: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call; a pair passed as `positions` becomes two arguments, `cos` and `sin`, and positions None.

    One passed as `added_positions` becomes `added_cos` and `added_sin`.

    Raises:
        ValueError: positions that are neither an array nor a pair.
    """
    unpacked = dict(arguments)
    for name in ("positions", "added_positions"):
        positions = arguments.get(name)
        if isinstance(positions, tuple):
            expected, got = f"{name} as integers, or as a pair (cos, sin)", f"{len(positions)} arrays"
            require(len(positions) == 2, who, expected, got, "make the pair by rotary_angles")
            stream = name.removesuffix("positions")
            unpacked |= {name: None, f"{stream}cos": positions[0], f"{stream}sin": positions[1]}
    return unpacked
