"""The reference of the functions below the layers, from their signatures and docstrings."""

import inspect
import re

import attn_np
from attn_np.contract._package import FUNCTIONS

SECTION = re.compile(r"^(Args|Raises|Attributes):$")
ENTRY = re.compile(r"^    (\S[^:]*): (.*)$")


def signature(name: str) -> str:
    """The call as it is written, with defaults and without annotations."""
    found = inspect.signature(getattr(attn_np, name))
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return f"{name}{found.replace(parameters=plain, return_annotation=found.empty)}"


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


def reference() -> str:
    """A section for each function, in alphabetical order."""
    out: list[str] = []
    for name in sorted(FUNCTIONS):
        out += [f"## `{name}`", "", "```", signature(name), "```", ""]
        out += [*described(inspect.getdoc(getattr(attn_np, name)) or ""), ""]
    return "\n".join(out)


if __name__ == "__main__":
    print(reference())
