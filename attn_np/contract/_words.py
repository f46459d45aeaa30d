"""The words of contracts: of an error, with what a number or an array is, and of fields, each where it is declared."""

from inspect import cleandoc, get_annotations
from typing import Any, TypeGuard

# An array as the contract sees it: its shape and the name of its dtype.
Spec = tuple[tuple[int, ...], str]


def is_integer(x: object) -> TypeGuard[int]:
    """Whether it is an integer, bools excluded."""
    return isinstance(x, int) and not isinstance(x, bool)


def is_number(x: object) -> TypeGuard[float]:
    """Whether it is an integer or a float."""
    return isinstance(x, float) or is_integer(x)


def rounded(x: float) -> float:
    """A number without its last digits, in which two ways of computing the same one may differ."""
    return float(f"{x:.14g}")


def require(condition: bool, who: str, expected: str, got: object, fix: str) -> None:
    """Raise `field_error(who, expected, got, fix)` unless `condition` holds."""
    if not condition:
        raise field_error(who, expected, got, fix)


def field_error(who: str, expected: str, got: object, fix: str) -> ValueError:
    """The error of a field or an argument of `who`, a variant or a function. `require` raises it; where building its
    message would fail for a valid value, or cost time, the call site tests the condition and raises it itself.
    """
    return ValueError(f"{who}: expected {expected}, got {got}; {fix}")


def check_present(who: str, name: str, spec: Spec | None, fix: str = "") -> Spec:
    """The spec of an array that a call needs; `fix` says how to give it, by default as the argument `name`.

    Raises:
        TypeError: None in its place.
    """
    if spec is None:
        raise TypeError(f"{who}: expected an array for {name}, got None; {fix or f'pass {name}='}")
    return spec


def field_texts(doc: str) -> dict[str, str]:
    """What a docstring says of each field in its section `Attributes:`, as lines of that section."""
    section, texts, name = doc.partition("Attributes:\n")[2], {}, ""
    for line in section.splitlines():
        name = line[4:].partition(":")[0] if line[4:5].strip() else name
        texts[name] = f"{texts[name]}\n{line}" if name in texts else line
    return texts


def compose_doc(cls: type) -> None:
    """Complete a config's docstring: a field that it does not describe has the text of the base that declares it."""
    if cls.__doc__ is None:  # as under python -OO
        return
    texts: dict[str, str] = {}
    names: dict[str, Any] = {}
    own: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        own = field_texts(cleandoc(base.__doc__ or ""))
        texts |= own
        names |= base.__dict__.get("__dataclass_fields__", {})
    names |= get_annotations(cls) | own
    described = [texts[name] for name in names if name in texts]
    head = cleandoc(cls.__doc__).partition("Attributes:\n")[0].rstrip()
    cls.__doc__ = "\n".join((head, "", "Attributes:", *described)) if described else head
