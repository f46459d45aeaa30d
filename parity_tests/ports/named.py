"""An implementation that a command names: `package.module:name`, perhaps with the arguments that make it."""

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

WHO = "judge"
WORDS = {"true": True, "false": False, "null": None, "none": None}


def value_of(text: str) -> Any:
    """A value as it is written on a command line: a literal of Python or JSON, else the word itself."""
    tree = Words().visit(ast.parse(text, mode="eval")) if text.strip() else ast.Constant(text)
    return ast.literal_eval(tree)


class Words(ast.NodeTransformer):
    """Names in a literal: true, false and null are JSON's, others are words."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(WORDS.get(node.id.lower(), node.id)), node)


def config_fields(texts: Iterable[str]) -> dict[str, Any]:
    """Fields of a config from `name=value`.

    Raises:
        ValueError: a text of another form, or a name twice.
    """
    fields: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"{WHO}: expected fields as name=value, got {text!r}; write d_model=12")
        if name in fields:
            raise ValueError(f"{WHO}: expected each field once, got {name} twice; give one value")
        try:
            fields[name] = value_of(value)
        except (ValueError, SyntaxError):
            fields[name] = value  # a word with signs in it, such as bottom-right
    return fields


def arranged(path: Path | None) -> dict[str, Any]:
    """The arguments of `assert_parity` that a file of JSON holds: lists are pairs there.

    Raises:
        ValueError: other text, or another name.
    """
    if path is None:
        return {}
    allowed = ("weights", "arguments", "outputs", "taps")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path}: expected a JSON object, got other text; mend it") from None
    other = sorted(set(held) - set(allowed)) if isinstance(held, dict) else [type(held).__name__]
    if other:
        raise ValueError(f"{path}: expected an object of {', '.join(allowed)}, got {other[0]}; see assert_parity")
    return {name: paired(part) for name, part in held.items()}


def paired(value: Any) -> Any:
    """JSON's lists as tuples; several names of ours for one of theirs stand as "w_q, w_k"."""
    if isinstance(value, list):
        return tuple(map(paired, value))
    if isinstance(value, dict):
        keys = {key: tuple(part.strip() for part in key.split(",")) for key in value}
        return {key if len(keys[key]) == 1 else keys[key]: paired(part) for key, part in value.items()}
    return value


def found(text: str) -> Any:
    """What a name stands for; the present folder is searched, too.

    Raises:
        ValueError: a text of another form, or no such module or name.
        ImportError: the module needs another that is not there.
    """
    module, colon, call = text.partition(":")
    path = call.partition("(")[0].strip()
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *path.split(".")]):
        raise ValueError(f"{WHO}: expected package.module:name, got {text!r}; write pkg.mod:Attention")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        here = import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        raise ValueError(
            f"{WHO}: expected a module that can be imported, got {module}; run this where it is, or install it"
        ) from None
    for part in path.split("."):
        if not hasattr(here, part):
            names = ", ".join(name for name in vars(here) if not name.startswith("_"))
            raise ValueError(f"{WHO}: expected a name in {module}, got {part!r}; it has {names or 'none'}")
        here = getattr(here, part)
    return here


def called(text: str, target: Any, fields: Mapping[str, Any], seed: int) -> Any:
    """What is judged: a function or module as it is; of a class, or where arguments are given, what a call makes.

    Raises:
        ValueError: arguments that are no literals, or a class that asks for more than the fields.
    """
    _, bracket, inside = text.partition("(")
    if bracket:
        args, words = arguments("(" + inside, text)
    elif isinstance(target, type):
        args, words = [], taken(target, fields, text)
    else:
        return in_evaluation(target)
    if "rngs" in inspect.signature(target).parameters and "rngs" not in words:
        words["rngs"] = import_module("flax.nnx").Rngs(seed)
    return in_evaluation(target(*args, **words))


def arguments(text: str, whole: str) -> tuple[list[Any], dict[str, Any]]:
    """The literals of a call."""
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(text)
        words = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        return [ast.literal_eval(arg) for arg in call.args], words
    except (ValueError, SyntaxError):
        raise ValueError(f"{WHO}: expected literals as arguments, got {whole!r}; write pkg.mod:Attention(12)") from None


def taken(target: type, fields: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The fields that a class has parameters for."""
    parameters = inspect.signature(target).parameters
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = {name: p for name, p in parameters.items() if p.kind in kinds and name != "rngs"}
    open_ = [name for name, p in own.items() if p.default is p.empty and name not in fields]
    if open_:
        raise ValueError(
            f"{WHO}: expected arguments for {', '.join(open_)} of {text}, got none; write {text}({open_[0]}=...)"
        )
    return {name: fields[name] for name in own if name in fields}


def in_evaluation(target: Any) -> Any:
    """A module as it runs after training."""
    if not isinstance(target, type) and callable(getattr(target, "eval", None)):
        target.eval()
    return target
