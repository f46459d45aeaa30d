"""The contract of decoding: the arrays of a cache, and the checks of `init_cache` and `step`."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from attn_np.contract._base import INTEGERS, Config, Spec, field_error, is_integer, require

Array = TypeVar("Array")

# One spare slot at the end, for entries that are not stored.
SPARE = 1
# Kinds of arguments that describe a whole sequence, not a step.
WHOLE_SEQUENCE_KINDS = ("mask", "bias", "keep", "marks")


def slot_count(config: Config, max_length: int) -> int:
    """For how many positions a cache holds entries at once: all, or as many as the config says."""
    return max_length if config.cache_slots() is None else min(max_length, config.cache_slots() or 1)


def reads_cache(config: Config) -> bool:
    """Whether steps of a layer read the cache of another one, which has written the same positions."""
    return getattr(config, "shared_kv", False)


def check_decodes(config: Config) -> None:
    """Refuse a layer that does not decode.

    Raises:
        ValueError: naming what keeps it from decoding, and the field to change, if there is one.
    """
    if not config.cache_axes():
        fields = ("causal=True", "normalize_over='keys'", "query_block=1")
        why = config.why_no_cache()
        field = next((field for field in fields if why.startswith(field.partition("=")[0] + "=")), None)
        fix = "call it on whole sequences" if field is None else f"build it with {field}"
        if field == fields[0] and "key" in config.arguments():
            fix += ", or for cross-attention, which needs no cache, call layer(x, memory) at each step"
        raise field_error(config.variant, "a layer that decodes", why, fix)


def cache_shapes(
    config: Config, batch_size: int, max_length: int, sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Shape of every array of a cache, by name; `sizes` are the sizes that the config leaves open.

    Raises:
        ValueError: a layer that does not decode, or reads another's cache, or sizes below 1.
    """
    check_decodes(config)
    variant = config.variant
    fix = "pass step the cache that the other layer's step returned"
    require(not reads_cache(config), variant, "a layer with keys of its own for init_cache", "shared_kv=True", fix)
    for name, size in {"batch_size": batch_size, "max_length": max_length, **sizes}.items():
        # A size that PyTorch compiles for any value has no `repr`, and one that JAX exports for any is no int.
        if not ((is_integer(size) or is_symbol(size)) and size >= 1):
            raise field_error(variant, f"{name} to be an integer of at least 1", repr(size), f"set {name}=")
    all_sizes = {**sizes, **config.sizes(), "b": batch_size, "s": slot_count(config, max_length) + SPARE}
    axes = {name: letters.split() for name, letters in config.cache_axes().items()}
    missing = sorted({letter for letters in axes.values() for letter in letters} - set(all_sizes))
    fix = f"pass {', '.join(f'{letter}=' for letter in missing)}"
    require(not missing, variant, f"sizes of {', '.join(missing)}", "none", fix)
    return {name: tuple(all_sizes[letter] for letter in letters) for name, letters in axes.items()}


def is_symbol(x: object) -> bool:
    """Whether it is a size of `jax.export.symbolic_shape`, which stands for any number."""
    return type(x).__name__ == "_DimExpr"


def known_sizes(name: str, *values: Any) -> tuple[Any, ...]:
    """The values that a table is made of, none of which may stand for any number: a program would make it in float32,
    where angles are wrong by 1e-3.

    Raises:
        ValueError: naming the size.
    """
    size = next((x for x in values if is_symbol(x)), None)
    fix = "give positions= as (cos, sin), or positions= and the field max_positions"
    require(size is None, name, "a length that is known for a table of positions", size, fix)
    return values


def arguments_to_check(config: Config, cache: Any, cache_type: type, **arguments: Any) -> dict[str, Any]:
    """The arguments of a step that are left for the contract's `check`; refuses a wrong cache, and what no step takes.

    Raises:
        TypeError: a cache of another package, or no cache.
        ValueError: a cache that is used up; a mask, a bias or another argument with an axis of keys, which in a step
            are the slots of the cache.
    """
    variant = config.variant
    if not isinstance(cache, cache_type):
        other = type(cache)
        got = f"{other.__module__}.{other.__qualname__}".removeprefix("builtins.")
        fix = "call the layer's init_cache, or pass the cache that the last step returned"
        raise TypeError(f"{variant}: expected a cache of {cache_type.__module__.partition('.')[0]}, got {got}; {fix}")
    check_unspent(variant, cache.spent)
    layer_arguments = config.arguments() if arguments else {}
    for name, x in arguments.items():
        arg = layer_arguments.get(name)
        if arg is not None and (arg.kind in WHOLE_SEQUENCE_KINDS or arg.cached) and x is not None:
            fix = "mark padding by valid=" if name == "mask" else "call the layer on whole sequences"
            fix = "pass the cache that the other layer's step returned" if arg.cached else fix
            raise ValueError(f"{variant}: expected step without {name}, got one; {fix}")
    if return_weights := arguments.get("return_weights"):
        fix = "pass tape={} and read tape['probs']"
        raise field_error(variant, "no return_weights in a step", f"return_weights={return_weights}", fix)
    return {name: x for name, x in arguments.items() if name in layer_arguments}


def check_unspent(who: str, spent: bool) -> None:
    """Refuse a cache that a step has used up: its arrays may have been overwritten.

    Raises:
        ValueError: if it has.
    """
    fix = "use the cache that the step returned, or copy() the old one before"
    require(not spent, who, "a cache that no step has used", "one used up", fix)


def check_rows(spec: Spec | None, rows: Any) -> None:
    """Refuse rows of a cache that are no list of integers, nor an array `n` of them, whose spec it is.

    Raises:
        TypeError: no integers.
        ValueError: an array of more axes, or of none.
    """
    if spec is None:
        got = next((repr(x) for x in rows if not is_integer(x)), None)
        if got is not None:
            raise TypeError(f"cache: expected rows of integers, got {got}; pass the indices of the sequences")
        return
    if spec[1] not in INTEGERS:
        raise TypeError(f"cache: expected rows of an integer dtype, got {spec[1]}; pass the indices of the sequences")
    require(len(spec[0]) == 1, "cache", "rows of one axis", spec[0], "pass the indices of the sequences")


def check_rows_fit(known: tuple[int, int] | None, batch_size: int) -> None:
    """Refuse rows that a cache does not have; `known` are the least and the largest, where they are known.

    Raises:
        ValueError: naming the first that does not fit.
    """
    if known is not None:
        outside = known[0] if known[0] < 0 else known[1]
        fix = "count the sequences from 0"
        require(0 <= outside < batch_size, "cache", f"rows from 0 to {batch_size - 1}", outside, fix)


def check_some_rows(count: int) -> None:
    """Refuse a cache of no sequence.

    Raises:
        ValueError: if there is none.
    """
    require(count > 0, "cache", "at least one row", "none", "name the sequences that go on")


def check_crop(spent: bool, states: str, num_slots: int, max_length: int) -> None:
    """Refuse to crop a cache that does not hold all earlier positions.

    Raises:
        ValueError: it is used up, holds states, or the last positions alone.
    """
    check_unspent("cache", spent)
    fix = "copy() the cache before the positions that may go"
    holds = f"states ({', '.join(states.split())}), in which earlier positions are summed up"
    require(not states, "cache", "keys and values of all positions to crop", holds, fix)
    holds = f"the last {num_slots} of up to {max_length} positions"
    require(num_slots == max_length, "cache", "keys and values of all positions to crop", holds, fix)


def check_no_pattern(pattern: Any) -> None:
    """Refuse a pattern where the keys of all devices are gathered: it has the arrays of one device.

    Raises:
        ValueError: a pattern.
    """
    expected, got = "pattern= with keys that travel in a ring", "a call that gathers them"
    fix = "leave out tape=, return_weights= and implementation=, and see docs/parallel.md for the layers"
    require(pattern is None, "apply", expected, got, fix)


def check_lengths(spec: Spec | None, length: Any, batch_size: int) -> None:
    """Refuse a length that is no integer, nor an array `b` of them, whose spec it is.

    Raises:
        TypeError: no integers.
        ValueError: an array of another shape.
    """
    if spec is None:
        if not is_integer(length):
            raise TypeError(f"cache: expected length to be an integer or an array, got {length!r}; pass one")
        return
    if spec[1] not in INTEGERS:
        raise TypeError(f"cache: expected length of an integer dtype, got {spec[1]}; pass integers")
    fix = "pass one number for all, or one for each"
    require(spec[0] in ((), (batch_size,)), "cache", f"length of shape {(batch_size,)}", spec[0], fix)


def check_at_least_0(known: tuple[int, int] | None) -> None:
    """Refuse a length below 0; `known` are the least and the largest, where they are known.

    Raises:
        ValueError: if the least is.
    """
    fix = "pass how many positions stay"
    require(known is None or known[0] >= 0, "cache", "length of at least 0", known and known[0], fix)


def check_step(
    config: Config,
    training: bool,
    sizes: Mapping[str, int],
    valid: Spec | None,
    cache_specs: Mapping[str, Spec | None],
    max_length: int,
) -> None:
    """Refuse a step that cannot be right, before anything is written; `sizes` are those that `check` returned.

    Raises:
        ValueError: no new position, keys other than those of the new positions, a cache of another layer or batch, a
            layer in training with dropout.
        TypeError: `valid` of another dtype than bool.
    """
    variant, batch, new = config.variant, sizes["b"], sizes["t"]
    if training and getattr(config, "dropout", 0) > 0:
        raise field_error(
            variant, "a layer in evaluation mode to decode with", "training mode and dropout", "call eval()"
        )
    if new <= 0:
        raise field_error(variant, "a query of at least one new position", f"t={new}", "pass (b, t, d)")
    keys = sizes.get("s", new)
    if keys != new:
        fix = "the cache holds the earlier ones, and keys of another sequence go to a layer with causal=False"
        raise field_error(variant, f"keys of the new positions, s=t={new}", f"s={keys}", fix)
    axes_by_name = config.cache_axes()
    if cache_specs.keys() != axes_by_name.keys():
        raise field_error(variant, f"a cache of {', '.join(axes_by_name)}", ", ".join(cache_specs), "call init_cache")
    all_sizes = {**sizes, "s": slot_count(config, max_length) + SPARE}
    for name, axes in axes_by_name.items():
        shape, letters = (cache_specs[name] or ((), ""))[0], axes.split()
        expected = tuple(map(all_sizes.get, letters, shape))
        if not (expected == shape and len(letters) == len(expected)):
            fix = "call init_cache for this layer and batch"
            raise field_error(variant, f"the cache's {name} of shape {expected}", shape, fix)
    if valid is not None:
        shape = (batch, new)
        if valid[0] != shape:
            fix = "say for each position whether it is real"
            raise field_error(variant, f"valid of shape {shape}", valid[0], fix)
        if valid[1] != "bool":
            raise TypeError(
                f"{variant}: expected a boolean valid (True = a real position), got {valid[1]}; pass valid == 1"
            )


def check_room(who: str, length: Any, max_length: int) -> None:
    """Refuse positions that a cache has no room for, if their number is known.

    Raises:
        ValueError: naming both numbers.
    """
    fix = "call init_cache with a larger max_length"
    require(length <= max_length, who, f"at most {max_length} positions in the cache", length, fix)


def check_has_read(who: str, new: int, length: int) -> None:
    """Refuse a cache that does not hold the new positions yet.

    Raises:
        ValueError: naming both numbers.
    """
    fix = "let the layer whose keys it shares step first, and pass the cache that it returned"
    require(length >= new, who, f"a cache that holds the {new} new positions", f"{length} positions", fix)


def check_reads_one(who: str, new: int, num_slots: int, max_length: int) -> None:
    """Refuse several new positions where the cache holds the last ones alone: some of their keys are gone.

    Raises:
        ValueError: naming both numbers.
    """
    expected = f"one new position at a time in a cache of the last {num_slots} of {max_length} positions"
    fix = "call the layer on the whole sequence with shared_k= and shared_v="
    require(new == 1 or num_slots == max_length, who, expected, new, fix)


class DecodingMixin(Generic[Array]):
    """The decoding of a layer: `_empty_cache` and `_step` of its package say how arrays are made and steps taken."""

    def _empty_cache(self, batch_size: int, max_length: int, dtype: Any, sizes: dict[str, int]) -> Any:
        raise NotImplementedError

    def _step(
        self, query: Array, cache: Any, valid: Array | None, tape: Any, arguments: dict[str, Array]
    ) -> tuple[Array, Any]:
        raise NotImplementedError

    def init_cache(self, batch_size: int, max_length: int, *, dtype: Any = None, **sizes: int) -> Any:
        """An empty cache to decode with, by `step`.

        Args:
            batch_size: how many sequences.
            max_length: how many positions each may have.
            dtype: of keys, values and states; the layer's by default, but float32 for the states of 16-bit layers,
                whose rounding errors would add up from step to step.
            sizes: of axis letters that the config leaves open, such as k=64, v=64 for `dot_product`.

        Raises:
            ValueError: a layer that does not decode, or has no keys of its own, or sizes below 1.
        """
        return self._empty_cache(batch_size, max_length, dtype, sizes)

    def step(
        self, query: Array, cache: Any, *, valid: Array | None = None, tape: Any = None, **arguments: Array
    ) -> tuple[Array, Any]:
        """The outputs of new positions, and the cache with them appended.

        Each sequence continues from its own length. New positions that are not real, such as padding on either side,
        are not appended, and their outputs have no meaning. The step uses the cache up (in JAX only if it is donated);
        pass `cache.copy()` to keep it.

        Args:
            query: `b t d`, the new positions, one or many.
            cache: from `init_cache` or the step before.
            valid: `b t`, True = a real position; all are real by default.
            tape: gets every named intermediate.
            arguments: the layer's other arguments, for the new positions, but no mask, bias or keep: `valid` says what
                is padding, and their keys would be slots of the cache. No `return_weights`: `tape["probs"]` has them.

        Raises:
            TypeError: a cache of another package, or no cache; an array of another type or dtype.
            ValueError: a layer that does not decode, a used or full cache, one of another layer, an argument that a
                step cannot take, or training with dropout. Under jit and compile the lengths are not known: a full
                cache is left as it is, the outputs are NaN and `cache.overflowed` is True.
        """
        check_decodes(self.config)  # type: ignore[attr-defined]
        return self._step(query, cache, valid, tape, arguments)
