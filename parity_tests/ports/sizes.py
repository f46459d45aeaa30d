"""Sizes of the axes that a config leaves open, as a call of the judge asks for them."""

from collections.abc import Mapping

from attn_np.contract import Config
from attn_np.contract._base import is_integer


def asked_sizes(
    who: str, config: Config, length: int | None, sizes: Mapping[str, int] | None, batch: int | None
) -> dict[str, int]:
    """The sizes by axis letter, "b" for the batch; only those that were asked for.

    Raises:
        TypeError: no counts, or no map of letters.
        ValueError: a letter that no argument has, or whose size the config fixes; a size asked for twice; one below 1.
    """
    fixed, arguments = config.sizes(), config.arguments()
    letters = dict.fromkeys(letter for arg in arguments.values() for letter in arg.axes.split() if letter not in fixed)
    if sizes is not None and not isinstance(sizes, Mapping):
        raise TypeError(
            f"{who}: expected sizes= as a map from axis letters to counts, got {type(sizes).__name__}; "
            f'write sizes={{"t": 8}}'
        )
    asked = dict(sizes or {})
    for name, letter, count in (("length", "t", length), ("batch", "b", batch)):
        if count is not None and letter in asked:
            raise ValueError(f"{who}: expected {name}= or sizes= of {letter}, got both; leave one of them out")
        asked |= {} if count is None else {letter: count}
    if length is not None and "s" in letters and is_integer(length):  # the keys come along, and are not as many
        asked.setdefault("s", length + 2)
    for letter, count in asked.items():
        if letter not in letters:
            raise ValueError(
                f"{who}: expected sizes of {', '.join(letters)}, which {config.variant} leaves open, got {letter!r}; "
                f"what the config fixes is set there"
            )
        if not is_integer(count):
            raise TypeError(f"{who}: expected sizes to be ints, got {count!r} for {letter}; give a count")
        if count < 1:
            raise ValueError(f"{who}: expected sizes of at least 1, got {count!r} for {letter}; raise it")
    return asked
