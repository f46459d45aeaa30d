"""Generate what is committed and follows from other files: the twins of NumPy's files, the packages' `__init__.pyi`,
the tables of README and docs, the passages of files in the lessons, the code of the Chinese pages.

    python -m parity_tests.sync            write them
    python -m parity_tests.sync --check    write nothing; say which are stale

The packages load their names on first use, which hides them from type checkers and editors. The stubs name
them all, and give `build` and the layers' constructors a signature per variant, from the fields of its Config; these
stand once, as classes of `attn_np/contract/_fields.pyi`.
"""

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from attn_np import contract
from attn_np.contract._package import FUNCTIONS
from parity_tests.ports.alternatives import words
from parity_tests.sync.passages import with_passages, with_shared_code
from parity_tests.sync.tables import COMMAND, with_tables
from parity_tests.sync.twins import twins

PACKAGES = ("attn_np", "attn_jax", "attn_torch")
ROOT = Path(__file__).resolve().parents[2]
MODULES = {"patterns": "_patterns"}  # offered by another name than that of its file

# (module, name in it or None for the module itself): what a stub has to import.
Import = tuple[str, str | None]


@cache
def parse(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def function(tree: ast.Module, name: str) -> ast.FunctionDef:
    """The definition of a module-level function.

    Raises:
        LookupError: the module does not define it.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise LookupError(f"no function {name}")


def imported(tree: ast.Module) -> dict[str, Import]:
    """What a module's imports bind: name to (module, name in it), None for a module itself."""
    found: dict[str, Import] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                a.asname or a.name.partition(".")[0]: (f"{a.name} as {a.asname}" if a.asname else a.name, None)
                for a in node.names
            }
    return found


def annotation(node: ast.expr | None, known: dict[str, Import], imports: set[Import]) -> str:
    """An annotation as text; what its names need is added to the imports."""
    if node is None:
        return "Any"
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not hasattr(builtins, inner.id):
            imports.add(known[inner.id])
    return text(node)


def text(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", '"')


def fields(variant: str, imports: set[Import]) -> dict[str, tuple[str, str | None]]:
    """The fields of a variant's Config: annotation and default as text, None for no default.

    A field that takes words is annotated with these.
    """
    cls, known = contract.get(variant).Config, dict[str, Import]()
    found: dict[str, ast.AnnAssign] = {}
    for base in reversed(cls.__mro__):  # a contract may take over the fields of another
        if base.__module__.startswith(f"{contract.__name__}."):
            tree = parse(import_module(base.__module__))
            known |= imported(tree)
            body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == base.__name__).body
            found |= {n.target.id: n for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    choices = words(next(iter(contract.examples(variant).values())))
    out: dict[str, tuple[str, str | None]] = {}
    for name in cls.fields():
        node = found[name]
        annotated = annotation(node.annotation, known, imports)
        if spelled := [f'"{word}"' for word in choices.get(name, ()) if word is not None]:
            imports.add(("typing", "Literal"))
            annotated = re.sub(r"\bstr\b", f"Literal[{', '.join(spelled)}]", annotated)
        out[name] = annotated, None if node.value is None else text(node.value)
    return out


def preset_fields() -> dict[str, str]:
    """By the name of a preset, the class of its fields where it sets what its variant requires."""
    return {
        name: f"{name.capitalize()}Fields"
        for name, (variant, preset) in contract.presets().items()
        if set(contract.get(variant).Config.required()) & preset.fields.keys()
    }


def fields_class(name: str) -> str:
    """The name of the class of a variant's fields, or a preset's."""
    return preset_fields().get(name, f"{contract.get(name).Config.class_name}Fields")


def fields_stub() -> str:
    """The text of `attn_np/contract/_fields.pyi`."""
    imports: set[Import] = {("typing", "Required"), ("typing", "TypedDict")}
    lines: list[str] = []
    for name in (*contract.variants(), *preset_fields()):
        set_here = contract.presets()[name][1].fields if name in contract.presets() else {}
        lines.append(f"class {fields_class(name)}(TypedDict, total=False):")
        for field, (annotated, default) in fields(
            contract.presets()[name][0] if name in contract.presets() else name, imports
        ).items():
            default = repr(set_here[field]) if field in set_here else default
            lines.append(
                f"    {field}: " + (f"Required[{annotated}]" if default is None else f"{annotated}  # {default}")
            )
        lines.append("")
    head = f"# Generated by `{COMMAND}`: the fields of every Config as keywords, each with its default behind it."
    return "\n".join([head, "", *import_lines(imports, set()), *lines[:-1]]) + "\n"


def common(package: str, arguments: ast.arguments, known: dict[str, Import], imports: set[Import]) -> list[str]:
    """The package's own keyword arguments of `build` or a constructor: `dtype: DType = "float32"`."""
    found = []
    for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if not arg.arg.startswith("_"):
            value = "" if default is None else f" = {text(default)}"
            found.append(f"{arg.arg}: {annotation(arg.annotation, known, imports)}{value}")
    return found


def signature(head: str, arguments: list[str], returns: str) -> list[str]:
    """A definition, in one line where it fits, else with its arguments in a line of their own."""
    line = f"{head}({', '.join(arguments)}) -> {returns}: ..."
    indent = " " * (len(head) - len(head.lstrip()))
    return (
        [line]
        if len(line) <= 120
        else [f"{head}(", f"{indent}    {', '.join(arguments)}", f"{indent}) -> {returns}: ..."]
    )


def overloads(package: str, imports: set[Import]) -> list[str]:
    """`build` once per variant: the package's own arguments, then the fields; returns the variant's class."""
    tree = parse(import_module(f"{package}.frame.build"))
    own = common(package, function(tree, "build").args, imported(tree), imports)
    lines: list[str] = []
    for variant in (*contract.variants(), *contract.presets()):
        given = [f'variant: Literal["{variant}"]', "/", "*", *own, f"**fields: Unpack[_fields.{fields_class(variant)}]"]
        lines += ["@overload", *signature("def build", given, contract.get(variant).Config.class_name)]
    return lines


def constructor(package: str, variant: str, imports: set[Import]) -> list[str]:
    """The class of a variant with the two ways to make one: from a Config, and from its fields by name."""
    tree, cls = parse(import_module(f"{package}.frame.layer")), contract.get(variant).Config
    base = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Layer")
    arguments = next(n for n in base.body if isinstance(n, ast.FunctionDef) and n.name == "__init__").args
    name, own = cls.class_name, common(package, arguments, imported(tree), imports)
    # None stands there only to be refused in our own words.
    own = ["rngs: nnx.Rngs" if arg.startswith("rngs:") else arg for arg in own]
    imports |= {(f"{package}.{variant}", f"{name} as _{name}"), (cls.__module__, f"Config as _{name}Config")}
    lines = [f"class {name}(_{name}):"]
    by_name = f"**fields: Unpack[_fields.{fields_class(variant)}]"
    for given in ((f"config: _{name}Config", "*", *own), ("*", *own, by_name)):
        lines += ["    @overload", *signature("    def __init__", ["self", *given], "None")]
    return [*lines, ""]


def order(name: str | None) -> tuple[int, str]:
    """isort's order of names: constants, classes, the rest."""
    name = name or ""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name.lower())


def import_lines(imports: set[Import], offered: set[Import]) -> list[str]:
    """Import statements in isort's order; the names that a stub offers are imported `as` themselves."""
    groups: list[list[str]] = [[], [], []]
    for module, name in sorted(
        imports | offered, key=lambda x: (x[1] is not None, x[0], order(MODULES.get(x[1] or "", x[1])))
    ):
        root = module.partition(".")[0]
        group = groups[2 if root in PACKAGES else 0 if root in sys.stdlib_module_names else 1]
        if name is None:
            group.append(f"import {module}")
        elif (module, name) in offered:
            group.append(f"from {module} import {MODULES.get(name, name)} as {name}")
        elif group and group[-1].startswith(f"from {module} import "):
            group[-1] += f", {name}"
        else:
            group.append(f"from {module} import {name}")
    return [line for group in groups if group for line in (*group, "")]


def stub(package: str) -> str:
    """The text of a package's `__init__.pyi`."""
    names: list[str] = import_module(package).__all__
    homes = {name: f"{package}.{module}" for name, module in FUNCTIONS.items()}
    homes |= {"patterns": "attn_np.contract", "drop_in": package, "parallel": package}
    homes["terms"] = f"{package}.positions"
    classes = contract.variant_by_class_name()
    offered: set[Import] = {
        (homes.get(name, f"{package}.frame.api"), name) for name in names if name != "build" and name not in classes
    }
    imports: set[Import] = {(contract.__name__, "_fields"), *(("typing", n) for n in ("Literal", "Unpack", "overload"))}
    build = overloads(package, imports)
    constructors = [line for variant in contract.variants() for line in constructor(package, variant, imports)]
    listed = [f'    "{name}",' for name in sorted(names, key=order)]
    lines = [
        f"# Generated by `{COMMAND}`: the names that the package loads on first use.",
        "",
        *import_lines(imports, offered),
        "__all__ = [",
        *listed,
        "]",
        "",
        *constructors,
        *build,
    ]
    return "\n".join(lines) + "\n"


def stubs_and_tables() -> dict[Path, str]:
    """What is made by importing the packages: their twins must stand before."""
    stubs = {ROOT / package / "__init__.pyi": stub(package) for package in PACKAGES}
    pages = with_tables(ROOT)
    pages |= with_passages(ROOT, pages)
    return (
        stubs | {ROOT / "attn_np" / "contract" / "_fields.pyi": fields_stub()} | pages | with_shared_code(ROOT, pages)
    )


def stale(texts: dict[Path, str]) -> dict[Path, str]:
    """The generated files that are not on disk as they should be."""
    return {path: text for path, text in texts.items() if not path.exists() or path.read_text() != text}


def main(argv: list[str]) -> int:
    if argv not in ([], ["--check"]):
        print(__doc__)
        return 2
    return update((twins, stubs_and_tables), check=bool(argv))


def update(makes: tuple[Callable[[], dict[Path, str]], ...], check: bool = False) -> int:
    """Write what is stale of that which each in turn makes, or with `check` say so; the exit status."""
    count = 0
    for make in makes:
        for path, text in stale(make()).items():
            count += 1
            print(f"stale: {path.relative_to(ROOT)}; run `{COMMAND}`" if check else f"wrote {path.relative_to(ROOT)}")
            if not check:
                path.write_text(text)
    if not count:
        print("Generated files are up to date.")
    return 1 if check and count else 0
