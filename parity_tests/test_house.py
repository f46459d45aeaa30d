"""The rules that hold the house together: who may import whom, twins that read the same, complete contracts."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import combinations, zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from attn_np import contract
from attn_np.contract import Arg, Config, Param
from attn_np.contract._letters import LETTERS
from parity_tests import sync

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("attn_np", "attn_jax", "attn_torch")
VARIANTS = contract.variants()
EXAMPLES = [(variant, example) for variant in VARIANTS for example in contract.examples(variant)]
TWINS = ("_attend", *VARIANTS)
FORWARD = ("__call__", "forward")

# Axes of the same size by what they mean: the next state is as wide as the state.
SAME = {frozenset("ea")}


def path_of(package: str, module: str) -> Path:
    return ROOT / package / f"{module}.py"


# Twins ----------------------------------------------------------------------------------------------------------------


class Token(NamedTuple):
    text: str
    line: int


class Unit(NamedTuple):
    """A class up to the end of its forward, a function or a constant: its tokens, and what was taken out."""

    name: str
    tokens: list[Token]
    twins: list[str]


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def backward(name: str) -> bool:
    """Whether a definition belongs to the backward pass, which only NumPy writes by hand."""
    return name == "vjp" or name.endswith("_vjp")


def spans(tree: ast.Module) -> Iterator[tuple[str, int, int, list[range]]]:
    """Name, first and last line of every unit of a module, and the lines of its docstrings.

    The members of a class that stand behind its forward are units of their own.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, first_line(node), last_line(node), docstrings(node)
        elif isinstance(node, ast.ClassDef):
            entry = [i for i, n in enumerate(node.body) if isinstance(n, ast.FunctionDef) and n.name in FORWARD]
            end = entry[0] if entry else len(node.body) - 1
            yield node.name, first_line(node), last_line(node.body[end]), docstrings(node)
            for member in node.body[end + 1 :]:
                name = member.name if isinstance(member, ast.FunctionDef) else ast.unparse(member)
                yield f"{node.name}.{name}", first_line(member), last_line(member), docstrings(member)
        elif not isinstance(node, ast.Import | ast.ImportFrom) and not is_docstring(node):
            name = ast.unparse(node).partition("=")[0].strip()
            yield name, node.lineno, last_line(node), []


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def docstrings(node: ast.stmt) -> list[range]:
    found = []
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and body and is_docstring(body[0]):
            found.append(range(body[0].lineno + 1, last_line(body[0]) + 1))
    return found


def units(source: str) -> dict[str, Unit]:
    """Everything in a twin that must read the same in all three trees.

    Comments go, and of layout what carries no meaning: line breaks inside brackets, and the comma before the last of
    them. Of docstrings the first line counts. Lines that carry `# twin: reason` are taken out.
    """
    found, every = {}, list(tokenize.generate_tokens(io.StringIO(source).readline))
    twins = {t.start[0]: t.string.partition("twin:")[2].strip() for t in every if re.match(r"#\s*twin\b", t.string)}
    for name, first, last, docs in spans(ast.parse(source)):
        kept: list[Token] = []
        for token in every:
            line = token.start[0]
            if not first <= line <= last or line in twins or token.type in (tokenize.COMMENT, tokenize.NL):
                continue
            text = token.string
            if token.type == tokenize.STRING and any(line + 1 == doc.start for doc in docs):
                text = text.strip("\"'r").partition("\n")[0].strip()
            if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                text = tokenize.tok_name[token.type]
            if text in (")", "]", "}") and kept and kept[-1].text == "," and kept[-1].line != line:
                kept.pop()
            kept.append(Token(text, line))
        while kept and kept[-1].text in ("NEWLINE", "DEDENT"):
            kept.pop()
        reasons = [twins[line] for line in sorted(twins) if first <= line <= last]
        found[name] = Unit(name, kept, [r for i, r in enumerate(reasons) if i == 0 or r != reasons[i - 1]])
    return found


def difference(twin: str, sources: dict[str, str]) -> str | None:
    """The first difference between the trees' versions of a file, in words; None where they read the same."""
    trees = {package: units(source) for package, source in sources.items()}
    names = {p: [n for n in found if not backward(n.rpartition(".")[2])] for p, found in trees.items()}
    head, *others = trees
    # A helper of the backward pass may stand behind the forward under a name of its own.
    names[head] = [n for n in names[head] if n in names[others[0]] or not n.rpartition(".")[2].startswith("_")]
    for package in others:
        if names[package] != names[head]:
            return f"{twin}: {head} defines {names[head]}, {package} {names[package]}, in this order"
    for name in names[head]:
        ours = trees[head][name]
        for package in others:
            theirs = trees[package][name]
            if ours.twins != theirs.twins or not all(ours.twins + theirs.twins + ["-"]):
                return f"{twin}, {name}: `# twin:` lines give {ours.twins} in {head}, {theirs.twins} in {package}"
            for i, (a, b) in enumerate(zip_longest(ours.tokens, theirs.tokens, fillvalue=Token("end", 0))):
                if a.text != b.text:
                    return "\n".join(
                        f"{p}/{twin}.py:{t.line}: {' '.join(x.text for x in u.tokens[max(0, i - 5) : i + 6])}"
                        for p, t, u in ((head, a, ours), (package, b, theirs))
                    )
    return None


@pytest.mark.parametrize("twin", TWINS)
def test_twins_read_the_same(twin: str) -> None:
    found = difference(twin, {package: path_of(package, twin).read_text() for package in PACKAGES})
    assert found is None, found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = x + 1", "y = x - 1"),
        ("        return y\n", "    return y\n"),
        ("  # twin: its name", ""),
        ("# twin: its name", "# twin: another reason"),
        ("# twin: its name", "# twin:"),
        ("An example.", "Another example."),
        ("plain(self)", "plain(self, x)"),
        ("    def plain(self): ...\n", ""),
        ("LIMIT = 3", "LIMIT = 4"),
    ],
)
def test_the_mirror_shows_a_difference(old: str, new: str) -> None:
    source = '''
LIMIT = 3
class Example:
    """An example."""
    def forward(self, x: int = 0):  # twin: its name
        """Its forward.

        More words.
        """
        if x:
            y = x + 1  # a comment
        return y
    def plain(self): ...
'''
    source = source.replace("        return y\n", "            y = 2\n        return y\n")
    layout = source.replace("x + 1  # a comment", "(x +\n    1)").replace("y = x + 1", "y = (x + 1)")
    same = {"attn_np": source + "    def vjp(self): ...\n", "attn_jax": source, "attn_torch": source}
    assert difference("example", same) is None
    wide = source.replace("LIMIT = 3", "LIMIT = 3\nf = g(1, 2)")
    long = source.replace("LIMIT = 3", "LIMIT = 3\n\nf = g(\n    1,  # one\n    2,\n)").replace("More words", "Others")
    assert difference("example", {"attn_np": wide, "attn_jax": long, "attn_torch": wide}) is None
    assert layout.count("(") > source.count("(")
    assert old in source
    for tree in same:
        assert difference("example", same | {tree: same[tree].replace(old, new)}) is not None


def test_cores_offer_the_same_names() -> None:
    listed = {package: import_module(f"{package}._ops").__all__ for package in PACKAGES}
    assert listed["attn_jax"] == listed["attn_np"]
    assert listed["attn_torch"] == listed["attn_np"]
    assert len(set(listed["attn_np"])) == len(listed["attn_np"])
    for package, names in listed.items():
        missing = [name for name in names if not hasattr(import_module(f"{package}._ops"), name)]
        assert not missing, f"{package}._ops lists {missing} in __all__ and does not define them"


def test_cores_take_the_same_arguments() -> None:
    """A function that two trees define takes the same arguments in the same order with the same defaults."""
    defined: dict[str, dict[str, str]] = {}
    for package in PACKAGES:
        names = import_module(f"{package}._ops").__all__
        for node in ast.parse(path_of(package, "_ops").read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                for arg in (*node.args.args, *node.args.kwonlyargs):
                    arg.annotation = None
                defined.setdefault(node.name, {})[package] = ast.unparse(node.args)
    different = {name: found for name, found in defined.items() if len(set(found.values())) > 1}
    assert not different


# Written in the operations of `_ops`: their code is the same to the letter.
SHARED = {
    "_decode": {"Cache", "Past", "opened", "closed", "remember"},
    "_relative": {"sinusoids"},
    "_rotary": {"tables", "rotation", "rotate"},
}


@pytest.mark.parametrize("module", SHARED)
def test_shared_pieces_are_the_same(module: str) -> None:
    """The bookkeeping of decoding, distances, and rotary positions."""
    found = {}
    for package in PACKAGES:
        body = ast.parse(path_of(package, module).read_text()).body
        found[package] = {n.name: ast.dump(n) for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
        assert SHARED[module] <= set(found[package])
    assert found["attn_jax"] == found["attn_np"]
    assert found["attn_torch"] == found["attn_np"]


# Imports --------------------------------------------------------------------------------------------------------------


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """Every (module, name) that a file imports, wherever in it; the name is None for `import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((node.module or "", alias.name) for alias in node.names)


def full_names(path: Path) -> set[str]:
    return {module if name is None else f"{module}.{name}" for module, name in imports(path)}


def strings(path: Path) -> Iterator[str]:
    """String constants of a file, without docstrings."""
    tree = ast.parse(path.read_text())
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def under(name: str, *modules: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


LIBRARIES = {
    "attn_np": ("numpy", "ml_dtypes", "jaxtyping", "safetensors", "threadpoolctl"),
    "attn_jax": ("jax", "flax", "numpy", "ml_dtypes", "jaxtyping"),
    "attn_torch": ("torch", "numpy", "ml_dtypes", "jaxtyping"),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_tree_imports_its_own_framework_only(package: str) -> None:
    ours = ["attn_np"] if package == "attn_np" else [package, "attn_np.contract", "attn_np.weights"]
    for path in files(package):
        for name in full_names(path):
            allowed = name.partition(".")[0] in sys.stdlib_module_names or under(name, *ours, *LIBRARIES[package])
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"
        for text in strings(path):
            dotted = re.match(r"(attn_\w+)(\.|$)", text)
            if dotted and dotted[1] in PACKAGES:
                allowed = under(text.rstrip("."), *ours)
                assert allowed, f"{path.relative_to(ROOT)} names {text!r}, which it may not import"


def test_contracts_need_the_standard_library_only() -> None:
    for path in files("attn_np/contract"):
        for name in full_names(path):
            allowed = name.partition(".")[0] in sys.stdlib_module_names or under(name, "attn_np.contract")
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_weights_need_no_layer() -> None:
    for path in files("attn_np/weights"):
        for name in full_names(path):
            if under(name, "attn_np"):
                allowed = under(name, "attn_np.contract", "attn_np.weights")
                assert allowed, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("package", PACKAGES)
def test_variants_take_every_operation_from_their_core(package: str, variant: str) -> None:
    """NumPy's files may also use NumPy in the backward pass; the mirror keeps it out of the forward."""
    core = import_module(f"{package}._ops").__all__
    path = path_of(package, variant)
    for module, name in imports(path):
        allowed = module in ("jaxtyping", "math", "typing", "collections.abc") or under(module, "attn_np.contract")
        allowed = (
            allowed
            or module in {f"{package}.{shared}" for shared in ("_attend", *SHARED)}
            or module in {f"{package}.{v}" for v in VARIANTS}
        )
        allowed = allowed or (module == f"{package}._ops" and name in core)
        allowed = allowed or (package == "attn_np" and module in ("attn_np._vjp", "numpy"))
        assert allowed, f"{path.relative_to(ROOT)} imports {name or module} from {module}; let `_ops` export it"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


FRAMEWORKS = ("torch", "jax", "jaxlib", "flax")


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("attn_np", ("torch", "jax", "jaxlib", "flax", "attn_torch", "attn_jax")),
        ("attn_torch", ("jax", "jaxlib", "flax", "attn_jax")),
        ("attn_jax", ("torch", "attn_torch")),
    ],
)
def test_a_tree_loads_no_other_framework(package: str, others: tuple[str, ...]) -> None:
    """Not even when every name is used and a layer is built."""
    code = f"""
import sys
import {package}
first = [name for name in {others!r} if name in sys.modules]
for name in {package}.__all__:
    getattr({package}, name)
from attn_np import contract
for variant in contract.variants():
    config = next(iter(contract.examples(variant).values()))
    {package}.build(variant, **config.as_dict())
print(first, [name for name in {others!r} if name in sys.modules])
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "[] []"


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_tree_loads_no_library(package: str) -> None:
    """Names load on first use, so that `import` takes no time: not even NumPy is loaded."""
    heavy = ("numpy", "ml_dtypes", "jaxtyping", "safetensors", *FRAMEWORKS, "rich", "typer")
    done = run(f"import sys, {package}; print([name for name in {heavy!r} if name in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("package", "missing", "extra"),
    [("attn_torch", "torch", "torch"), ("attn_jax", "jax", "jax"), ("attn_jax", "flax", "jax")],
)
def test_a_missing_framework_is_named_with_the_command(package: str, missing: str, extra: str) -> None:
    code = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *args):
        return None if name.partition(".")[0] == {missing!r} else self.finder.find_spec(name, *args)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import attn_np
attn_np.build("mha", d_model=6, num_heads=2)
try:
    import {package}
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    done = run(code)
    want = f"{missing} {package}: expected the package {missing}, got none; run pip install 'attn-parity[{extra}]'\n"
    assert (done.stdout, done.stderr) == (want, "")


@pytest.mark.parametrize("package", PACKAGES)
def test_names_of_a_package(package: str) -> None:
    module = import_module(package)
    assert dir(module) == module.__all__
    for variant in VARIANTS:
        name = contract.get(variant).Config.layer
        assert getattr(module, name) is getattr(import_module(f"{package}.{variant}"), name)
        assert getattr(module, name).Config is contract.get(variant).Config
    wrong = module.__all__[0][:-1]
    with pytest.raises(AttributeError, match=re.escape(f"got {wrong!r}; did you mean {module.__all__[0]!r}")):
        getattr(module, wrong)


# Contracts ------------------------------------------------------------------------------------------------------------


def class_of(package: str, variant: str) -> ast.ClassDef:
    layer = contract.get(variant).Config.layer
    tree = ast.parse(path_of(package, variant).read_text())
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == layer]
    assert found, f"{package}/{variant}.py defines no class {layer}"
    return found[0]


def annotated(node: ast.expr | None) -> tuple[str, str, bool]:
    """`Float[Array, "d h k"] | None` as ("Float", "d h k", True); other annotations as (text, "", optional)."""
    assert node is not None
    optional = isinstance(node, ast.BinOp) and ast.unparse(node.right) == "None"
    inner = node.left if isinstance(node, ast.BinOp) and optional else node
    if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Tuple):
        array, axes = inner.slice.elts
        if ast.unparse(array) == "Array" and isinstance(axes, ast.Constant):
            return ast.unparse(inner.value), str(axes.value), optional
    return ast.unparse(inner), "", optional


def over_examples(variant: str, pick: str) -> dict[str, list[Param | Arg | object]]:
    """What `own_params`, `arguments` or `children` give under each name, over the examples that have it."""
    found: dict[str, list[Param | Arg | object]] = {}
    for config in contract.examples(variant).values():
        for name, value in getattr(config, pick)().items():
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("package", PACKAGES)
def test_annotations_are_the_contracts_axes(package: str, variant: str) -> None:
    body = class_of(package, variant).body
    written = {n.target.id: annotated(n.annotation) for n in body if isinstance(n, ast.AnnAssign) for _ in [n.target]
               if isinstance(n.target, ast.Name)}  # fmt: skip
    params, children = over_examples(variant, "own_params"), over_examples(variant, "children")
    assert set(written) == set(params) | set(children)
    count = len(contract.examples(variant))
    for name, given in params.items():
        kind, axes, optional = written[name]
        assert {param.axes for param in given if isinstance(param, Param)} == {axes}, name
        assert kind == "Float", name
        assert optional or len(given) == count, f"{name} is missing in some examples: annotate it `| None`"


KINDS = {"array": "Float", "bias": "Float", "mask": "Bool", "keep": "Bool", "marks": "Bool", "tokens": "Int"}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("package", PACKAGES)
def test_the_forward_takes_the_contracts_arguments(package: str, variant: str) -> None:
    entry = next(n for n in class_of(package, variant).body if isinstance(n, ast.FunctionDef) and n.name in FORWARD)
    written = {arg.arg: annotated(arg.annotation) for arg in (*entry.args.args[1:], *entry.args.kwonlyargs)}
    declared = over_examples(variant, "arguments")
    assert [name for name in written if name in declared] == list(declared)
    assert "tape" in written
    for name, given in declared.items():
        for arg in given:
            assert isinstance(arg, Arg)
            kind, axes, optional = written[name]
            if kind in KINDS.values():
                assert kind == KINDS[arg.kind], name
                assert axes in (arg.axes, "..."), name
                assert (axes == "...") == (arg.kind in ("bias", "mask", "keep", "marks")), name
            assert optional == (arg.optional or arg.default is not None) or len(given) > 1, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_a_witness(variant: str) -> None:
    """Its test module computes the formula once more, by itself: three twins can share a misunderstanding."""
    source = (ROOT / "parity_tests" / f"test_{variant}.py").read_text(encoding="utf-8")
    found = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert "witness" in found
    assert [arg.arg for arg in found["witness"].args.args] == ["config", "inputs", "params"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_contracts_are_complete(variant: str) -> None:
    config = contract.get(variant).Config
    assert issubclass(config, Config)
    assert config.variant == variant
    for name in ("layer", "family", "title", "idea", "formula", "cost", "paper"):
        text = getattr(config, name)
        assert isinstance(text, str), name
        assert text.strip() == text != "", name
    for name in ("equals", "traps"):
        assert all(isinstance(text, str) and text.strip() for text in getattr(config, name)), name
    assert all(paper.strip() and ours.strip() for paper, ours in config.notation.items())
    documented = re.findall(r"^        (\w+): \S", config.__doc__ or "", flags=re.MULTILINE)
    assert documented == list(config.fields()), "the class docstring documents every field, in order"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("package", PACKAGES)
def test_twins_share_their_first_line(package: str, variant: str) -> None:
    """Every file of a variant opens with the same sentence."""
    lines = [
        (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        for path in (ROOT / "attn_np" / "contract" / f"{variant}.py", path_of(package, variant))
    ]
    assert lines[0] == lines[1] != ""


def test_layers_have_names_of_their_own() -> None:
    assert len(contract.layers()) == len(VARIANTS)


def letters(config: Config) -> set[str]:
    axes = [param.axes for param in config.params().values()]
    axes += [f"{param.inputs} {param.fan or ''}" for param in config.own_params().values()]
    axes += [arg.axes for arg in config.arguments().values()]
    return {letter for text in axes for letter in text.split()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_axes_come_from_one_alphabet(variant: str) -> None:
    for example, config in contract.examples(variant).items():
        unknown = (letters(config) | set(config.sizes())) - set(LETTERS)
        assert not unknown, f"{example}: {sorted(unknown)}"
        for name, param in config.own_params().items():
            assert len(set(param.axes.split())) == len(param.axes.split()), f"{name}: an axis letter stands twice"


def composite(sizes: Iterable[int]) -> set[int]:
    return {n for n in sizes if n > 3 and any(n % i == 0 for i in range(2, n))}


@pytest.mark.parametrize("variant", VARIANTS)
def test_examples_tell_axes_apart(variant: str) -> None:
    """Two to four examples; prime sizes, except products of two others; no two axes are the same in all of them."""
    examples = contract.examples(variant)
    assert 2 <= len(examples) <= 4
    assert len(set(examples.values())) == len(examples)
    for example, config in examples.items():
        assert type(config) is contract.get(variant).Config
        sizes = config.sizes()
        products = {a * b for (x, a), (y, b) in combinations(sizes.items(), 2)}
        assert composite(sizes.values()) <= products, f"{example}: a size that is neither prime nor a product: {sizes}"
    known = set.intersection(*(set(config.sizes()) for config in examples.values()))
    for pair in combinations(sorted(known), 2):
        told = any(config.sizes()[pair[0]] != config.sizes()[pair[1]] for config in examples.values())
        assert told or frozenset(pair) in SAME, f"{pair[0]} and {pair[1]} have the same size in every example"


@pytest.mark.parametrize("variant", VARIANTS)
def test_examples_use_every_field(variant: str) -> None:
    """An option that no example changes is an option that nothing tests."""
    config = contract.get(variant).Config
    for name in config.fields():
        values = {getattr(example, name) for example in contract.examples(variant).values()}
        assert len(values) > 1, f"{name} is {values} in every example"


@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_configs_survive_json(variant: str, example: str) -> None:
    config = contract.examples(variant)[example]
    assert contract.config(variant, **config.as_dict()) == config


# Generated files and tolerances ---------------------------------------------------------------------------------------


def test_generated_files_are_fresh() -> None:
    old = [str(path.relative_to(ROOT)) for path in sync.stale()]
    assert not old, f"{', '.join(old)}: stale; run `{sync.COMMAND}`"


def test_a_stale_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    monkeypatch.setattr(sync, "ROOT", tmp_path)
    assert sync.main(["--check"]) == 1
    assert capsys.readouterr().out.count(f"run `{sync.COMMAND}`") == 3
    assert not list(tmp_path.rglob("*.pyi"))
    assert sync.main([]) == 0
    stub = tmp_path / "attn_np" / "__init__.pyi"
    stub.write_text(stub.read_text().replace("int = 0", "int = 1"))
    assert sync.stale() == [stub]
    assert sync.main(["--frobnicate"]) == 2


@pytest.mark.parametrize("package", PACKAGES)
def test_stubs_name_what_the_package_offers(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.pyi").read_text())
    bound = {a.asname for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names if a.asname}
    bound |= {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert bound == set(import_module(package).__all__)
    built = [ast.unparse(n.returns) for n in tree.body if isinstance(n, ast.FunctionDef) and n.returns]
    assert built == [contract.get(name).Config.layer for name in (*VARIANTS, *contract.presets())]


# Written in pieces, so that this file does not match itself.
HAND_PICKED = re.compile(
    "all"
    r"close|is"
    r"close|app"
    r"rox\(|assert_"
    r"close|rt"
    r"ol|at"
    r"ol|pla"
    r"ces=|[<>]"
    r"=? *[0-9.]+e-"
)


def test_no_tolerance_is_picked_by_hand() -> None:
    """Agreement is judged by derived bounds: parity_tests/judge.py."""
    paths = [path for folder in ("parity_tests", "examples") for path in files(folder)]
    assert Path(__file__).resolve() in paths
    found = [
        f"{path.relative_to(ROOT)}:{i}: {line.strip()}"
        for path in paths
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if HAND_PICKED.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "np.test.assert_all" + "close(a, b)",
        "pytest.app" + "rox(3)",
        "a.is" + "close(b)",
        "f(a, b, rt" + "ol=1)",
        "error <" + " 1e-6",
        "assert a <=" + "2.5e-3",
        "assertAlmostEqual(a, b, pla" + "ces=3)",
    ],
)
def test_the_gate_closes(line: str) -> None:
    assert HAND_PICKED.search(line)
