"""What a weight file can be refused for: one exception class per reason, each naming what is wrong and what to do."""

from collections.abc import Iterable, Sequence
from os import PathLike, fspath

from attn_np.contract import nearest

__all__ = [
    "ConfigMismatchError",
    "DigestMismatchError",
    "DtypeMismatchError",
    "DuplicateKeyError",
    "HeaderLimitError",
    "HeaderSyntaxError",
    "KeyNameError",
    "LayoutError",
    "LayoutTagError",
    "MissingKeysError",
    "NonFiniteWeightError",
    "ShapeMismatchError",
    "ShardIndexError",
    "TrailingDataError",
    "TruncatedFileError",
    "UnexpectedKeysError",
    "UnsafeFormatError",
    "UnsafePathError",
    "UnsupportedEncodingError",
    "WeightFileError",
]

SHOWN = 8


class WeightFileError(ValueError):
    """A weight file that is refused.

    Attributes:
        file: the file's path.
        key: the tensor or field it is about, or None.
        expected: the rule.
        found: what the file holds instead.
        todo: what to do about it.
    """

    def __init__(self, file: str | PathLike[str], key: str | None, expected: str, found: str, todo: str) -> None:
        # All five are arguments of the exception, so that it survives pickling between processes.
        super().__init__(fspath(file), key, expected, found, todo)
        self.file, self.key, self.expected, self.found, self.todo = fspath(file), key, expected, found, todo

    def __str__(self) -> str:
        where = self.file if self.key is None else f"{self.file}: {shown(repr(self.key))}"
        return shown(where, None) + f": expected {shown(self.expected)}, got {shown(self.found)}; {shown(self.todo)}"


def shown(text: str, most: int | None = 800) -> str:
    """Text that neither steers the terminal nor fills it, whatever a file holds."""
    text = text if most is None or len(text) <= most else f"{text[:most]} ..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class TruncatedFileError(WeightFileError):
    """The file ends before its header or its tensors do."""


class TrailingDataError(WeightFileError):
    """The file goes on after its last tensor."""


class HeaderLimitError(WeightFileError):
    """The header is larger than a header of weights can be."""


class HeaderSyntaxError(WeightFileError):
    """The header is not the JSON that the format asks for."""


class DuplicateKeyError(WeightFileError):
    """A name stands twice in the header, so that readers would disagree on which counts."""


class KeyNameError(WeightFileError):
    """A tensor's name is empty, too long, or holds characters or path parts that no parameter's name has."""


class LayoutError(WeightFileError):
    """The tensors' places in the file overlap, leave a hole, or do not fit their shapes."""


class UnsupportedEncodingError(WeightFileError):
    """Bytes that mean no value of their type, or a type that is not read."""


class UnsafeFormatError(WeightFileError):
    """A format that can run code or hide data when it is opened."""


class UnsafePathError(WeightFileError):
    """An index names a shard that does not lie in its own folder."""


class ShardIndexError(WeightFileError):
    """The index and its shards do not fit: a shard is not there, or holds other tensors than the index says."""


class MissingKeysError(WeightFileError):
    """The file lacks tensors that the layer needs."""


class UnexpectedKeysError(WeightFileError):
    """The file holds tensors that the layer does not know."""


class ShapeMismatchError(WeightFileError):
    """A tensor has another shape than the layer's parameter."""


class DtypeMismatchError(WeightFileError):
    """A tensor has another dtype than the layer, or cannot be cast without losing what it holds."""


class NonFiniteWeightError(WeightFileError):
    """A weight is NaN or infinite."""


class DigestMismatchError(WeightFileError):
    """The bytes are not those that were written."""


class ConfigMismatchError(WeightFileError):
    """The file is for another variant, or for another config of it."""


class LayoutTagError(WeightFileError):
    """The file does not say which layout its tensors have, or names one that does not fit."""


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more."""
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(map(repr, names[:SHOWN])) or "none") + more


def compare_keys(file: str, needed: Sequence[str], found: Sequence[str]) -> None:
    """Refuse a file that lacks keys or holds unknown ones.

    Raises:
        MissingKeysError, UnexpectedKeysError: naming all of them, and the nearest that are there.
    """
    missing, unexpected = sorted(set(needed) - set(found)), sorted(set(found) - set(needed))
    if missing:
        rest = unexpected or sorted(found)
        hint = nearest(missing[0], rest[: SHOWN * 4]) if rest else "the file holds no tensor"
        todo = f"for {missing[0]!r} {hint}" if rest else hint
        raise MissingKeysError(file, missing[0], f"the keys {listed(missing)}", f"keys {listed(rest)}", todo)
    if unexpected:
        todo = f"check variant, config and layout; for {unexpected[0]!r} {nearest_of(unexpected, needed)}"
        raise UnexpectedKeysError(
            file, unexpected[0], f"{len(needed)} keys of the layer and no other", f"also {listed(unexpected)}", todo
        )


def nearest_of(names: Sequence[str], known: Sequence[str]) -> str:
    return nearest(names[0], list(known)[: SHOWN * 4]) if known else "there is no place, as the layer has none"


def compare_shape(file: str, key: str, expected: tuple[int, ...], found: tuple[int, ...], axes: str) -> None:
    """Refuse a tensor of another shape; say so where it is the transpose of the one expected.

    Raises:
        ShapeMismatchError: naming both shapes.
    """
    if found == expected:
        return
    turned = " (the transpose of expected)" if found == expected[::-1] else ""
    todo = "transpose it, or name the layout= it is in" if turned else "check the config that the layer was built with"
    raise ShapeMismatchError(file, key, f"shape {expected} with axes {axes!r}", f"{found}{turned}", todo)
