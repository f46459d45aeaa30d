"""Mutants of attn_np as edits of its syntax trees, and a copy of the package in memory that one of them lives in."""

import ast
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from attn_np import contract
from parity_tests.mistakes.plant import ROOMS
from parity_tests.tests.mutation.operators import replacements

ALIAS = "attn_np_copy_of_trees"
# Beside the shared files a run examines these; the mistakes that are planted in the others are their own.
VARIANTS = (
    "additive", "alibi", "delta", "dot_product", "entmax_attention", "fused_qkv", "gru", "luong", "mha", "rotary",
    "self_attention", "seq2seq",
)  # fmt: skip
Lines = frozenset[tuple[str, int]]


def shared() -> tuple[str, ...]:
    """The arithmetic that variants share and the package's functions."""
    rooms = ((root() / room).glob("*.py") for room in (*ROOMS, "kernels"))
    every = sorted(path.relative_to(root()).as_posix() for room in rooms for path in room)
    others = (file for file in every if not file.endswith("/__init__.py"))
    return ("ops/__init__.py", *others)  # the dialect first: public functions have some of its names


def plain() -> tuple[str, ...]:
    """The shared files without the kernels, whose many lines are for speed."""
    return tuple(file for file in shared() if not file.startswith("kernels/") or file == "kernels/weigh.py")


def files() -> tuple[str, ...]:
    """What a run examines that names no files."""
    return (*plain(), *(f"{variant}.py" for variant in VARIANTS))


def every() -> tuple[str, ...]:
    """What may be named: the shared files and every variant that there is."""
    return (*shared(), *(f"{variant}.py" for variant in contract.variants()))


def module_of(file: str) -> str:
    """The name of a file's module in the package: `ops.vjp` of `ops/vjp.py`."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def needed(names: Iterable[str]) -> tuple[str, ...]:
    """The variants whose checks see mutants of these files: the file's own, and for those of every run all of a run."""
    found = tuple(name.removesuffix(".py") for name in names)
    others = tuple(name for name in found if f"{name}.py" not in (*shared(), *files()))
    return others if len(others) == len(found) else (*VARIANTS, *others)


def root() -> Path:
    spec = find_spec("attn_np")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("mutants: expected the package attn_np, got none; install it")
    return Path(spec.submodule_search_locations[0])


# Syntax trees ---------------------------------------------------------------------------------------------------------


class _Bare(ast.NodeTransformer):
    """Takes annotations away: they carry no behaviour, and evaluating them would be half of an import's time.

    Those of `**options` stay: a call's signature is made of them.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg):
            if arg is not None:
                arg.annotation = None
        self.generic_visit(node)
        node.body = [self.plain(x) if isinstance(x, ast.AnnAssign) else x for x in node.body]
        return node

    def plain(self, node: ast.AnnAssign) -> ast.stmt:
        new = ast.Assign([node.target], node.value) if node.value is not None else ast.Pass()
        return ast.copy_location(new, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.copy_location(ast.Constant(None), node.annotation)
        return node


@cache
def syntax(file: str) -> ast.Module:
    """The tree of a file of the copy, bare. Shared: whoever edits it puts it back."""
    source = (root() / file).read_text(encoding="utf-8")
    # The copy takes its own files, but the contract and the weights are shared, as they are in a real tree.
    source = re.sub(r"\battn_np\.(?!contract|weights)", f"{ALIAS}.", source)
    return _Bare().visit(ast.parse(source))


@cache
def whole(file: str) -> CodeType:
    return compile(syntax(file), filename(file), "exec")


def filename(file: str) -> str:
    return f"<copy of attn_np>/{file}"


# The copy -------------------------------------------------------------------------------------------------------------


class _Copy(MetaPathFinder, Loader):
    """Finds and runs the modules of the copy, some of its files from other code."""

    def __init__(self, edited: dict[str, CodeType]) -> None:
        self.edited, self.root = edited, root()

    def file(self, name: str) -> str:
        place = "/".join(name.split(".")[1:])
        return f"{place}.py" if (self.root / f"{place}.py").is_file() else f"{place}/__init__.py".lstrip("/")

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.split(".")[0] != ALIAS or not (self.root / self.file(fullname)).is_file():
            return None
        return spec_from_loader(fullname, self, is_package=self.file(fullname).endswith("__init__.py"))

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        file = self.file(module.__name__)
        exec(self.edited.get(file) or whole(file), module.__dict__)


@contextmanager
def copied(edited: dict[str, CodeType] | None = None) -> Iterator[str]:
    """A copy of attn_np, importable under the name this gives; `edited` holds code for files that differ."""
    finder = _Copy(edited or {})
    sys.meta_path.insert(0, finder)
    try:
        yield ALIAS
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n == ALIAS or n.startswith(f"{ALIAS}.")]:
            del sys.modules[name]


RAN: set[tuple[str, int]] = set()  # what ran of a copy that is made of `marked` code


@cache
def marked(file: str) -> CodeType:
    """The file's code, with a note in RAN before every statement of a function."""
    tree = deepcopy(syntax(file))

    def note(statement: ast.stmt) -> ast.stmt:
        where = ast.Tuple([ast.Constant(file), ast.Constant(statement.lineno)], ast.Load())
        made = ast.Expr(ast.Call(ast.Name("_note", ast.Load()), [where], []))
        return ast.fix_missing_locations(ast.copy_location(made, statement))

    def mark(node: ast.AST, inside: bool) -> None:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):  # a conditional expression has a body too, which is none
                for statement in block:
                    mark(statement, inside or isinstance(statement, ast.FunctionDef))
                if inside:
                    setattr(node, name, [x for statement in block for x in (note(statement), statement)])

    mark(tree, False)
    start = ast.parse(f"from {__name__} import RAN as _ran; _note = _ran.add").body
    tree.body[:0] = start
    return compile(tree, filename(file), "exec")


# Mutants --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """Names a mutant: file, function, text before and after."""

    file: str
    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}, {self.function}: {self.before}  ->  {self.after}"


@dataclass(frozen=True, eq=False)
class Mutant:
    """One edit of one syntax tree.

    Attributes:
        key: its name.
        operator: in words.
        lines: one of these runs in every check that can tell it from the original; None where any check may.
        parent, field, index: the place in the tree; index None where the field holds one node.
        new: what stands there.
    """

    key: Key
    operator: str
    line: int
    lines: range | None
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST

    def code(self) -> CodeType:
        """The file's code with this edit."""
        with edited(self.parent, self.field, self.index, self.new), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an index that can't be one: running it shows
            return compile(syntax(self.key.file), filename(self.key.file), "exec")

    def touched(self, lines: Lines) -> bool:
        return self.lines is None or any((self.key.file, n) in lines for n in self.lines)


@contextmanager
def edited(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> Iterator[None]:
    holder = getattr(parent, field)
    old = holder if index is None else holder[index]

    def put(node: Any) -> None:
        if index is None:
            setattr(parent, field, node)
        else:
            holder[index] = node

    put(new)
    try:
        yield
    finally:
        put(old)


@dataclass(frozen=True)
class _Place:
    """Where the walk is: the function, its lines, the statement, and the expressions around the node."""

    function: str = ""
    body: range | None = None
    statement: range | None = None
    around: tuple[ast.AST, ...] = ()


LONG, CONTEXT = 90, 24  # of what is longer than LONG, the difference is shown with so many characters on either side
SHORT = 12  # an expression with fewer characters is named by the one around it


class _Walk:
    """Every edit of one file, in the order of its text."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Mutant] = []
        self.block(syntax(file), _Place())

    def block(self, node: ast.AST, place: _Place) -> None:
        for i, statement in enumerate(getattr(node, "body", [])):
            self.statement(statement, node, "body", i, place)
        for i, statement in enumerate(getattr(node, "orelse", [])):
            self.statement(statement, node, "orelse", i, place)
        for i, statement in enumerate(getattr(node, "finalbody", [])):
            self.statement(statement, node, "finalbody", i, place)

    def statement(self, node: ast.stmt, parent: ast.AST, field: str, index: int, place: _Place) -> None:
        if without_behaviour(node, place):
            return
        if isinstance(node, ast.ClassDef):
            self.block(node, replace(place, function=joined(place.function, node.name)))
            return
        if isinstance(node, ast.FunctionDef):
            inner = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
            place = _Place(joined(place.function, node.name), inner, None)
            self.edits(node, parent, field, index, place)
            self.edits(node.args, node, "args", None, replace(place, statement=inner))
            for name in ("defaults", "kw_defaults"):
                self.children(node.args, (name,), replace(place, statement=inner, around=(node.args,)))
            self.block(node, place)
            return
        bodies = [x for x in ("body", "orelse", "finalbody") if getattr(node, x, None)]
        last = (node.end_lineno or node.lineno) + 1
        header = range(node.lineno, max(node.body[0].lineno, node.lineno + 1) if bodies else last)  # type: ignore[attr-defined]
        inside = replace(place, statement=header if place.body else None, around=())
        self.edits(node, parent, field, index, inside)
        if not isinstance(node, ast.Raise):  # texts of errors
            fields = tuple(name for name in node._fields if name not in ("body", "orelse", "finalbody", "handlers"))
            self.children(node, fields, replace(inside, around=(node,)))
        self.block(node, place)

    def children(self, node: ast.AST, fields: Iterable[str], place: _Place) -> None:
        for field in fields:
            value = getattr(node, field)
            items = enumerate(value) if isinstance(value, list) else ((None, value),)
            for index, child in items:
                watch = isinstance(child, ast.keyword) and child.arg == "strict"  # of the code over itself
                if isinstance(child, ast.AST) and not watch:
                    self.expression(child, node, field, index, place)

    def expression(self, node: ast.AST, parent: ast.AST, field: str, index: int | None, place: _Place) -> None:
        self.edits(node, parent, field, index, place)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return  # a negative number is one constant
        self.children(node, node._fields, replace(place, around=(*place.around, node)))

    def edits(self, node: ast.AST, parent: ast.AST, field: str, index: int | None, place: _Place) -> None:
        for operator, new in replacements(node):
            line = getattr(node, "lineno", place.statement.start if place.statement else 0)
            if isinstance(node, ast.stmt | ast.expr):
                ast.copy_location(new, node)
            elif place.statement:
                vars(new).setdefault("lineno", place.statement.start)
            ast.fix_missing_locations(new)
            before, after = shortened(*self.texts(node, parent, field, index, new, place))
            if before == after:
                continue
            key = Key(self.file, place.function, before, after)
            lines = None if isinstance(node, ast.FunctionDef) else place.statement
            self.found.append(Mutant(key, operator, line, lines, parent, field, index, new))

    def texts(
        self, node: ast.AST, parent: ast.AST, field: str, index: int | None, new: ast.AST, place: _Place
    ) -> tuple[str, str]:
        """The edited expression before and after, with so much around it that it can be read."""
        if isinstance(node, ast.FunctionDef):
            return tuple(f"{'/'.join(ast.unparse(d) for d in f.decorator_list)} def" for f in (node, new))  # type: ignore[return-value]
        if isinstance(node, ast.For):
            return tuple(head(x) for x in (node, new))  # type: ignore[return-value]
        if isinstance(node, ast.If):
            return tuple(head(x) for x in (node, new))  # type: ignore[return-value]
        shown: ast.AST = node
        for outer in reversed(place.around):
            if len(text(shown)) >= SHORT or isinstance(outer, ast.For | ast.If | ast.With | ast.arguments):
                break
            shown = outer
        before = text(shown)
        with edited(parent, field, index, new):
            after = text(new if shown is node else shown)
        return before, after


def head(node: ast.AST) -> str:
    """A compound statement by its first line, and its body where it is no longer there."""
    new = copy(node)
    left_out = isinstance(node, ast.For) and isinstance(node.body[0], ast.Pass)
    new.body, new.orelse = [ast.Pass() if left_out else ast.Expr(ast.Constant(...))], []  # type: ignore[attr-defined]
    return text(new)


def text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).replace(ALIAS, "attn_np").split())


def alike(a: str, b: str) -> int:
    """With how many of the same characters two texts begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def shortened(before: str, after: str) -> tuple[str, str]:
    """Two texts around what is different in them."""
    if max(len(before), len(after)) <= LONG:
        return before, after
    start = alike(before, after)
    end = alike(before[start:][::-1], after[start:][::-1])
    left = "... " if start > CONTEXT else ""
    right = " ..." if end > CONTEXT else ""

    def cut(whole: str) -> str:
        return left + whole[max(start - CONTEXT, 0) : len(whole) - max(end - CONTEXT, 0)] + right

    return cut(before), cut(after)


def joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def without_behaviour(node: ast.stmt, place: _Place) -> bool:
    """Imports, docstrings, names of types, what only a type checker reads, and annotated names without a value."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Assign) and not place.function:
        names = {ast.unparse(target) for target in node.targets}
        return names == {"__all__"} or all(re.fullmatch(r"[A-Z]|[A-Z][a-z]+", name) for name in names)
    return isinstance(node, ast.AnnAssign) and node.value is None


@cache
def mutants(file: str) -> tuple[Mutant, ...]:
    """Every mutant of a file, in the order of its lines."""
    return tuple(_Walk(file).found)
