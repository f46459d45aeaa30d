"""What a careless hand may do to a line of arithmetic: operators that know nothing of attention.

Each takes one node of the syntax tree and yields what may stand in its place. The report calls them by their names.
"""

import ast
import re
from collections.abc import Callable, Iterator
from copy import copy
from itertools import pairwise
from typing import Any

Operator = Callable[[Any], Iterator[ast.AST]]
OPERATORS: dict[str, tuple[Operator, tuple[type[ast.AST], ...]]] = {}


def operator(name: str, *kinds: type[ast.AST]) -> Callable[[Operator], Operator]:
    """Register an operator for some kinds of node."""

    def register(function: Operator) -> Operator:
        OPERATORS[name] = function, kinds
        return function

    return register


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Everything that may stand in the place of a node, with the operator's name; nothing twice, nothing unchanged."""
    seen = {ast.dump(node)}
    for name, (function, kinds) in OPERATORS.items():
        if isinstance(node, kinds):
            for new in function(node):
                text = ast.dump(new)
                if text not in seen:
                    seen.add(text)
                    yield name, new


def changed(node: Any, **fields: Any) -> Any:
    """A copy of a node with some fields of another value; the other children are shared."""
    new = copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def swapped(items: list[Any]) -> Iterator[list[Any]]:
    """A list with two neighbours exchanged, for every pair."""
    for i in range(len(items) - 1):
        yield [*items[:i], items[i + 1], items[i], *items[i + 2 :]]


def without(items: list[Any]) -> Iterator[list[Any]]:
    """A list with one item left out, for every item."""
    for i in range(len(items)):
        yield items[:i] + items[i + 1 :]


def negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


# Arithmetic -----------------------------------------------------------------------------------------------------------

ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.MatMult: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}


@operator("another operation", ast.BinOp)
def other_arithmetic(node: ast.BinOp) -> Iterator[ast.AST]:
    for kind in ARITHMETIC.get(type(node.op), ()):
        yield changed(node, op=kind())


@operator("one side left out", ast.BinOp)
def one_side(node: ast.BinOp) -> Iterator[ast.AST]:
    yield from (node.left, node.right)


@operator("sides exchanged", ast.BinOp)
def exchanged_sides(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow | ast.MatMult):
        yield changed(node, left=node.right, right=node.left)


@operator("sign or negation left out", ast.UnaryOp)
def without_sign(node: ast.UnaryOp) -> Iterator[ast.AST]:
    yield node.operand


@operator("updated in another way", ast.AugAssign)
def other_update(node: ast.AugAssign) -> Iterator[ast.AST]:
    target = ast.Name(node.target.id, ast.Store()) if isinstance(node.target, ast.Name) else node.target
    yield ast.Assign([target], node.value)
    yield ast.Pass()


# Conditions -----------------------------------------------------------------------------------------------------------

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}


@operator("another comparison", ast.Compare)
def other_comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for i, op in enumerate(node.ops):
        for kind in COMPARISONS[type(op)]:
            yield changed(node, ops=[*node.ops[:i], kind(), *node.ops[i + 1 :]])


@operator("and for or", ast.BoolOp)
def and_for_or(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


@operator("part of a condition left out", ast.BoolOp)
def part_of_condition(node: ast.BoolOp) -> Iterator[ast.AST]:
    for rest in without(node.values):
        yield changed(node, values=rest) if len(rest) > 1 else rest[0]


@operator("condition negated or fixed", ast.If, ast.IfExp)
def other_condition(node: ast.If | ast.IfExp) -> Iterator[ast.AST]:
    if not isinstance(node.test, ast.Compare | ast.UnaryOp):  # those have their opposite by other operators
        yield changed(node, test=negated(node.test))
    yield changed(node, test=ast.Constant(True))
    yield changed(node, test=ast.Constant(False))


@operator("filter of a comprehension left out", ast.comprehension)
def without_filter(node: ast.comprehension) -> Iterator[ast.AST]:
    for rest in without(node.ifs):
        yield changed(node, ifs=rest)


@operator("filter of a comprehension negated", ast.comprehension)
def negated_filter(node: ast.comprehension) -> Iterator[ast.AST]:
    for i, test in enumerate(node.ifs):
        if not isinstance(test, ast.Compare):
            yield changed(node, ifs=[*node.ifs[:i], negated(test), *node.ifs[i + 1 :]])


# Constants and strings ------------------------------------------------------------------------------------------------


@operator("another constant", ast.Constant)
def other_constant(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        others = (1, -1) if value == 0 else (2, 0) if value == 1 else (value + 1, value - 1)
        others += (-value,) if isinstance(value, float) and value else ()  # of an index it would mean the same
        yield from (ast.Constant(type(value)(other)) for other in others)


@operator("sign of a constant", ast.UnaryOp)
def constant_after_sign(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.USub) and is_number(node.operand):
        value = ast.literal_eval(node.operand)
        yield from (ast.UnaryOp(ast.USub(), ast.Constant(value + 1)), ast.Constant(1 - value))


@operator("another default", ast.arguments)
def other_default(node: ast.arguments) -> Iterator[ast.AST]:
    for name in ("defaults", "kw_defaults"):
        values = getattr(node, name)
        for i, value in enumerate(values):
            others = [ast.Constant(0)] if isinstance(value, ast.Constant) and value.value is None else []
            for other in others:
                yield changed(node, **{name: [*values[:i], other, *values[i + 1 :]]})


SPEC = re.compile(r"(?:[a-z]+,)*[a-z]*->[a-z]+")


def spellings(text: str) -> Iterator[str]:
    """Einsum strings with two neighbouring letters of one operand or of the output exchanged."""
    for part in re.finditer(r"[a-z]{2,}", text):
        for letters in swapped(list(part.group())):
            yield text[: part.start()] + "".join(letters) + text[part.end() :]


@operator("letters of an einsum exchanged", ast.Constant)
def other_letters(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, str) and SPEC.fullmatch(node.value):
        yield from (ast.Constant(text) for text in spellings(node.value))


@operator("another word", ast.Constant)
def other_word(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, str) and not SPEC.fullmatch(node.value):
        yield ast.Constant(f"{node.value}_")


# Calls ----------------------------------------------------------------------------------------------------------------


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


@operator("call replaced by its argument", ast.Call)
def call_by_argument(node: ast.Call) -> Iterator[ast.AST]:
    if ast.unparse(node.func) == "np.dtype":  # a type serves wherever its dtype does
        return
    if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
        yield node.func.value  # x.reshape(...) by x
        return
    whole = [arg for arg in node.args if not is_text(arg) and not isinstance(arg, ast.Starred | ast.GeneratorExp)]
    chosen = whole[1:] if ast.unparse(node.func).endswith("where") else whole[:1]
    yield from chosen


def is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("np", "contract", "self", "ml_dtypes")


@operator("arguments exchanged", ast.Call)
def exchanged_arguments(node: ast.Call) -> Iterator[ast.AST]:
    for i, (a, b) in enumerate(pairwise(node.args)):
        if not is_text(a) and not is_text(b):  # an einsum string in an array's place raises at once
            yield changed(node, args=[*node.args[:i], b, a, *node.args[i + 2 :]])


@operator("argument left out", ast.Call)
def without_argument(node: ast.Call) -> Iterator[ast.AST]:
    for keyword, rest in zip(node.keywords, without(node.keywords), strict=True):
        if keyword.arg != "strict":  # with which the code watches over itself
            yield changed(node, keywords=rest)


# Sequences, indices, slices -------------------------------------------------------------------------------------------


@operator("neighbours exchanged", ast.Tuple, ast.List)
def exchanged_neighbours(node: ast.Tuple | ast.List) -> Iterator[ast.AST]:
    for items in swapped(node.elts):
        yield changed(node, elts=items)


@operator("item left out", ast.List)
def without_item(node: ast.List) -> Iterator[ast.AST]:
    if isinstance(node.ctx, ast.Load):
        for items in without(node.elts):
            yield changed(node, elts=items)


@operator("entry left out", ast.Dict)
def without_entry(node: ast.Dict) -> Iterator[ast.AST]:
    for keys, values in zip(without(node.keys), without(node.values), strict=True):
        yield changed(node, keys=keys, values=values)


@operator("values exchanged", ast.Dict)
def exchanged_values(node: ast.Dict) -> Iterator[ast.AST]:
    for values in swapped(node.values):
        yield changed(node, values=values)


@operator("another slice", ast.Slice)
def other_slice(node: ast.Slice) -> Iterator[ast.AST]:
    for name in ("lower", "upper"):
        end = getattr(node, name)
        if end is not None:
            yield changed(node, **{name: None})
            if not is_number(end) and not isinstance(end, ast.UnaryOp):  # numbers have operators of their own
                yield changed(node, **{name: ast.BinOp(end, ast.Add(), ast.Constant(1))})
    if node.step is not None:
        yield changed(node, step=None)
    if node.lower is None and node.upper is None and node.step is None:
        yield changed(node, lower=ast.Constant(1))


@operator("another place", ast.Subscript)
def other_place(node: ast.Subscript) -> Iterator[ast.AST]:
    if isinstance(node.slice, ast.Name | ast.BinOp) and isinstance(node.ctx, ast.Load):
        yield changed(node, slice=ast.BinOp(node.slice, ast.Sub(), ast.Constant(1)))


@operator("run through backwards", ast.For, ast.ListComp, ast.GeneratorExp)
def backwards(node: ast.For | ast.ListComp | ast.GeneratorExp) -> Iterator[ast.AST]:
    """A dictionary or a set is none the worse for it."""
    holder = node if isinstance(node, ast.For) else node.generators[0]
    if not (isinstance(holder.iter, ast.Call) and ast.unparse(holder.iter.func) == "reversed"):
        listed = ast.Call(ast.Name("list", ast.Load()), [holder.iter], [])
        turned = changed(holder, iter=ast.Call(ast.Name("reversed", ast.Load()), [listed], []))
        yield turned if isinstance(node, ast.For) else changed(node, generators=[turned, *node.generators[1:]])


# Statements -----------------------------------------------------------------------------------------------------------


def loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


@operator("assignment left out", ast.Assign)
def without_assignment(node: ast.Assign) -> Iterator[ast.AST]:
    """What was there before stays, or None where there was nothing."""
    names = {name for target in node.targets for name in stored(target)}
    if names <= loaded(node.value):
        yield ast.Pass()
    elif all(isinstance(target, ast.Name) for target in node.targets):
        yield changed(node, value=ast.Constant(None))


@operator("statement left out", ast.Expr, ast.Raise)
def without_statement(node: ast.Expr | ast.Raise) -> Iterator[ast.AST]:
    yield ast.Pass()


@operator("body left out", ast.For)
def without_body(node: ast.For) -> Iterator[ast.AST]:
    yield changed(node, body=[ast.Pass()])


@operator("nothing returned", ast.Return)
def nothing_returned(node: ast.Return) -> Iterator[ast.AST]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield changed(node, value=ast.Constant(None))


@operator("decorator left out", ast.FunctionDef)
def without_decorator(node: ast.FunctionDef) -> Iterator[ast.AST]:
    for rest in without(node.decorator_list):
        yield changed(node, decorator_list=rest)
