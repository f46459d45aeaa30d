"""The reference of every public function and class, from signatures and docstrings; the variants' layers have pages."""

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import attn_jax
import attn_np
import attn_torch
import parity_tests
from attn_np import patterns, terms
from attn_np.contract import variant_by_class_name
from attn_np.contract._package import FUNCTIONS
from attn_np.frame.layer import Layer

SECTION = re.compile(r"^(Args|Raises|Attributes|Returns):$")
ENTRY = re.compile(r"^    (\S[^:]*): (.*)$")
# What a user calls of a layer, besides the layer itself and `vjp`.
METHODS = ("params", "set_params", "train", "eval", "init_cache", "step")


def signature(function: Callable[..., Any], name: str) -> str:
    """The call as it is written, with defaults and without annotations."""
    if is_dataclass(function):
        arguments = [f.name + default(f) for f in fields(function) if f.init]
        written = f"{name}({', '.join(arguments)})"
    else:
        found = inspect.signature(function)
        plain = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
        written = f"{name}{found.replace(parameters=plain, return_annotation=found.empty)}"
    return textwrap.fill(written, 96, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def default(field: Any) -> str:
    if field.default is not MISSING:
        return f"={field.default!r}"
    return "" if field.default_factory is MISSING else "=..."


def described(text: str) -> list[str]:
    """A docstring as Markdown: sections as lists, code that is indented as a block."""
    out: list[str] = []
    for line in text.splitlines():
        section, entry = SECTION.match(line), ENTRY.match(line)
        if section:
            out += [f"*{section[1]}*", ""]
        elif entry:
            names = ", ".join(f"`{name.strip()}`" for name in entry[1].split(","))
            out.append(f"- {names}: {entry[2]}")
        else:
            out.append(line.strip() and ("  " + line.strip() if line.startswith("  ") else line))
    return out


def entry(documented: Any, name: str) -> list[str]:
    """A name with its call and what its docstring says."""
    out = [f"### `{name}`", ""]
    if not (inspect.isclass(documented) and issubclass(documented, Exception)):
        out += ["```", signature(documented, name), "```", ""]
    return [*out, *described(inspect.getdoc(documented) or ""), ""]


def sections() -> dict[str, tuple[str, list[tuple[str, Any]]]]:
    """Every section of the reference: its title, what holds for all of it, and its names with what they name.

    Each public name of the packages is in one of them, but for the layers, whose pages are those of the variants.
    """
    elsewhere = {"drop_in", "parallel", "patterns", "terms", *FUNCTIONS, *variant_by_class_name()}
    api = [name for name in attn_np.__all__ if name not in elsewhere]
    classes = [name for name, x in vars(patterns).items() if inspect.isclass(x) and issubclass(x, patterns.Pattern)]
    trees = {"attn_np": attn_np.drop_in, "attn_jax": attn_jax.drop_in, "attn_torch": attn_torch.drop_in}
    stand_ins = {
        name: (package if trees[package] is not attn_np.drop_in else "attn", getattr(module, name))
        for package, module in reversed(trees.items())
        for name in module.__all__
    }
    return {
        "Make, save, look inside": (
            "The same names in `attn_np`, `attn_jax` and `attn_torch`. `value_and_vjp` is NumPy's alone.",
            [(name, getattr(attn_np, name)) for name in sorted(api)],
        ),
        "Of every layer": (
            "In NumPy. In Flax a layer is an `nnx.Module` and in PyTorch an `nn.Module`, which have their own ways to "
            "parameters; `init_cache` and `step` are in all three. The call of a layer and its fields are on its "
            "[page](variants/index.md).",
            [(f"layer.{name}", getattr(Layer, name)) for name in METHODS],
        ),
        "Functions": (
            "The same in the three packages.",
            [(name, getattr(attn_np, name)) for name in sorted(FUNCTIONS)],
        ),
        "Patterns": (
            "Who may attend to whom, in `attn_np.patterns` and likewise in the others: see [Patterns](patterns.md).",
            [(f"patterns.{name}", getattr(patterns, name)) for name in sorted(classes)],
        ),
        "Terms": (
            "What is added to the scores by distance, in `attn_np.terms` and likewise in the others: see "
            "[Terms](terms.md).",
            [(f"terms.{name}", getattr(terms, name)) for name in ("Slopes", "Table", "Term")],
        ),
        "On many devices": (
            "In `attn_np.parallel` the first axis of every array is the devices, `n`. In the others each device "
            "has its own arrays, JAX takes `axis_name=` and PyTorch `group=`: see [On many devices](parallel.md).",
            [(f"parallel.{name}", getattr(attn_np.parallel, name)) for name in attn_np.parallel.__all__],
        ),
        "Stand-ins": (
            "For the functions of the frameworks: see [Coming from ...](coming_from.md). Those of `attn` are in all "
            "three packages.",
            [(f"{package}.drop_in.{name}", x) for name, (package, x) in sorted(stand_ins.items())],
        ),
        "Parity": (
            "In `parity_tests`: see [Three stories](stories.md) and [Any two modules](compare_modules.md).",
            [(f"parity_tests.{name}", getattr(parity_tests, name)) for name in parity_tests.__all__],
        ),
    }


def reference() -> str:
    """Every public name, by section, in alphabetical order."""
    out: list[str] = []
    for title, (about, names) in sections().items():
        out += [f"## {title}", "", about, ""]
        for name, documented in names:
            out += entry(documented, name)
    return "\n".join(out)


if __name__ == "__main__":
    print(reference())
