"""A mutant, and how it is planted: in a copy of a tree that lives in memory under a name of its own."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from parity_tests.judge.cases import Case

TREES = ("attn_np", "attn_jax", "attn_torch")
NUMPY = ("attn_np",)
SHARED = "shared"
# What variants share, without the kernels.
ROOMS = ("attention", "frame", "normalizers", "ops", "positions", "recurrence")
SHARED_FILES = (*(f"{room}/" for room in ROOMS), "kernels/weigh.py")
_numbers = count()

# What the trees spell differently, so that one edit serves all three.
WORDS = {
    "attn_np": {"np": "np", "where": "np.where", "exp": "np.exp", "axis": "axis", "keepdims": "keepdims"},
    "attn_jax": {"np": "jnp", "where": "where", "exp": "exp", "axis": "axis", "keepdims": "keepdims"},
    "attn_torch": {"np": "torch", "where": "where", "exp": "exp", "axis": "dim", "keepdims": "keepdim"},
}


def allowing(kind: str, condition: str) -> str:
    """The source of a pattern as another one, but for the condition on `query` and `key`, the positions."""
    return f'type("Other{kind}", ({kind},), {{"allows": lambda self, query, key: {condition}}})'


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    Attributes:
        name: the cause in words, as one would say it of somebody's code.
        file: of the tree, such as "mha.py"; `SHARED` is the one shared file that holds the text, whatever its name.
        old, new: the edit; `old` stands exactly once. `{np}`, `{where}`, `{exp}`, `{axis}` and `{keepdims}` are the
            tree's own words.
        variant, example, call, dtype: the case that must reveal it. The variant "attend" is that function by itself,
            and the calls "greedy" and "generate" are those of seq2seq.
        fields: fields of the config that are other than the example's, as pairs.
        fix: one line of advice to somebody whose code has this mistake.
        trees: where it is planted; the hand-written backward exists in NumPy only.
        needs: names of shared files that the edit uses and the file does not import.
        beside: another text of that file, where several shared files hold `old`.
        many: the text stands more than once and every place is edited.
        pattern: `old` is a regular expression, and `new` what replaces it, with its groups; the mistake is one of every
            variant that has such code.
        raises: trees in which the bug shows itself by an exception; elsewhere an exception is no evidence.
        argument: the argument of a call that the name speaks of: where no call gives it, it is not this mistake.
        gain: factor on the arrays of the case, for bugs that only large numbers show.
        survives: why the bug may live where no reference is whole, when it is planted in all three trees at once.
    """

    name: str
    file: str
    old: str
    new: str
    variant: str
    example: str
    call: str = "full"
    dtype: str = "float64"
    fields: tuple[tuple[str, Any], ...] = ()
    fix: str = ""
    trees: tuple[str, ...] = TREES
    needs: tuple[str, ...] = ()
    beside: str = ""
    many: bool = False
    pattern: bool = False
    raises: tuple[str, ...] = ()
    argument: str = ""
    gain: float = 1.0
    survives: str = ""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    @property
    def case(self) -> Case:
        case = Case(self.variant, self.example, self.call, self.dtype)
        return replace(case, given=replace(case.config, **dict(self.fields))) if self.fields else case


def at(file: str, variant: str, example: str, **common: Any) -> Callable[..., Mutant]:
    """For tables: mutants of one file, or of the shared ones, that one case reveals; each has a name, fix and edit."""

    def mutant(name: str, fix: str, old: str, new: str, **own: Any) -> Mutant:
        given: dict[str, Any] = {"file": file, "variant": variant, "example": example} | common | own
        return Mutant(name=name, fix=fix, old=old, new=new, **given)

    return mutant


@cache
def root(tree: str) -> Path:
    """The folder of a tree."""
    spec = find_spec(tree)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"mutants: expected the package {tree}, got none; install it")
    return Path(spec.submodule_search_locations[0])


@cache
def sources(tree: str) -> dict[Path, str]:
    """The files of a tree as they stand, all read at once: a copy never mixes two states of them."""
    every = [
        path
        for path in root(tree).rglob("*.py")
        if path.relative_to(root(tree)).parts[0] not in ("contract", "weights")
    ]
    return {path: path.read_text(encoding="utf-8") for path in every}


@lru_cache(maxsize=1024)  # searches for a cause plant the same bugs again; some thousand generic ones need no place
def compiled(file: str, source: str) -> CodeType:
    """The code of a file."""
    return compile(source, f"<copy of {file}>", "exec")


def renamed(code: CodeType, modules: Mapping[str, str]) -> CodeType:
    """The same code with other modules imported: the names of the one to those of the other."""

    def change(x: Any) -> Any:
        if isinstance(x, str):
            return modules.get(x, x)
        return renamed(x, modules) if isinstance(x, CodeType) else x

    return code.replace(co_consts=tuple(map(change, code.co_consts)), co_names=tuple(map(change, code.co_names)))


@cache
def importers(tree: str, file: str) -> frozenset[str]:
    """A file of a tree by its module's name, and every module that imports it, directly or by others.

    What finds modules by their names at run time, as a layer finds those that it is made of, may import any.
    """
    by_name = [module_of(tree, path) for path, source in sources(tree).items() if "import_module(" in source]
    found, todo = set(), [module_of(tree, root(tree) / file), *by_name]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [other for other, names in imported(tree).items() if name in names]
    return frozenset(found)


@cache
def imported(tree: str) -> dict[str, frozenset[str]]:
    """The modules of a tree, and the names of those that each imports."""
    line = re.compile(rf"^\s*(?:from|import) ({tree}[\w.]*)", re.MULTILINE)
    return {module_of(tree, path): frozenset(line.findall(source)) for path, source in sources(tree).items()}


def module_of(tree: str, path: Path) -> str:
    return ".".join((tree, *path.relative_to(root(tree)).with_suffix("").parts)).removesuffix(".__init__")


@cache
def shared(tree: str) -> dict[str, str]:
    """The files that variants share, by place; not the kernels of `attend`, which say the same again to be fast."""
    places = {path.relative_to(root(tree)).as_posix(): source for path, source in sources(tree).items()}
    return {file: source for file, source in places.items() if file.startswith(SHARED_FILES)}


@cache
def defining(name: str, tree: str) -> str:
    """The shared module that defines a name; of names that frameworks define, the dialect."""
    for file in sorted(shared(tree)):
        module = module_of(tree, root(tree) / file)
        if getattr(getattr(import_module(module), name, None), "__module__", "") == module:
            return module
    if hasattr(import_module(f"{tree}.ops"), name):
        return f"{tree}.ops"
    raise ValueError(f"mutants: expected {name!r} in a shared file of {tree}, got none; mend the mutant")


def spelled(text: str, tree: str) -> str:
    """A text in the tree's own words."""
    for word, own in WORDS[tree].items():
        text = text.replace(f"{{{word}}}", own)
    return text


def places_of(mutant: Mutant, tree: str, source: str) -> int:
    """How often a source has what the mutant edits."""
    old = spelled(mutant.old, tree)
    return len(re.findall(old, source)) if mutant.pattern else source.count(old)


@cache
def file_of(mutant: Mutant, tree: str) -> str:
    """The name of the file that the mutant edits.

    Raises:
        ValueError: none of the shared files holds its text, or several do.
    """
    if mutant.file != SHARED:
        return mutant.file
    old, beside = spelled(mutant.old, tree), spelled(mutant.beside, tree)
    every = shared(tree).items()
    files = sorted(name for name, source in every if places_of(mutant, tree, source) and beside in source)
    if len(files) != 1:
        got = " and ".join(files) or "none"
        raise ValueError(f"mutants: expected {old!r} in one shared file of {tree}, got {got}; mend the mutant")
    return files[0]


def edited(mutant: Mutant, tree: str, source: str | None = None) -> str:
    """The source of the file with the bug in it; of a source that holds other bugs already, if one is given.

    Raises:
        ValueError: the text does not stand there once, or in none or several of the shared files.
    """
    old, new, file = spelled(mutant.old, tree), spelled(mutant.new, tree), file_of(mutant, tree)
    source = sources(tree)[root(tree) / file] if source is None else source
    count = places_of(mutant, tree, source)
    if count == 0 or (count > 1 and not mutant.many):
        raise ValueError(f"mutants: expected {old!r} once in {file} of {tree}, got {count} times; mend the mutant")
    imports = "".join(f"from {defining(name, tree)} import {name}\n" for name in mutant.needs)
    return imports + (re.sub(old, new, source) if mutant.pattern else source.replace(old, new))


class Copy(MetaPathFinder, Loader):
    """Finds and runs the modules of a tree's copy, some of its files edited, and keeps those that it ran.

    The copy takes what it imports from the tree itself, but for the edited files and what imports them.
    """

    def __init__(self, tree: str, files: Mapping[str, str]) -> None:
        self.tree, self.alias, self.root = tree, f"{tree}_copy{next(_numbers)}", root(tree)
        self.codes = {self.root / file: compiled(file, source) for file, source in files.items()}
        names = frozenset[str]().union(*(importers(tree, file) for file in files))
        self.names = {name: name.replace(tree, self.alias, 1) for name in names}
        self.modules: dict[str, ModuleType] = {}

    def path(self, name: str) -> Path:
        place = self.root.joinpath(*name.split(".")[1:])
        package = place / "__init__.py"
        return package if package in sources(self.tree) else place.with_suffix(".py")

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.split(".")[0] != self.alias or self.path(fullname) not in sources(self.tree):
            return None
        return spec_from_loader(fullname, self, is_package=self.path(fullname).name == "__init__.py")

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = self.path(module.__name__)
        code = self.codes.get(path) or compiled(path.name, sources(self.tree)[path])
        self.modules[module.__name__] = module
        exec(renamed(code, self.names), module.__dict__)

    @contextmanager
    def importable(self) -> Iterator[str]:
        """Its name, under which it can be imported meanwhile; what was run before is not run again."""
        sys.meta_path.insert(0, self)
        sys.modules.update(self.modules)
        try:
            yield self.alias
        finally:
            sys.meta_path.remove(self)
            for name in self.modules:
                sys.modules.pop(name, None)


def with_bugs(tree: str, *mutants: Mutant) -> Copy:
    """A copy of a tree with one bug in it, or several."""
    files: dict[str, str] = {}
    for mutant in mutants:
        file = file_of(mutant, tree)
        files[file] = edited(mutant, tree, files.get(file))
    return Copy(tree, files)


@contextmanager
def planted(mutant: Mutant, tree: str, *more: Mutant) -> Iterator[str]:
    """A copy of a tree with one bug in it, or several, importable under the name this gives."""
    with with_bugs(tree, mutant, *more).importable() as alias:
        yield alias
