"""The source of a variant on its page: the forward in three trees, each line beside its formula, the backward with a
sentence for each step, and the functions that they call, to be opened in place.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from attn_np import contract
from attn_np.attention import attend as attend_module
from attn_np.attention import row_blocks

ATTN_NP = Path(__file__).parents[2] / "attn_np"
# What a layer's call and its backward pass stand for in a variant's file, and the functions behind their methods.
FRAME = {"call": "", "back": "_vjp"}
BEHIND: dict[str, Callable[..., Any]] = {
    "attend": attend_module.textbook_attend,
    "attend_by": attend_module.textbook_attend,
    "attend_in_rows": row_blocks.attend_in_row_blocks,
    "attend_vjp": attend_module.textbook_attend_vjp,
    "attend_by_vjp": attend_module.textbook_attend_vjp,
    "attend_in_rows_vjp": row_blocks.attend_in_row_blocks_vjp,
}
# Calls that change a value's type or record it; the value is their first argument.
PASSED_ON = ("upcast", "to_dtype", "record")
# Calls that put 0 in hidden places; the value is their last argument.
HIDING = ("zero_unseen",)
# How many arguments of a function are operands, where others are options.
OPERANDS = {"softmax": 1, "dropout": 1, "attend": 3, "repeat_heads": 1, "rotate": 1, "rms_norm": 1, "l2_normalize": 1}
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: r"\,", ast.Div: "/"}
# Not opened on a page: the fast path, and the functions for types, sizes and tapes. What the same pass of every variant
# calls is not opened either: it is no part of any one's idea.
CLOSED = ("kernels.flash", "frame.layer", "attention.decode")
PLUMBING = ("record", "scope", "to_dtype", "upcast", "dtype_name", "zeros", "arange", "constants", "einsum")
PLUMBING += ("run_fast_path", "run_fast_path_vjp", "softmax_takes_fast_path", "checked_dy", "sum_grads")


# The three files ------------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """The code of one file: its classes and functions without their backward pass, and the backward pass alone."""

    forward: str
    backward: str


def lines_apart(texts: Iterable[str]) -> list[list[int]]:
    """For each text the numbers of the lines that some other text does not have."""
    lines = [text.splitlines() for text in texts]
    shared = set.intersection(*map(set, lines))
    return [[i for i, line in enumerate(each, 1) if line not in shared] for each in lines]


def source(path: Path) -> Source:
    text = path.read_text("utf-8")
    lines, forward, backward = text.splitlines(), [], []

    def cut(node: ast.stmt, first: int | None = None) -> str:
        decorators = [d.lineno for d in getattr(node, "decorator_list", [])]
        start = min([node.lineno, *decorators]) if first is None else first
        return "\n".join(lines[start - 1 : node.end_lineno]).rstrip()

    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            (backward if node.name.endswith("_vjp") else forward).append(cut(node))
        if isinstance(node, ast.ClassDef):
            kept, undone, start = [], [], min([node.lineno, *(d.lineno for d in node.decorator_list)])
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and is_backward(item.name):
                    first = min([item.lineno, *(d.lineno for d in item.decorator_list)])
                    kept.append("\n".join(lines[start - 1 : first - 1]).rstrip())
                    undone.append(cut(item))
                    start = (item.end_lineno or item.lineno) + 1
            kept.append("\n".join(lines[start - 1 : node.end_lineno]).rstrip())
            forward.append("\n".join(part for part in kept if part.strip()))
            if undone:
                header = "\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1]).rstrip()
                backward.append("\n\n".join([f"{header}\n    ...", *undone]))
    return Source("\n\n\n".join(forward), "\n\n\n".join(backward))


def is_backward(name: str) -> bool:
    return name == "vjp" or name.endswith("_vjp")


# Lines and formulas ---------------------------------------------------------------------------------------------------


def symbol(name: str, axes: str = "") -> str:
    """A name as it is written in the code, with the letters of its axes below it."""
    shown = name if len(name) == 1 else r"\mathrm{" + name.replace("_", r"\_") + "}"
    return f"{shown}_{{{axes}}}" if axes else shown


def spec_of(node: ast.expr) -> str | None:
    """The einsum string of a call: its first argument, perhaps passed through a function that adapts it."""
    if isinstance(node, ast.Call) and node.args:
        return spec_of(node.args[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) and "->" in node.value else None


def called_name(node: ast.AST | None) -> str:
    """The name of the function that is called, or of the method of a layer's call; "" for others."""
    if not isinstance(node, ast.Call):
        return ""
    method = node.func
    if isinstance(method, ast.Attribute) and isinstance(method.value, ast.Name) and method.value.id in FRAME:
        return method.attr + FRAME[method.value.id]
    return method.id if isinstance(method, ast.Name) else ""


def product(spec: str, left: str, right: str) -> str:
    """The sum that an einsum string stands for, over the letters that its result lacks."""
    operands, out = spec.split("->")
    a, b = operands.split(",")
    over = "".join(dict.fromkeys(letter for letter in a + b if letter not in out))
    total = rf"\sum_{{{over}}} " if over else ""
    return rf"{total}{symbol(left, a)}\, {symbol(right, b)}"


def adds_axes(index: ast.expr) -> bool:
    """Whether an index only adds axes of 1, as in q[:, :, None]: the array is the same."""
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(ast.unparse(item) in (":", "None", "...") for item in items)


def without_axes(node: ast.expr) -> ast.expr:
    """An expression without the indices that only add axes of 1 to it."""
    return without_axes(node.value) if isinstance(node, ast.Subscript) and adds_axes(node.slice) else node


def passed_on(node: ast.expr) -> ast.expr | None:
    """What a call hands on as it is, up to its type and hidden places; None where it computes something."""
    name = called_name(node)
    if not isinstance(node, ast.Call) or name not in (*PASSED_ON, *HIDING):
        return None
    if name == "record":
        return node.keywords[0].value if len(node.keywords) == 1 else None
    return node.args[-1 if name in HIDING else 0] if node.args else None


def operand(node: ast.expr) -> str | None:
    """The name of an array; None for an expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value  # tape["context"]
    bare = without_axes(node)
    inner = passed_on(node) if bare is node else bare
    return operand(inner) if inner is not None else None


def latex(node: ast.expr) -> str | None:
    """An expression as a formula; None where it is no arithmetic on arrays."""
    name = operand(node)
    if name is not None:
        return symbol(name)
    node = without_axes(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return f"{node.value:g}"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = latex(node.operand)
        return inner and f"-{inner}"
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        sides = [latex(side) for side in (node.left, node.right)]
        loose = (ast.Add, ast.Sub)
        if None in sides:
            return None
        if not isinstance(node.op, loose):
            wrapped = ((without_axes(node.left), loose), (without_axes(node.right), (*loose, ast.Div)))
            sides = [
                f"({x})" if isinstance(side, ast.BinOp) and isinstance(side.op, kinds) else x
                for (side, kinds), x in zip(wrapped, sides, strict=True)
            ]
        return f"{sides[0]} {OPERATORS[type(node.op)]} {sides[1]}"
    return latex_of_call(node) if isinstance(node, ast.Call) else None


def latex_of_call(node: ast.Call) -> str | None:
    name, spec = called_name(node), spec_of(node.args[0]) if node.args else None
    if name in ("einsum", "linear") and spec is not None and spec.count(",") == 1:
        left, right = operand(node.args[1]), operand(node.args[2])
        if left is None or right is None:
            return None
        out = product(spec, left, right)
        bias = operand(node.args[3]) if name == "linear" and len(node.args) > 3 else None
        if bias is not None:
            weight, result = spec.replace("->", ",").split(",")[1:]
            out += " + " + symbol(bias, "".join(x for x in weight if x in result))
        return out
    inner = passed_on(node)
    if inner is not None:
        return latex(inner)
    if not name or not node.args:
        return None
    arguments = [arg for arg in node.args[: OPERANDS.get(name, len(node.args))] if operand(arg) != "tape"]
    parts = [latex(arg) for arg in arguments]
    return None if None in parts else rf"{symbol(name)}({', '.join(map(str, parts))})"


def axes_of(node: ast.expr) -> str:
    """The letters of a result, where an einsum string says them."""
    specs = [spec_of(call.args[0]) for call in ast.walk(node) if isinstance(call, ast.Call) and call.args]
    outs = {spec.partition("->")[2] for spec in specs if spec}
    return outs.pop() if len(outs) == 1 else ""


def assignments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
    """Each array that a function computes: its name, its expression and its statement."""
    statements = (node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Return))
    for node in sorted(statements, key=lambda found: found.lineno):
        value = node.value
        if called_name(value) == "end" and isinstance(value, ast.Call):
            yield "y", value.args[0], node
            continue
        targets = node.targets[0] if isinstance(node, ast.Assign) else None
        if called_name(value) == "record" and isinstance(value, ast.Call):
            yield from ((word.arg, word.value, node) for word in value.keywords if word.arg)
        elif isinstance(targets, ast.Name) and value is not None:
            yield targets.id, value, node
        elif isinstance(targets, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(targets.elts, value.elts, strict=True)
            yield from ((name.id, each, node) for name, each in pairs if isinstance(name, ast.Name))


def counts(node: ast.expr) -> bool:
    """Whether a line computes something: a product, or more than a name passed on."""
    inner = [called_name(part) for part in ast.walk(node)]
    return bool({"einsum", "linear", "softmax", "exp", "sigmoid", "silu", "softplus", "tanh"} & set(inner))


def formulas_of(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Each line that computes something, and its formula."""
    for name, value, _ in assignments(function):
        shown = latex(value) if counts(value) else None
        if shown is not None and shown != symbol(name):
            line = " ".join(f"{name} = {ast.unparse(value)}".split())
            yield line.replace('"', "'").replace("self.", ""), f"{symbol(name, axes_of(value))} = {shown}"


def definitions(path: Path, *, backward: bool) -> list[ast.FunctionDef]:
    """The functions and methods of a file that belong to its forward, or to its backward pass."""
    found = []
    for node in ast.parse(path.read_text("utf-8")).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        found += [item for item in members if isinstance(item, ast.FunctionDef) and is_backward(item.name) == backward]
    return found


def tree_of(function: Callable[..., Any]) -> ast.FunctionDef:
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
    return next(node for node in nodes if isinstance(node, ast.FunctionDef))


class Given(ast.NodeTransformer):
    """A function as one call of it reads: with the constants that the call gives, without the branches not taken.

    Names that stand for others are replaced by them.
    """

    def __init__(self, constants: dict[str, Any], names: dict[str, str]) -> None:
        self.constants, self.names = constants, names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        test, is_none = node.test, isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Is)
        if isinstance(test, ast.Name) and test.id in self.constants:
            return node.body if self.constants[test.id] else node.orelse
        if isinstance(test, ast.Compare) and is_none and isinstance(test.left, ast.Name):
            return node.body if self.constants.get(test.left.id, ...) is None else node.orelse
        return node


def recurrent_lines(function: Callable[..., Any], call: ast.Call) -> list[tuple[str, str]]:
    """The lines of a recurrence from position to position, as a layer's call of it reads, and their formulas."""
    names = list(inspect.signature(import_module(function.__module__).recurrence).parameters)
    arguments = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
    given = {name: arg.value for name, arg in arguments.items() if isinstance(arg, ast.Constant)}
    # By a delta rule what is erased is that of the key, unless the call says another one.
    stands_for = {} if "erase_key" in arguments or not given["delta_rule"] else {"erase_key": "k"}
    given |= {} if "erase_key" in arguments or given["delta_rule"] else {"erase_key": None}
    tree = Given(given, stands_for).visit(tree_of(function))
    rows = []
    for name, value, _ in assignments(tree):
        shown = latex(value)
        if shown is not None and shown != symbol(name):
            rows.append((f"recurrent: {name} = {ast.unparse(value)}", f"{symbol(name, axes_of(value))} = {shown}"))
    (read,) = (
        node.value.elts[0] for node in tree.body if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    )
    return [*rows, (f"recurrent: out = {ast.unparse(read)}", f"{symbol('out', axes_of(read))} = {latex(read)}")]


def line_by_line(path: Path) -> list[tuple[str, str]]:
    """The lines of the forward and their formulas; those of `attend` and of `recurrence` where the forward calls it."""
    nodes = definitions(path, backward=False)
    rows = list(dict.fromkeys(row for node in nodes for row in formulas_of(node)))
    module = import_module(f"attn_np.{path.stem}")
    found = [part for node in nodes for part in ast.walk(node)]
    calls = [part for part in found if isinstance(part, ast.Call) and called_name(part) == "recurrence"]
    if calls:
        above = calls[0].lineno
        before = {name for node in nodes for name, _, statement in assignments(node) if statement.lineno < above}
        at = sum(line.partition(" = ")[0] in before for line, _ in rows)
        recurrent = import_module(module.recurrence.__module__).recurrent_form
        rows[at:at] = recurrent_lines(recurrent, calls[0])
    if any(called_name(part) in ("attend", "attend_by", "attend_checked") for part in found):
        at = next((i for i, (line, _) in enumerate(rows) if "context" in line and "einsum" not in line), len(rows))
        inner = [(f"attend: {line}", formula) for line, formula in formulas_of(tree_of(attend_module.textbook_attend))]
        rows[at:at] = inner
    return rows


# The backward ---------------------------------------------------------------------------------------------------------


def pulled_back(call: ast.Call, targets: list[str]) -> list[str]:
    """The gradients of a product as formulas: the operand and the result exchanged in its string."""
    spec = spec_of(call.args[0])
    rule = called_name(call)
    if spec is None or spec.count(",") != 1:
        return []
    left, right, out = spec.replace("->", ",").split(",")
    names = [operand(arg) for arg in (*call.args[1:3], call.args[-1])]
    if None in names or len(targets) < 2:
        return []
    a, b, dy = (str(name) for name in names)
    shown = [
        f"{symbol(targets[0], left)} = {product(f'{out},{right}->{left}', dy, b)}",
        f"{symbol(targets[1], right)} = {product(f'{left},{out}->{right}', a, dy)}",
    ]
    if rule == "linear_vjp" and len(targets) > 2 and not isinstance(call.args[3], ast.Constant):
        bias = "".join(letter for letter in right if letter in out)
        over = "".join(letter for letter in out if letter not in bias)
        shown.append(f"{symbol(targets[2], bias)} = " + (rf"\sum_{{{over}}} " if over else "") + symbol(dy, out))
    return [line for target, line in zip(targets, shown, strict=False) if target != "_"]


def target_names(node: ast.Assign) -> list[str]:
    first = node.targets[0]
    each = first.elts if isinstance(first, ast.Tuple) else [first]
    names = (name.value if isinstance(name, ast.Starred) else name for name in each)
    found = (operand(name) or "_" for name in names)
    return [f"d{name}" if isinstance(x, ast.Subscript) else name for name, x in zip(found, each, strict=True)]


def first_sentence(text: str | None) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


def escaped(text: str) -> str:
    """Prose as Markdown: what stands in backticks is code, all else is meant to the letter."""
    return re.sub(r"(`[^`]*`)|([*<>\[\]$])", lambda found: found[1] or "\\" + found[2], text)


def backward_steps(path: Path) -> list[tuple[str, list[str], str]]:
    """Each step of the backward pass: its line, its formulas, and the sentence of its rule."""
    module, steps = import_module(f"attn_np.{path.stem}"), []
    for function in definitions(path, backward=True):
        for node in sorted((n for n in ast.walk(function) if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
            rules = [n for n in ast.walk(node.value) if isinstance(n, ast.Call) and is_backward(called_name(n))]
            if not rules:
                continue
            rule = rules[0]
            exact = pulled_back(rule, target_names(node)) if rule is node.value else []
            documented = getattr(module, called_name(rule), None) or BEHIND.get(called_name(rule))
            sentence = first_sentence(getattr(documented, "__doc__", ""))
            line = " ".join(ast.unparse(node).split()).replace('"', "'").replace("self.", "")
            steps.append((line, exact, "" if exact else sentence))
    return steps


# Functions that are opened in place -----------------------------------------------------------------------------------


def callees(names: set[str], module: ModuleType) -> list[Callable[..., Any]]:
    """Functions of this tree by the names that a source calls, in the order of their files."""
    offered = {name: getattr(module, name) for name in names if callable(getattr(module, name, None))}
    found = {name: inspect.unwrap(function) for name, function in offered.items()}
    found |= {BEHIND[name].__name__: BEHIND[name] for name in names & BEHIND.keys()}
    kept = [
        function
        for name, function in found.items()
        if inspect.isfunction(function)
        and function.__name__ == name
        and re.match(r"attn_np\.(attention|frame|kernels|normalizers|ops|positions|recurrence)\b", function.__module__)
        and function.__module__.removeprefix("attn_np.") not in CLOSED
        and function.__name__ not in PLUMBING
        and function.__name__ not in called_by_all(backward=False) | called_by_all(backward=True)
    ]
    return sorted(kept, key=lambda function: (function.__module__, function.__code__.co_firstlineno))


@cache
def called_by_all(*, backward: bool) -> frozenset[str]:
    """The functions that this pass of every variant calls, but for the rules of derivatives."""
    paths = [ATTN_NP / f"{variant}.py" for variant in contract.variants()]
    called = [names_called(definitions(path, backward=backward)) for path in paths if path.exists()]
    return frozenset(name for name in set.intersection(*called) if not is_backward(name))


def names_called(nodes: list[ast.FunctionDef]) -> set[str]:
    return {called_name(n) for node in nodes for n in ast.walk(node) if isinstance(n, ast.Call)}


def opened(path: Path, *, backward: bool) -> list[str]:
    """A closed box for each function that a pass calls, and in it one for each that this calls in turn."""
    shown = names_called(definitions(path, backward=False)) if backward else set()

    def boxes(nodes: list[ast.FunctionDef], module: ModuleType, depth: int) -> list[str]:
        functions = [f for f in callees(names_called(nodes), module) if f.__name__ not in shown]
        functions = [f for f in functions if backward or not is_backward(f.__name__)]
        shown.update(function.__name__ for function in functions)
        out, fence = [], ":" * (5 - depth)
        for function in functions:
            file, name = function.__module__.rpartition(".")[2], function.__name__
            out += [f"{fence}{{dropdown}} `{name}`: {escaped(first_sentence(function.__doc__))}", ""]
            out += [
                "```{code-block} python",
                f":caption: attn_np/{file}.py",
                "",
                inspect.getsource(function),
                "```",
                "",
            ]
            if depth < 1:
                out += boxes([tree_of(function)], import_module(function.__module__), depth + 1)
            out += [fence, ""]
        return out

    return boxes(definitions(path, backward=backward), import_module(f"attn_np.{path.stem}"), 0)
