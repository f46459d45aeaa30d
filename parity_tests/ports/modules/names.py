"""Names of one side in those of the other: patterns, and the axes of weights that the frameworks store differently."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.weights.layouts._rearrange import parse, rearrange, solve
from parity_tests.ports.modules.recordings import Arrays, Recording

Names = Mapping[str, str | tuple[str, str]] | None
# What the frameworks call one and the same weight.
LEAVES = (
    ("weight", "kernel", "scale", "embedding"),
    ("running_mean", "mean"),
    ("running_var", "var"),
)


def rule(pattern: str) -> re.Pattern[str]:
    """A pattern such as "layers.{i}.mlp" as a regular expression: each part in braces is one word."""
    words = re.split(r"(\{\w+\})", pattern)
    found: set[str] = set()
    text = ""
    for word in words:
        if word.startswith("{"):
            name = word[1:-1]
            text += f"(?P={name})" if name in found else rf"(?P<{name}>[^.]+?)"
            found.add(name)
        else:
            text += re.escape(word)
    return re.compile(text + r"(?P<rest_>\..*)?")


def translated(name: str, names: Names) -> tuple[str, str | None]:
    """A name of a in b, with the pattern for its axes; the same name where no pattern fits.

    Of several patterns the longest decides. A pattern that fits the first part of a name leaves the rest as it is.

    Raises:
        ValueError: a word in braces that stands in the name of b alone.
    """
    for pattern in sorted(names or {}, key=len, reverse=True):
        match = rule(pattern).fullmatch(name)
        if match:
            theirs = (names or {})[pattern]
            theirs, axes = (theirs, None) if isinstance(theirs, str) else theirs
            words = match.groupdict()
            rest = words.pop("rest_") or ""
            unknown = [word for word in re.findall(r"\{(\w*)\}", theirs) if word not in words]
            if unknown:
                raise ValueError(
                    f"compare_modules: expected words of {pattern!r} in names=, got {{{unknown[0]}}} in {theirs!r}; "
                    f"put it in braces on both sides"
                )
            return (theirs.format(**words) + rest).strip("."), axes
    return name, None


@dataclass(frozen=True)
class Pair:
    """A weight of a, the weight of b that is the same, and how its axes move."""

    a: str
    b: str
    shape: tuple[int, ...]
    axes: str | None
    turned: bool

    def move(self, x: np.ndarray) -> np.ndarray:
        """An array in the axes of a, such as a weight or its gradient, in those of b."""
        if self.axes is not None:
            left, right = parse(self.axes)
            sizes = solve(right, self.shape, {})
            return rearrange(x, self.axes, sizes | solve(left, x.shape, sizes))
        if self.turned and x.ndim > 2:  # convolutions: [out, in, ...] and [..., in, out]
            kernel_last = len(self.shape) == x.ndim and self.shape == (*x.shape[2:], x.shape[1], x.shape[0])
            x = x.transpose(*range(2, x.ndim), 1, 0) if kernel_last else x.reshape(self.shape[::-1]).T
        elif self.turned and len(self.shape) == 2:
            x = x.reshape(self.shape[::-1]).T
        elif self.turned:
            x = x.T
        return np.ascontiguousarray(x).reshape(self.shape)


def pairs(a: Any, b: Any, names: Names, need_all: bool) -> list[Pair]:
    """The weights of two sides that are the same: by the map of names, and the words that frameworks use.

    Args:
        a, b: two of `Side` or `Recording`.
        names: names in a to names in b.
        need_all: every weight of b needs one.

    Raises:
        ValueError: a weight without a partner, or one of another size.
    """
    found = []
    for name, x in a.weights.items():
        target, axes = translated(name, names)
        partner = next((word for word in spellings(target) if word in b.weights), None)
        if partner is None:
            continue
        shape = b.weights[partner].shape
        turned = (name in a.in_first) != (partner in b.in_first) and matrix_like(name, partner, x, shape)
        if axes is None and x.size != b.weights[partner].size:
            raise ValueError(
                f"compare_modules: expected {partner!r} of the size of {name!r}, {x.shape}, got {shape}; "
                f"map another name with names=, or say how the axes move: (name, 'a b -> b a')"
            )
        found.append(Pair(name, partner, shape, axes, turned))
    absent = [name for name in b.weights if name not in {pair.b for pair in found}]
    if absent and need_all:
        left = [name for name in a.weights if name not in {pair.a for pair in found}]
        known = f"a still has {', '.join(left[:6])}" if left else "a has no weight left"
        astray = [f"{name!r} to {got!r}" for name in left if (got := translated(name, names)[0]) != name]
        known += f", and names= leads {', '.join(astray[:3])}, which b has not" if astray else ""
        raise ValueError(
            f"compare_modules: expected a weight of a for every weight of b, got none for "
            f"{', '.join(absent[:6])}; {known}; map its name with names="
        )
    return found


def same_weights(a: Recording, b: Recording, names: Names) -> dict[str, str]:
    """The weights of a to those of b: by name, and of the others those that alone hold the same numbers."""
    known = {pair.a: pair.b for pair in pairs(a, b, names, need_all=False)}
    held = []
    for side, taken in ((a, set(known)), (b, set(known.values()))):
        by_numbers: dict[bytes, list[str]] = {}
        for name, x in side.weights.items():
            if name not in taken and x.size > 1:
                turned = x.T if name in side.in_first else x
                key = hashlib.sha256(np.ascontiguousarray(turned).tobytes()).digest()
                by_numbers.setdefault(key, []).append(name)
        held.append({key: found[0] for key, found in by_numbers.items() if len(found) == 1})
    return known | {name: held[1][key] for key, name in held[0].items() if key in held[1]}


def matrix_like(a: str, b: str, x: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether a stored as [in, out] meets a stored as [out, in], and not a raw array of the same shape."""
    plain = {name.rpartition(".")[2] for name in (a, b)} <= {"weight", "kernel"}
    return (plain or x.shape != shape) and max(x.ndim, len(shape)) > 1


def spellings(name: str) -> list[str]:
    """A name as other frameworks have it: the same, or with another last word."""
    head, dot, leaf = name.rpartition(".")
    words = next((words for words in LEAVES if leaf in words), ())
    return [name, *(f"{head}{dot}{word}" for word in words if word != leaf)]


def common(names: list[str]) -> str:
    """The innermost module that holds all of some modules."""
    words = [name.split(".") if name else [] for name in names]
    same: list[str] = []
    for parts in zip(*words, strict=False):
        if len(set(parts)) > 1:
            break
        same.append(parts[0])
    return ".".join(same)


def copied(a: Any, found: list[Pair]) -> Arrays:
    """The weights of a under the names and in the axes of b."""
    return {pair.b: pair.move(a.weights[pair.a]) for pair in found}


def refuse_unused(a: Recording, b: Recording, names: Names) -> None:
    """Every name that the map finds in a must have one in b: a slip would be taken for a missing partner.

    Raises:
        ValueError: a pattern that fits nothing, or a name of b that it has not.
    """
    ours, theirs = ({*x.weights, *(call.name for call in x.exact.calls)} for x in (a, b))
    known = {word for name in theirs for word in prefixes(name)}
    for pattern in names or {}:
        hits = [match for match in map(rule(pattern).fullmatch, sorted(ours)) if match]
        if not hits:
            raise ValueError(
                f"compare_modules: expected names of a in names=, got {pattern!r}; "
                f"{contract.did_you_mean(pattern, tuple(sorted(ours)))}"
            )
        for head in dict.fromkeys(match[0].removesuffix(match["rest_"] or "") for match in hits):
            got = translated(head, names)[0]
            if got and not set(spellings(got)) & known:
                raise ValueError(
                    f"compare_modules: expected names of b in names=, got {got!r} for {head!r}; "
                    f"{contract.did_you_mean(got, tuple(sorted(known)))}"
                )


def prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
