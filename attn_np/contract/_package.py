"""Names of the three packages, loaded on first use: importing one is fast and loads no other framework."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# The functions of every package, and the module that defines each.
FUNCTIONS = {
    "alibi_slopes": "positions.relative",
    "attend": "attention.functions",
    "attend_paged": "attention.paged",
    "entmax": "normalizers.simplex",
    "merge": "attention.functions",
    "recur": "recurrence.functions",
    "relative_buckets": "positions.relative",
    "rotary_angles": "positions.rotary_functions",
    "rotate": "positions.rotary_functions",
    "softmax": "normalizers.simplex",
    "write_pages": "attention.paged",
}

# Of a package's own functions, those that `frame/api.py` does not hold: what they need is loaded, and no more.
MAKERS = {"build": "frame.build", "value_and_vjp": "ops.vjp"}

# Names that people expect; what they stand for has another.
HINTS = {
    "SparsemaxAttention": "EntmaxAttention with alpha=2, or build('sparsemax', ...)",
    "entmax15": "call entmax(scores, mask, alpha=1.5), or build('entmax15')",
    "sparsemax": "call entmax(scores, mask, alpha=2), or build('sparsemax')",
}


def how_to_install(extra: str) -> str:
    """What to run for an extra of this project, which is installed from a clone: no package index has it."""
    return f"run pip install '.[{extra}]' in a clone of attn-parity"


def require_installed(package: str, *, modules: tuple[str, ...], extra: str) -> None:
    """Refuse to import a package whose framework is not installed, and say what to install.

    Raises:
        ModuleNotFoundError: naming the missing module and the command.
    """
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(
                f"{package}: expected the package {module}, got none; {how_to_install(extra)}", name=module
            )


def lazy_namespace(package: str, *, api: tuple[str, ...]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What becomes `__getattr__` and `__dir__` of a package: its functions, the class of every variant, `__all__`.

    The contracts of all variants are loaded for the name of a class or a list of names, not for a function's.
    """
    from attn_np.contract import did_you_mean, variant_by_class_name

    modules = {"drop_in": f"{package}.drop_in", "weights": "attn_np.weights", "patterns": "attn_np.contract._patterns"}
    modules |= {"terms": f"{package}.positions.terms", "parallel": f"{package}.parallel"}
    functions = dict.fromkeys(api, "frame.api") | {name: MAKERS[name] for name in api if name in MAKERS} | FUNCTIONS

    def getattr_(name: str) -> Any:
        if name in modules:
            return import_module(modules[name])
        file = functions.get(name)
        if file is None and name == "__all__":
            return dir_()
        if file is None and name.startswith("_"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        file = file or variant_by_class_name().get(name)
        if file is None:
            fix = HINTS.get(name) or did_you_mean(name, dir_())
            raise AttributeError(f"{package}: expected one of its names, got {name!r}; {fix}")
        return getattr(import_module(f"{package}.{file}"), name)

    def dir_() -> list[str]:
        return sorted([*functions, *variant_by_class_name(), "drop_in", "parallel", "patterns", "terms"])

    return getattr_, dir_
