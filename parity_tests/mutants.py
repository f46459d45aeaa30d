"""Planted bugs: each is one edit of the source, in one tree, and the judge must see it.

A mutant runs in a copy of the tree that lives under a name of its own in memory; nothing on disk changes. The reference
stays whole. Every mistake here is one that people really make: see the traps in the documentation.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from parity_tests.candidates import Outcome, run_jax, run_numpy, run_torch
from parity_tests.cases import Case, draw
from parity_tests.error_arrays import precision_of
from parity_tests.judge import Row, expected, judge_ends, judge_tape

TREES = ("attn_np", "attn_jax", "attn_torch")
_numbers = count()


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    Attributes:
        name: what went wrong, in words.
        file: of the tree, such as "_attend.py".
        old, new: the edit; `old` stands exactly once. `{np}` and `{where}` are the tree's own words.
        variant, example, call, dtype: the case that must reveal it.
        trees: where it is planted; the hand-written backward exists in NumPy only.
        many: the text stands more than once and every place is edited.
        raises: trees in which the bug shows itself by an exception; elsewhere an exception is no evidence.
    """

    name: str
    file: str
    old: str
    new: str
    variant: str
    example: str
    call: str = "full"
    dtype: str = "float64"
    trees: tuple[str, ...] = TREES
    many: bool = False
    raises: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    @property
    def case(self) -> Case:
        return Case(self.variant, self.example, self.call, self.dtype)


class _Copy(MetaPathFinder, Loader):
    """Finds and runs the modules of a tree's copy, one of its files edited."""

    def __init__(self, tree: str, alias: str, file: str, old: str, new: str, many: bool) -> None:
        spec = find_spec(tree)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"mutants: expected the package {tree}, got none; install it")
        self.root = Path(spec.submodule_search_locations[0])
        self.tree, self.alias, self.file, self.old, self.new, self.many = tree, alias, file, old, new, many

    def path(self, name: str) -> Path:
        parts = name.split(".")[1:]
        return self.root.joinpath(*parts).with_suffix(".py") if parts else self.root / "__init__.py"

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.split(".")[0] != self.alias or not self.path(fullname).exists():
            return None
        return spec_from_loader(fullname, self, is_package=fullname == self.alias)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = self.path(module.__name__)
        source = path.read_text(encoding="utf-8")
        if path.name == self.file:
            found = source.count(self.old)
            if found == 0 or (found > 1 and not self.many):
                raise ValueError(
                    f"mutants: expected {self.old!r} once in {path.name}, got {found} times; mend the mutant"
                )
            source = source.replace(self.old, self.new)
        # The copy takes its own files, but the contract and the weights are shared, as they are in a real tree.
        source = re.sub(rf"\b{self.tree}\.(?!contract|weights)", f"{self.alias}.", source)
        exec(compile(source, f"<copy of {path.name}>", "exec"), module.__dict__)


@contextmanager
def planted(mutant: Mutant, tree: str) -> Iterator[str]:
    """A copy of a tree with one bug in it, importable under the name this gives."""
    alias = f"{tree}_copy{next(_numbers)}"
    array = {"attn_np": "np", "attn_jax": "jnp", "attn_torch": "torch"}[tree]
    where = "np.where" if tree == "attn_np" else "where"
    old, new = (text.replace("{np}", array).replace("{where}", where) for text in (mutant.old, mutant.new))
    finder = _Copy(tree, alias, mutant.file, old, new, mutant.many)
    sys.meta_path.insert(0, finder)
    try:
        yield alias
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n == alias or n.startswith(f"{alias}.")]:
            del sys.modules[name]


def outcome_of(tree: str, alias: str, case: Case, taped: bool) -> Outcome:
    drawn = draw(case)
    if tree == "attn_np":
        return run_numpy(case, drawn, taped, tree=alias)
    if tree == "attn_torch":
        return run_torch(case, drawn, taped, tree=alias)
    import jax

    with jax.disable_jit():  # op by op: the small pieces are compiled once for all mutants
        return run_jax(case, drawn, taped, tree=alias, jit=False)


def evidence(mutant: Mutant, tree: str) -> Row | str | None:
    """What gives a mutant away: the first verdict that fails, the text of what it raised, or None if it survived."""
    case = mutant.case
    p = precision_of(case.dtype)
    with planted(mutant, tree) as alias:
        try:
            taped = outcome_of(tree, alias, case, True)
            rows = list(judge_tape(case, mutant.name, draw(case), taped, p))
            rows += judge_ends(case, mutant.name, taped, *expected(case, p))
        except Exception as error:
            if tree not in mutant.raises or str(error).startswith("mutants:"):
                raise
            return f"{type(error).__name__}: {error}"
    return next((row for row in rows if not row.ok), None)


ATTEND, CORE, VJP = "_attend.py", "_core.py", "_vjp.py"
NUMPY = ("attn_np",)

MUTANTS = (
    # Scores
    Mutant("scale missing", ATTEND, ", q), q, k) * factor)", ", q), q, k))", "mha", "cross"),
    Mutant("scale without the root", ATTEND, "1 / sqrt(q.shape[-1])", "1 / q.shape[-1]", "mha", "cross", many=True),
    Mutant("scale from the value width", ATTEND, "sqrt(q.shape[-1])", "sqrt(v.shape[-1])", "mha", "cross", many=True),
    Mutant(
        "configured scale ignored",
        "mha.py",
        "scale=c.scale, softcap=c.softcap,\n",
        "softcap=c.softcap,\n",
        "mha",
        "wide",
    ),
    Mutant("softcap without its rescale", ATTEND, "capped=softcap * tanh(", "capped=tanh(", "mha", "capped"),
    Mutant("softcap ignored", ATTEND, "capped=softcap * tanh(scores / softcap)", "capped=scores", "mha", "capped"),
    Mutant("bias subtracted", ATTEND, "scores + bias", "scores - bias", "mha", "split"),
    Mutant("additive score without tanh", "additive.py", "features=tanh(q[", "features=(q[", "additive", "cross"),
    # Masks
    Mutant("mask ignored", ATTEND, "softmax(scores, allowed,", "softmax(scores, None,", "mha", "cross"),
    Mutant("mask inverted", ATTEND, "softmax(scores, allowed,", "softmax(scores, ~allowed,", "mha", "cross"),
    Mutant(
        "hidden scores filled with -1e9",
        CORE,
        "scores = {where}(allowed, scores, -{np}.inf)",
        "scores = {where}(allowed, scores, -1e9)",
        "mha",
        "cross",
    ),
    Mutant(
        "hidden scores filled with -1e-25",
        CORE,
        "scores = {where}(allowed, scores, -{np}.inf)",
        "scores = {where}(allowed, scores, -1e-25)",
        "mha",
        "cross",
    ),
    Mutant(
        "row without a key is NaN",
        CORE,
        "where(total == 0, 1.0, total)",
        "where(total == 0, total, total)",
        "mha",
        "cross",
    ),
    Mutant("causal off by one", CORE, "+ (s - t))", "+ (s - t) + 1)", "mha", "wide"),
    Mutant("causal aligned at the first key", CORE, "+ (s - t))", ")", "mha", "wide"),
    Mutant("causal ignored", CORE, "right = 0 if causal else right", "right = right", "mha", "wide"),
    Mutant("window one key too narrow", CORE, "ahead >= -left", "ahead > -left", "mha", "capped"),
    Mutant("window without its right side", CORE, "near & (ahead <= right)", "near", "mha", "capped"),
    Mutant("hidden keys not selected away", ATTEND, 'hide(per_head("bhts->bshv", q), allowed, v)', "v", "mha", "cross"),
    # Normalising and dropout
    Mutant(
        "softmax over the queries",
        ATTEND,
        "softmax(scores, allowed, contract.AXES[normalize_over])",
        "softmax(scores, allowed, -2)",
        "mha",
        "cross",
    ),
    Mutant(
        "scale after the softmax",
        ATTEND,
        "probs=softmax(scores, allowed, contract.AXES[normalize_over]))",
        "probs=softmax(scores / factor, allowed, contract.AXES[normalize_over]) * factor)",
        "mha",
        "cross",
    ),
    Mutant(
        "product of scores that no softmax saw",
        ATTEND,
        "probs=softmax(scores, allowed, contract.AXES[normalize_over]))",
        "probs=scores)",
        "mha",
        "cross",
    ),
    Mutant(
        "padding mask on the rows of the queries",
        ATTEND,
        "softmax(scores, allowed,",
        "softmax(scores, allowed[..., :1],",
        "mha",
        "cross",
    ),
    Mutant(
        "additive softmax over the wrong axis",
        "additive.py",
        "softmax(scores, mask, AXES[c.normalize_over])",
        'softmax(scores, mask, AXES["queries" if c.normalize_over == "keys" else "keys"])',
        "additive",
        "cross",
    ),
    Mutant("dropout without its rescale", CORE, "weights / (1.0 - rate)", "weights", "mha", "cross"),
    Mutant(
        "dropout mask inverted",
        CORE,
        "where(keep, weights / (1.0 - rate), 0.0)",
        "where(keep, 0.0, weights / (1.0 - rate))",
        "mha",
        "cross",
    ),
    Mutant("dropout after the product", ATTEND, "kept=dropout(probs, keep, rate)", "kept=probs", "mha", "cross"),
    # Projections
    Mutant(
        "bias of a projection dropped",
        CORE,
        "return y if bias is None else y + widen(bias)",
        "return y",
        "mha",
        "split",
    ),
    Mutant("bias of the keys dropped", "mha.py", "key, self.w_k, self.b_k)", "key, self.w_k, None)", "mha", "split"),
    Mutant(
        "keys projected with the weights of the queries",
        "mha.py",
        'q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)',
        'q = linear("btd,dhk->bthk", query, self.w_k, self.b_q)',
        "mha",
        "split",
    ),
    Mutant(
        "q and k swapped in the joint projection",
        "fused_qkv.py",
        "q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv",
        "q, k, v = qkv[:, :, 1], qkv[:, :, 0], qkv",
        "fused_qkv",
        "heads",
    ),
    Mutant(
        "16-bit inputs not widened",
        CORE,
        'dtype_name(x) in ("float16", "bfloat16") else x',
        "dtype_name(x) in () else x",
        "mha",
        "cross",
        dtype="bfloat16",
        raises=("attn_np",),
    ),
    # Recurrence
    Mutant(
        "reset applied to the state, not to the product",
        "gru.py",
        "x_gates[:, 2] + r * h_gates[:, 2]",
        "r * x_gates[:, 2] + h_gates[:, 2]",
        "gru",
        "stacked",
    ),
    Mutant(
        "gates in another order",
        "gru.py",
        "z = sigmoid(x_gates[:, 1] + h_gates[:, 1])",
        "z = sigmoid(x_gates[:, 0] + h_gates[:, 0])",
        "gru",
        "stacked",
    ),
    Mutant("update gate the other way round", CORE, "a + z * (b - a)", "b + z * (a - b)", "gru", "stacked"),
    Mutant(
        "initial state ignored",
        "gru.py",
        "if state is None else state\n",
        "if state is None else 0.0 * state\n",
        "gru",
        "stacked",
    ),
    Mutant(
        "decoder's softmax over its one query",
        "seq2seq.py",
        "probs = softmax(scores, allowed)",
        "probs = softmax(scores[:, None], None, 1)[:, 0]",
        "seq2seq",
        "words",
    ),
    Mutant(
        "decoder asks with its first layer",
        "seq2seq.py",
        'einsum("bd,de->be", state[-1], w["q"])',
        'einsum("bd,de->be", state[0], w["q"])',
        "seq2seq",
        "words",
    ),
    Mutant(
        "returned state cut from the graph",
        "gru.py",
        "x, stack(last)",
        "x, stack(last).detach()",
        "gru",
        "stacked",
        trees=("attn_torch",),
    ),
    Mutant(
        "gradient of the returned state lost",
        "gru.py",
        "record(tape, dlast=widen(dlast))",
        "0.0 * record(tape, dlast=widen(dlast))",
        "gru",
        "stacked",
        trees=("attn_np",),
    ),
    # Backward, by hand
    Mutant(
        "softmax backward without its sum",
        VJP,
        "dprobs - np.sum(probs * dprobs, axis=axis, keepdims=True)",
        "dprobs",
        "mha",
        "cross",
        trees=NUMPY,
    ),
    Mutant(
        "softmax backward over the wrong axis",
        VJP,
        "np.sum(probs * dprobs, axis=axis",
        "np.sum(probs * dprobs, axis=-2",
        "mha",
        "cross",
        trees=NUMPY,
    ),
    Mutant("dropout backward without its rescale", VJP, "dkept / (1.0 - rate)", "dkept", "mha", "cross", trees=NUMPY),
    Mutant(
        "dropout backward ignored",
        VJP,
        "return dkept if keep is None else where(keep, dkept / (1.0 - rate), 0.0)",
        "return dkept",
        "mha",
        "cross",
        trees=NUMPY,
    ),
    Mutant(
        "tanh backward without the square", VJP, "dy * (1.0 - y * y)", "dy * (1.0 - y)", "mha", "capped", trees=NUMPY
    ),
    Mutant("sigmoid backward wrong", VJP, "dy * y * (1.0 - y)", "dy * y * (1.0 + y)", "gru", "stacked", trees=NUMPY),
    Mutant(
        "value gradient from the weights before dropout",
        ATTEND,
        ", q), kept, v, dcontext)",
        ", q), probs, v, dcontext)",
        "mha",
        "cross",
        trees=NUMPY,
    ),
    Mutant(
        "scale missing in the backward",
        ATTEND,
        "q, k, dscores * factor)",
        "q, k, dscores)",
        "mha",
        "cross",
        trees=NUMPY,
    ),
    Mutant(
        "softcap missing in the backward",
        ATTEND,
        'dscores = tanh_vjp(tape["capped"] / softcap, dscores)',
        "dscores = dscores",
        "mha",
        "capped",
        trees=NUMPY,
    ),
    Mutant(
        "one path of a shared input lost",
        VJP,
        '{"query": total(dquery, dkey, dvalue)}',
        '{"query": total(dquery, dkey)}',
        "mha",
        "split",
        call="plain",
        trees=NUMPY,
    ),
    Mutant(
        "value path of a shared key lost",
        VJP,
        '"key": total(dkey, dvalue)',
        '"key": dkey',
        "mha",
        "split",
        call="shared",
        trees=NUMPY,
    ),
    Mutant(
        "bias gradient not summed over its copies",
        VJP,
        "np.sum(dy, axis=axes).reshape(shape) if axes else dy",
        "dy[(0,) * len(range(dy.ndim - len(shape)))] if axes else dy",
        "mha",
        "split",
        trees=NUMPY,
    ),
    Mutant(
        "reset gate forgotten in the recurrent gradient",
        "gru.py",
        "dx_gates[..., 2:, :] * r[..., None, :]",
        "dx_gates[..., 2:, :]",
        "gru",
        "stacked",
        trees=NUMPY,
    ),
    Mutant(
        "gradient around the gates lost",
        "gru.py",
        'return daround + einsum("bfa',
        'return einsum("bfa',
        "gru",
        "stacked",
        trees=NUMPY,
    ),
)
