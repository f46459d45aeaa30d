"""Why a weight file is refused: one exception class per reason, each naming what is wrong and what to do."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from os import PathLike, fspath

from attn_np import contract
from attn_np.contract import Config

__all__ = [
    "ConfigMismatchError", "DigestMismatchError", "DtypeMismatchError", "DuplicateKeyError", "FormatMismatchError",
    "HeaderLimitError", "HeaderSyntaxError", "KeyNameError", "MissingKeysError", "NoAttentionError",
    "NonFiniteWeightError", "OffsetError", "ShapeMismatchError", "ShardIndexError", "TrailingDataError",
    "TruncatedFileError", "UnexpectedKeysError", "UnsafeFormatError", "UnsafePathError", "UnsupportedEncodingError",
    "WeightFileError",
]  # fmt: skip

# How many names an error message lists.
LISTED_NAMES = 8
# What to check of a call where a file has other keys than it asks for: with our own names, and with foreign ones.
CHECK_OWN, CHECK_FOREIGN = "check variant= and the layer's config", "check layout=, prefix= and the layer's config"

# Parts of the names that peft gives to tensors: of its adapters, and of what they stand beside.
OF_ADAPTERS = re.compile(r"(^|\.)(base_layer|original_module|modules_to_save|(lora|vera|ia3|oft|hada|lokr)_\w+)(\.|$)")
MERGE_ADAPTERS = "merge the adapters into the model first, model.merge_and_unload() of peft, and save what that returns"


class WeightFileError(ValueError):
    """A weight file that is refused.

    Attributes:
        file: the file's path.
        key: the tensor or field it is about, or None.
        expected: the rule.
        got: the file's content instead.
        fix: what to do about it.
    """

    def __init__(self, file: str | PathLike[str], key: str | None, expected: str, got: str, fix: str) -> None:
        # All five are arguments of the exception, so that it survives pickling between processes.
        super().__init__(fspath(file), key, expected, got, fix)
        self.file, self.key, self.expected, self.got, self.fix = fspath(file), key, expected, got, fix

    def __str__(self) -> str:
        where = sanitized(self.file if self.key is None else f"{self.file}: {sanitized(repr(self.key))}", None)
        return f"{where}: expected {sanitized(self.expected)}, got {sanitized(self.got)}; {sanitized(self.fix)}"


def sanitized(text: str, limit: int | None = 800) -> str:
    """Text that neither steers the terminal nor fills it, whatever a file contains."""
    text = text if limit is None or len(text) <= limit else f"{text[:limit]} ..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class TruncatedFileError(WeightFileError):
    """The file ends before its header or its tensors do."""


class TrailingDataError(WeightFileError):
    """The file goes on after its last tensor."""


class HeaderLimitError(WeightFileError):
    """The header or the index of shards, or a list in one, is larger than weights need."""


class HeaderSyntaxError(WeightFileError):
    """The header is not the JSON that the format asks for."""


class DuplicateKeyError(WeightFileError):
    """The header has a name twice, so that readers would disagree on which counts."""


class KeyNameError(WeightFileError):
    """A tensor's name is empty, too long, or has characters or path parts that no parameter's name has."""


class OffsetError(WeightFileError):
    """The tensors' offsets overlap, leave a hole, or do not fit their shapes."""


class UnsupportedEncodingError(WeightFileError):
    """Bytes that mean no value of their type, or a type that is not read."""


class UnsafeFormatError(WeightFileError):
    """A format that can run code or hide data when it is opened."""


class UnsafePathError(WeightFileError):
    """An index names a shard outside its own folder."""


class ShardIndexError(WeightFileError):
    """A checkpoint's files do not fit: several without an index, a shard missing, or others than in the index."""


class MissingKeysError(WeightFileError):
    """The file lacks tensors that the layer needs."""


class UnexpectedKeysError(WeightFileError):
    """The file has tensors that the layer does not know."""


class ShapeMismatchError(WeightFileError):
    """A tensor has another shape than the layer's parameter."""


class DtypeMismatchError(WeightFileError):
    """A tensor has another dtype than the layer, or the cast to it would lose more than a rounding does."""


class NonFiniteWeightError(WeightFileError):
    """A weight is NaN or infinite."""


class DigestMismatchError(WeightFileError):
    """The bytes differ from those that were written."""


class ConfigMismatchError(WeightFileError):
    """The file is for another variant, or for another config of it."""


class NoAttentionError(ConfigMismatchError):
    """The layer that is asked for does not attend: in a hybrid it is a recurrence, a convolution or an MLP."""


class FormatMismatchError(WeightFileError):
    """The file does not say that its names are ours, is of a newer format, or has other axes than the variant."""


def first_names(names: Iterable[str]) -> str:
    """The first few names, and how many more."""
    names = list(names)
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return (", ".join(map(repr, names[:LISTED_NAMES])) or "none") + more


def require_same_keys(
    path: str, expected: Sequence[str], got: Sequence[str], config: Config | None = None, prefix: str = ""
) -> None:
    """Refuse a file that lacks keys or has unknown ones.

    Args:
        config: the layer's, if the keys are its parameters' names after `prefix`.

    Raises:
        MissingKeysError: naming the first few, and what else the file has.
        UnexpectedKeysError: naming the first few.
    """
    missing, unknown = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    check = CHECK_FOREIGN if config is None else CHECK_OWN
    if missing and has_adapters(got):
        raise MissingKeysError(path, missing[0], f"the {key_names(missing)}", "keys of adapters", MERGE_ADAPTERS)
    if missing:
        if unknown:
            present, fix = f"the unknown {key_names(unknown)}", rename_or_add(missing, unknown, check)
        elif len(got) > LISTED_NAMES:
            present, fix = f"only the {len(got)} others", add(missing, check)
        else:
            present, fix = f"only {first_names(sorted(got))}" if got else "no tensor", add(missing, check)
        if config is not None and set(got) == {prefix + name for name in names_without_bias(config)}:
            fix = f"set use_bias=False, or {fix}"
        raise MissingKeysError(path, missing[0], f"the {key_names(missing)}", present, fix)
    if unknown:
        layer = f"the layer's {len(expected)} key{'s' * (len(expected) > 1)} and no other"
        rule = layer if expected else "no key, as the layer has no parameters"
        them = "it" if len(unknown) == 1 else "them"
        fix = MERGE_ADAPTERS if has_adapters(unknown) else f"delete {them}, or {check}"
        raise UnexpectedKeysError(path, unknown[0], rule, f"also the {key_names(unknown)}", fix)


def has_adapters(keys: Iterable[str]) -> bool:
    """Whether some keys are of adapters that are not merged."""
    return any(OF_ADAPTERS.search(key) for key in keys)


def key_names(names: Sequence[str]) -> str:
    """The first few names after "key" or "keys"."""
    return f"key{'s' * (len(names) > 1)} {first_names(names)}"


def add(missing: Sequence[str], check: str) -> str:
    """The fix for keys that are missing where no unknown one could be theirs."""
    return f"add {'it' if len(missing) == 1 else 'them'}, or {check}"


def rename_or_add(missing: Sequence[str], unknown: Sequence[str], check: str) -> str:
    """The fix for keys that are missing beside unknown ones: to rename the one nearest to the first that is missing."""
    nearest = get_close_matches(missing[0], unknown[: LISTED_NAMES * 4], n=1, cutoff=0.5)
    if not nearest:
        return add(missing, check)
    others = ", and the others likewise" if min(len(missing), len(unknown)) > 1 else ""
    return f"rename {nearest[0]!r} to {missing[0]!r} if it is this tensor{others}, or {check}"


def names_without_bias(config: Config) -> tuple[str, ...]:
    """The names of the parameters that a layer would have with use_bias=False; none if its config does not allow it."""
    if getattr(config, "use_bias", False) is not True:
        return ()
    try:
        return tuple(contract.config(config.variant, **config.as_dict() | {"use_bias": False}).shapes())
    except ValueError:
        return ()


def require_shape(path: str, key: str, expected: tuple[int, ...], got: tuple[int, ...], axes: str) -> None:
    """Refuse a tensor of another shape; say so where it is the transpose of the expected one.

    Raises:
        ShapeMismatchError: naming both shapes.
    """
    if got == expected:
        return
    transposed = " (the transpose of expected)" if got == expected[::-1] else ""
    fix = "transpose it, or name its layout=" if transposed else "check the layer's config"
    raise ShapeMismatchError(path, key, f"shape {expected} with axes {axes!r}", f"{got}{transposed}", fix)
