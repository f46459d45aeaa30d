"""The rules that hold the house together: who may import whom, twins that read the same, complete contracts."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from inspect import cleandoc, signature
from itertools import combinations
from pathlib import Path

import pytest

from attn_np import contract
from attn_np.contract import Arg, Config, Param
from attn_np.contract._letters import LETTERS
from attn_np.contract._package import FUNCTIONS
from attn_np.contract._words import field_texts
from parity_tests.sync import generate, twins
from parity_tests.sync.tables import with_table
from parity_tests.tests.transforms import tables

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("attn_np", "attn_jax", "attn_torch")
VARIANTS = contract.variants()
EXAMPLES = [(variant, example) for variant in VARIANTS for example in contract.examples(variant)]

# Axes of the same size by what they mean: the next state is as wide as the state.
SAME = {frozenset("ea")}


def path_of(package: str, module: str) -> Path:
    place = ROOT / package / module.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


# Twins ----------------------------------------------------------------------------------------------------------------


SOURCE = '''"""An example."""

import numpy as np

from attn_np.ops import exp, dispatches_on_array_type, tanh
from attn_np.ops.vjp import Grads, tanh_vjp
from attn_np.contract.example import Config
from attn_np.gru import cell, cell_vjp


@dispatches_on_array_type
def shared(x):
    return exp(x)


def helper_of_a_helper(x):
    return x


def backward_helper(x):
    return np.sum(helper_of_a_helper(x))


def shared_vjp(x, dy):
    return backward_helper(x) * dy


class Example(Layer[Config]):
    """An example."""

    def __call__(self, x):
        options = {}
        options["tape"] = x  # only in NumPy: it has a tape
        return cell(tanh(shared(x)), **options)

    def part_vjp(self, x):
        return cell_vjp(x)

    def plain(self):
        return 1

    def vjp(self, tape, dy) -> Grads:
        return tanh_vjp(dy)
'''
TWIN = '''"""An example."""

from attn_np.contract.example import Config
from attn_torch.gru import cell
from attn_torch.ops import exp, tanh


def shared(x):
    return exp(x)


class Example(Layer[Config]):
    """An example."""

    def forward(self, x):
        options = {}
        return cell(tanh(shared(x)), **options)

    def plain(self):
        return 1
'''


def test_a_twin_is_its_numpy_file_without_the_backward() -> None:
    names = twins.tidied({f"{tree}/example.py": twins.twin(SOURCE, tree) for tree in twins.TREES})
    assert names["attn_torch/example.py"] == TWIN
    flax = names["attn_jax/example.py"]
    assert "from attn_jax.gru import cell\n" in flax
    assert "def __call__(self, x):" in flax


def test_every_module_of_two_trees_is_a_twin_or_their_own() -> None:
    """A file that is neither is forgotten by `make sync`."""
    for tree in twins.TREES:
        found = {path.relative_to(ROOT / tree).with_suffix("").as_posix() for path in files(tree)}
        own = {"__init__", "drop_in", "attention/row_blocks", "frame/build", "frame/layer", "normalizers/support"}
        own |= {name for name in found if name.startswith(("kernels/", "ops/", "parallel/"))} - {"kernels/__init__"}
        assert found - own == set(twins.modules())


ROOMS = ("ops", "ops.specs", "frame.layer", "attention.row_blocks", "normalizers.support")  # by hand in every tree


def names_of(package: str, room: str) -> set[str]:
    return set(vars(import_module(f"{package}.{room}")))


@pytest.mark.parametrize("room", ROOMS)
def test_dialects_take_the_same_arguments(room: str) -> None:
    """A function that two trees define takes the same arguments in the same order with the same defaults."""
    defined: dict[str, dict[str, str]] = {}
    for package in PACKAGES:
        for node in ast.parse(path_of(package, room).read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for arg in (*node.args.args, *node.args.kwonlyargs):
                    arg.annotation = None
                defined.setdefault(node.name, {})[package] = ast.unparse(node.args)
    different = {name: found for name, found in defined.items() if len(set(found.values())) > 1}
    assert not different


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


@pytest.mark.parametrize("package", PACKAGES)
def test_a_tree_names_its_modules_in_full(package: str) -> None:
    """A copy with a planted bug follows `attn_np.ops`, but not a module that is taken from the package itself."""
    taken = {
        alias.name
        for path in files(package)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == package
        for alias in node.names
    }
    assert taken <= {"contract"}  # which no copy has


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


# What a variant's file may import beside the project's own.
STANDARD = ("jaxtyping", "math", "typing", "functools", "collections.abc")


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_take_every_operation_from_the_dialect(variant: str) -> None:
    """NumPy's files may use NumPy in the backward pass; a twin that needs it would import a name it has not."""
    shared = {room: set.intersection(*(names_of(package, room) for package in PACKAGES)) for room in ROOMS}
    offered = {f"attn_np.{room}": names for room, names in shared.items()}
    rooms = {f"attn_np.{file.replace('/', '.')}" for file in (*twins.modules(), "frame/backward", "ops/vjp")}
    path = path_of("attn_np", variant)
    for module, name in imports(path):
        allowed = module in STANDARD or under(module, "attn_np.contract")
        allowed = allowed or module in rooms
        allowed = allowed or name in (*offered.get(module, ()), "attend_in_row_blocks_vjp") or module == "numpy"
        assert allowed, f"{path.relative_to(ROOT)} imports {name or module} from {module}; let the dialect export it"


@pytest.mark.parametrize("tree", twins.TREES)
def test_twins_use_no_numpy(tree: str) -> None:
    for variant in VARIANTS:
        assert "numpy" not in {module for module, _ in imports(path_of(tree, variant))}, f"{tree}/{variant}.py"


def circle(paths: Iterable[Path], root: Path = ROOT) -> list[str]:
    """Modules that import each other in a circle, in that order; none where there is no circle."""
    needs: dict[str, set[str]] = {}
    for path in paths:
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        needs[name] = full_names(path) | {module for module, _ in imports(path)}
    graph = {name: {found for found in some if found in needs and found != name} for name, some in needs.items()}
    for names in graph.values():  # a package stands for its own imports only where it is what is imported
        names -= {n for n in names if any(other.startswith(f"{n}.") for other in names)}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return error.args[1]
    return []


def late(path: Path) -> list[str]:
    """Modules of ours that a file imports inside a function; not trees in the tool, whose frameworks may be absent."""
    inner = [n for d in ast.walk(ast.parse(path.read_text())) if isinstance(d, ast.FunctionDef) for n in ast.walk(d)]
    found = [n.module or "" for n in inner if isinstance(n, ast.ImportFrom)]
    found += [a.name for n in inner if isinstance(n, ast.Import) for a in n.names]
    ours = ("attn_np", "parity_tests") if path in TOOL else PACKAGES
    return [module for module in found if under(module, *ours)]


# The packages' own lazy loading, which imports contracts on first use; commands, which show their help at once; and the
# pytest plugin, which every pytest on the machine loads.
MAY_IMPORT_LATE = (
    "attn_np/contract/_package.py",
    "parity_tests/commands/*.py",
    "parity_tests/plugin.py",
    "parity_tests/ports/*_port.py",  # what imports a framework, when a candidate of it comes
)


@pytest.mark.parametrize("package", (*PACKAGES, "parity_tests"))
def test_no_import_goes_round_in_a_circle(package: str) -> None:
    """Nor does one hide inside a function: a module imports what it needs at its top."""
    paths = files(package) if package in PACKAGES else TOOL
    assert not (found := circle(paths)), " -> ".join(found)
    for path in paths:
        name = path.relative_to(ROOT)
        assert any(name.match(pattern) for pattern in MAY_IMPORT_LATE) or not late(path), f"{name}: {late(path)}"


def test_a_circle_is_seen(tmp_path: Path) -> None:
    """Inside functions too, and through a package."""
    texts = {
        "a/__init__.py": "",
        "a/one.py": "def f():\n    from a.two import g\n",
        "a/two.py": "import a.three\n",
        "a/three.py": "from a import one\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    paths = sorted(tmp_path.rglob("*.py"))
    assert set(circle(paths, tmp_path)) == {"a.one", "a.two", "a.three"}
    (tmp_path / "a/three.py").write_text("import a\n")
    assert circle(paths, tmp_path) == []


TESTS = "parity_tests.tests"
TOOL = [path for path in files("parity_tests") if not path.is_relative_to(ROOT / TESTS.replace(".", "/"))]


def test_the_tool_imports_no_test() -> None:
    """What it needs of the tests would be missing where it is installed."""
    wrong = [path for path in TOOL if any(under(name, TESTS) for name in {*full_names(path), *strings(path)})]
    assert not wrong, wrong


def test_packages_and_tool_are_in_pieces() -> None:
    """A file does one job, in under 500 lines; a kernel in under 600."""
    paths = [*TOOL, *(path for package in PACKAGES for path in files(package))]
    lengths = {path.relative_to(ROOT): len(path.read_text("utf-8").splitlines()) for path in paths}
    long = {str(path): n for path, n in lengths.items() if n >= (600 if "kernels" in path.parts else 500)}
    assert not long, long


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_making_a_layer_loads_what_it_needs() -> None:
    """Not the contracts of all variants, nor what reads and writes weight files."""
    made = 'import sys, attn_np; attn_np.build("mha", d_model=8, num_heads=2); '
    loaded = run(made + "print(*(name for name in sys.modules if name.startswith('attn_np')))").stdout.split()
    assert "attn_np.mha" in loaded and len(loaded) <= 45, loaded
    assert not {"attn_np.contract.gru", "attn_np.weights._safetensors"} & set(loaded)


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
    fix = f"run pip install '.[{extra}]' in a clone of attn-parity"
    want = f"{missing} {package}: expected the package {missing}, got none; {fix}\n"
    assert (done.stdout, done.stderr) == (want, "")


def test_no_advice_names_a_project_that_no_index_has() -> None:
    """What to install is said in one place, and installed from a clone."""
    name = "attn-parity" + "["  # in two pieces, so that this file does not match itself
    folders = [
        path for folder in (*PACKAGES, "parity_tests", "benchmarks", "examples", "docs") for path in (ROOT / folder,)
    ]
    paths = [path for folder in folders for kind in ("*.py", "*.md") for path in folder.rglob(kind)]
    assert len(paths) > 400
    assert not [path for path in (*paths, *ROOT.glob("*.md")) if name in path.read_text("utf-8")]


@pytest.mark.parametrize("package", PACKAGES)
def test_names_of_a_package(package: str) -> None:
    module = import_module(package)
    assert dir(module) == module.__all__
    for variant in VARIANTS:
        name = contract.get(variant).Config.class_name
        assert getattr(module, name) is getattr(import_module(f"{package}.{variant}"), name)
        assert getattr(module, name).Config is contract.get(variant).Config
    wrong = module.__all__[0][:-1]
    with pytest.raises(AttributeError, match=re.escape(f"got {wrong!r}; did you mean {module.__all__[0]!r}")):
        getattr(module, wrong)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_one_signature_and_a_backward(name: str) -> None:
    """Names, order and defaults are the same in every tree, and in NumPy those of floats can be differentiated."""
    here, *others = (getattr(import_module(package), name) for package in PACKAGES)
    found = [[(p.name, p.kind, p.default) for p in signature(f).parameters.values()] for f in (here, *others)]
    assert found[0] == found[1] == found[2]
    assert all(f.__doc__ == here.__doc__ for f in others)
    assert callable(vars(here).get("vjp")) == (name not in ("alibi_slopes", "relative_buckets", "rotary_angles"))


# Contracts ------------------------------------------------------------------------------------------------------------


def class_of(package: str, variant: str) -> ast.ClassDef:
    layer = contract.get(variant).Config.class_name
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


FORWARD = ("__call__", "forward")
KINDS = {"array": "Float", "bias": "Float", "mask": "Bool", "keep": "Bool", "marks": "Bool", "integers": "Int"}


def options_of(package: str, entry: ast.FunctionDef) -> dict[str, ast.expr]:
    """What a call takes as `**options: Unpack[...]`, by name: the annotations of that class and of its bases."""
    classes = {
        n.name: n
        for n in ast.parse((ROOT / package / "frame/call.py").read_text(encoding="utf-8")).body
        if isinstance(n, ast.ClassDef)
    }

    def fields(name: str) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for base in classes[name].bases:
            found |= fields(base.id) if isinstance(base, ast.Name) and base.id in classes else {}
        own = [n for n in classes[name].body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        return found | {n.target.id: n.annotation for n in own if isinstance(n.target, ast.Name)}

    if entry.args.kwarg is None:
        return {}
    unpacked = entry.args.kwarg.annotation
    assert isinstance(unpacked, ast.Subscript) and isinstance(unpacked.slice, ast.Name)
    return fields(unpacked.slice.id)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("package", PACKAGES)
def test_the_forward_takes_the_contracts_arguments(package: str, variant: str) -> None:
    entry = next(n for n in class_of(package, variant).body if isinstance(n, ast.FunctionDef) and n.name in FORWARD)
    by_position = {arg.arg: arg.annotation for arg in entry.args.args[1:]}
    by_name = {arg.arg: arg.annotation for arg in entry.args.kwonlyargs} | options_of(package, entry)
    written = {name: annotated(annotation) for name, annotation in (by_position | by_name).items()}
    declared = over_examples(variant, "arguments")
    assert list(by_position) == list(declared)[: len(by_position)]
    assert set(declared) <= set(written)
    assert "tape" in written
    for name, given in declared.items():
        for arg in given:
            assert isinstance(arg, Arg)
            kind, axes, optional = written[name]
            if kind in KINDS.values():
                assert kind == KINDS[arg.kind], name
                assert axes in (arg.axes, "..."), name
                assert (axes == "...") == (arg.kind in ("bias", "mask", "keep", "marks")), name
            may_lack = arg.optional or arg.falls_back_to is not None or arg.cached
            assert optional == may_lack or len(given) > 1, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_a_witness(variant: str) -> None:
    """Its test module computes the formula once more, by itself: three twins can share a misunderstanding."""
    source = (ROOT / "parity_tests/tests/variants" / f"test_{variant}.py").read_text(encoding="utf-8")
    found = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert "witness" in found
    assert [arg.arg for arg in found["witness"].args.args] == ["config", "inputs", "params"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_contracts_are_complete(variant: str) -> None:
    config = contract.get(variant).Config
    assert issubclass(config, Config)
    assert config.variant == variant
    for name in ("class_name", "family", "title", "idea", "formula", "cost", "paper"):
        text = getattr(config, name)
        assert isinstance(text, str), name
        assert text.strip() == text != "", name
    for name in ("equals", "traps"):
        assert all(isinstance(text, str) and text.strip() for text in getattr(config, name)), name
    assert all(paper.strip() and ours.strip() for paper, ours in config.notation.items())
    documented = re.findall(r"^    (\w+): \S", config.__doc__ or "", flags=re.MULTILINE)
    assert documented == list(config.fields()), "the class docstring documents every field, in order"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_field_is_described_once(variant: str) -> None:
    """Where it means what a base says, the base alone says it."""
    config, tree = (
        contract.get(variant).Config,
        ast.parse((ROOT / "attn_np" / "contract" / f"{variant}.py").read_text()),
    )
    (node,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config")
    inherited = field_texts(cleandoc(config.__mro__[1].__doc__ or ""))
    written = field_texts(ast.get_docstring(node) or "")
    assert not [name for name, text in written.items() if inherited.get(name) == text]


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
    assert len(contract.variant_by_class_name()) == len(VARIANTS)


def letters(config: Config) -> set[str]:
    axes = [param.axes for param in config.params().values()]
    axes += [param.fan_axes for param in config.own_params().values()]
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
    """Two to five examples; prime sizes, except products of two others; no two axes are the same in all of them."""
    examples = contract.examples(variant)
    assert 2 <= len(examples) <= 5
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
    made = twins.twins() | generate.stubs_and_tables() | tables.page()
    old = [str(path.relative_to(ROOT)) for path in generate.stale(made)]
    assert not old, f"{', '.join(old)}: stale; run `{generate.COMMAND}`"


def test_a_stale_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for folder in (*PACKAGES, "attn_np/contract"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "twins", lambda: {tmp_path / "attn_jax" / "mha.py": "a twin\n"})
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out.count(f"run `{generate.COMMAND}`") == 5
    assert not list(tmp_path.rglob("*.pyi"))
    assert generate.main([]) == 0
    stub = tmp_path / "attn_np" / "__init__.pyi"
    stub.write_text(stub.read_text().replace("seed: int | None = 0", "seed: int | None = 1"))
    assert list(generate.stale(generate.stubs_and_tables())) == [stub]
    assert generate.main(["--frobnicate"]) == 2


def test_a_table_stands_between_its_lines() -> None:
    """What a person wrote around a table stays; a page that lost the lines is refused."""
    begin, end = "<!-- letters: written by `make sync` -->\n", "<!-- end of letters -->\n"
    assert with_table(f"before\n{begin}old\n{end}after\n", "letters", "| new |") == (
        f"before\n{begin}\n| new |\n\n{end}after\n"
    )
    with pytest.raises(LookupError, match="end of letters"):
        with_table(f"before\n{begin}old\n", "letters", "| new |")


@pytest.mark.parametrize("package", PACKAGES)
def test_stubs_name_what_the_package_offers(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.pyi").read_text())
    bound = {a.asname for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names if a.asname}
    bound |= {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    assert {name for name in bound if not name.startswith("_")} == set(import_module(package).__all__)
    built = [ast.unparse(n.returns) for n in tree.body if isinstance(n, ast.FunctionDef) and n.returns]
    assert built == [contract.get(name).Config.class_name for name in (*VARIANTS, *contract.presets())]


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
    r"=? *[0-9.]+(e|\*\*)-"
)
# Behind a comparison that judges no agreement, with the reason.
NO_TOLERANCE = "  # no tolerance: "


def test_no_tolerance_is_picked_by_hand() -> None:
    """Agreement is judged by derived bounds: parity_tests/judge/judging.py."""
    paths = [path for folder in ("parity_tests", "examples") for path in files(folder)]
    assert Path(__file__).resolve() in paths
    found = [
        f"{path.relative_to(ROOT)}:{i}: {line.strip()}"
        for path in paths
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if HAND_PICKED.search(line) and NO_TOLERANCE not in line
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
        "error <" + "= 2.0**-20 * size",
        "assert a <=" + "2.5e-3",
        "assertAlmostEqual(a, b, pla" + "ces=3)",
    ],
)
def test_the_gate_closes(line: str) -> None:
    assert HAND_PICKED.search(line)
