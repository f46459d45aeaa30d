"""The Flax and PyTorch twins of NumPy's files: the same text without the backward pass, with another tree's names.

A twin is its NumPy file less the definitions whose names are `vjp` or end in `_vjp`, less the lines that end in a
comment `# only in NumPy: reason`, and less what only these use. PyTorch calls a layer's entry point `forward`.
"""

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from attn_np import contract

ROOT = Path(__file__).resolve().parents[2]
TREES = ("attn_jax", "attn_torch")
SHARED = (
    "attention/__init__", "attention/attend", "attention/chosen", "attention/decode", "attention/drop_in",
    "attention/far_keys", "attention/functions", "attention/masks", "attention/paged", "frame/__init__",
    "frame/api", "frame/call", "frame/memory", "kernels/__init__", "normalizers/__init__", "normalizers/norms",
    "normalizers/simplex", "normalizers/sparse", "positions/__init__", "positions/relative", "positions/rotary",
    "positions/rotary_functions", "positions/terms", "recurrence/__init__", "recurrence/convolution",
    "recurrence/functions", "recurrence/rules",
)  # fmt: skip
OWN_LINE = re.compile(r"#\s*only in NumPy: \S")
NUMPY_ONLY = ("dispatches_on_array_type",)  # decorators that no other dialect has


def modules() -> tuple[str, ...]:
    """The files that have twins: every variant, and what variants share."""
    return (*SHARED, *contract.variants())


def is_backward(name: str) -> bool:
    return name == "vjp" or name.endswith("_vjp")


def definitions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Functions, classes and methods, outermost first."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body)


def first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def names_in(node: ast.AST) -> set[str]:
    """The names that a statement uses, but for those of its decorators: a rule's names the function that it is for."""
    decorators = {n for d in getattr(node, "decorator_list", ()) for n in ast.walk(d)}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n not in decorators}


def dropped(tree: ast.Module) -> list[range]:
    """The lines of the backward pass, and of top-level helpers that nothing else uses."""
    gone = [node for node in definitions(tree.body) if is_backward(node.name)]
    functions, before = [node for node in tree.body if isinstance(node, ast.FunctionDef)], -1
    while len(gone) != before:  # a helper of such a helper goes with it
        before = len(gone)
        for node in functions:
            users = [other for other in tree.body if other is not node and node.name in names_in(other)]
            if node not in gone and users and all(other in gone for other in users):
                gone.append(node)
    decorators = [
        d for n in definitions(tree.body) for d in n.decorator_list if isinstance(d, ast.Name) and d.id in NUMPY_ONLY
    ]
    return [range(first_line(node), (node.end_lineno or 0) + 1) for node in gone] + [
        range(d.lineno, d.lineno + 1) for d in decorators
    ]


def twin(source: str, package: str) -> str:
    """A NumPy file as the other tree has it, its imports and layout still to be put in order."""
    lines = source.splitlines()
    gone = {i for lines_of in dropped(ast.parse(source)) for i in lines_of}
    gone |= {i for i, line in enumerate(lines, 1) if OWN_LINE.search(line)}
    text = "\n".join(line for i, line in enumerate(lines, 1) if i not in gone) + "\n"
    text = re.sub(r"\battn_np\.(?!contract\b|weights\b)", f"{package}.", text)
    text = re.sub(rf"^from {package}\.ops\.vjp import (\([^)]*\)|.*)\n", "", text, flags=re.MULTILINE)
    return text.replace("    def __call__(", "    def forward(") if package == "attn_torch" else text


def tidied(texts: dict[str, str]) -> dict[str, str]:
    """Files by name, with their unused imports taken out, the others sorted, and laid out, all by ruff."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        ruff, config = [sys.executable, "-m", "ruff"], ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
        for command in (["check", "--quiet", "--fix", "--select", "F401,I"], ["format", "--quiet"]):
            done = subprocess.run([*ruff, *command, *config, folder], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"sync: expected twins that ruff can read, got\n{done.stdout}{done.stderr}")
        return {name: Path(folder, name).read_text(encoding="utf-8") for name in texts}


def twins() -> dict[Path, str]:
    """The text of every twin by its path."""
    sources = {name: (ROOT / "attn_np" / f"{name}.py").read_text(encoding="utf-8") for name in modules()}
    texts = {f"{tree}/{name}.py": twin(source, tree) for tree in TREES for name, source in sources.items()}
    return {ROOT / name: text for name, text in tidied(texts).items()}
