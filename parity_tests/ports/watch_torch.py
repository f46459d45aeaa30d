"""PyTorch: every operation in a narrower type than float64 is done again in float64, and compared."""

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from parity_tests.judge.candidates import from_torch
from parity_tests.ports.watch import Watch, holder, place, written

WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
WIDE |= dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64)
UNFILLED = ("empty", "new_empty")  # what they give is no number yet


def narrower(x: Any) -> bool:
    """Whether a tensor holds numbers of fewer digits than float64."""
    return torch.is_tensor(x) and x.dtype in WIDE


def words_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


class Watching(TorchDispatchMode):
    """Adds to a watch each operation in a narrower type whose result is not that of float64.

    What such an operation is given is exact, or was told already: as a constant by its digits, as the result of an
    operation by that operation.

    Attributes:
        watch: gets what is seen.
        wide: whether narrower types are looked for.
        backward: the backward pass runs.
        crossings: where float64 goes over to a narrower type and loses nothing; the gradients there may.
        made: the storages of what operations gave.
    """

    def __init__(self, watch: Watch, wide: bool) -> None:
        super().__init__()
        self.watch, self.wide, self.backward = watch, wide, False
        self.crossings: dict[str, None] = {}
        self.made: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        takes = [x for x in tree_leaves((args, kwargs)) if narrower(x)]
        again = self.widened(func, args, kwargs) if takes and self.wide else (args, kwargs)
        out = func(*args, **kwargs)
        gives = [x for x in tree_leaves(out) if narrower(x)]
        if self.watch.hidden is not None and not self.backward and not adds(func, args):
            for x in tree_leaves((args, out)):
                if torch.is_tensor(x) and x.is_floating_point():
                    self.watch.look(from_torch(x).astype(np.float64))
        if self.wide and (takes or gives):
            self.watch.suspected = True
            self.judge(func, (args, kwargs), again, out, takes, gives)
        return out

    def widened(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments in float64; copies, where the operation writes into them."""
        copied = func._schema.is_mutable

        def wide(x: Any) -> Any:
            return x.to(WIDE[x.dtype]) if narrower(x) else x.clone() if copied and torch.is_tensor(x) else x

        return tree_map(wide, (args, kwargs))

    def judge(
        self, func: Any, given: Any, again: tuple[Any, Any], out: Any, takes: list[Any], gives: list[Any]
    ) -> None:
        """Compare a result with that of the same operation in float64."""
        strange = [x for x in takes if self.key(x) not in self.made and not written(from_torch(x))]
        for x in strange:
            self.tell(f"a constant of {words_of(x.dtype)}")
        written_into = takes if func._schema.is_mutable else []
        self.made |= {self.key(x): x for x in (*gives, *written_into, *strange)}
        name, types = func.overloadpacket.__name__, [words_of(x.dtype) for x in (*takes, *gives)]
        if name.startswith(UNFILLED) or (is_view(func) and func is not torch.ops.aten.view.dtype):
            return
        label = f"{name} in {' and '.join(dict.fromkeys(types))}"
        if torch.Tag.nondeterministic_seeded in func.tags or not repeated(func, again, given, out):
            self.tell(label)
        elif gives and any(torch.is_tensor(x) and x.dtype == torch.float64 for x in tree_leaves(given)):
            self.crossings[f"{label}{where()}"] = None

    def key(self, x: Any) -> int:
        return x.untyped_storage()._cdata

    def tell(self, label: str) -> None:
        if not self.backward:
            self.watch.forward[f"{label}{where()}"] = None
        else:
            self.watch.backward |= self.crossings or {f"{label} in the backward pass": None}


def where() -> str:
    """The candidate's line and the module that it belongs to, in words."""
    line, module = place(), holder((torch.nn.Module,))
    words = [line, f"in {type(module).__name__}" if module is not None and line else ""]
    return f" ({', '.join(filter(None, words))})" if line else ""


def is_view(func: Any) -> bool:
    """Whether an operation only looks at its argument in another way."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def adds(func: Any, args: Any) -> bool:
    """Whether it adds two tensors: two masks that hide the same key hide it by twice their number."""
    return func.overloadpacket.__name__.startswith(("add", "sub")) and sum(map(torch.is_tensor, args)) > 1


def repeated(func: Any, again: tuple[Any, Any], given: Any, out: Any) -> bool:
    """Whether an operation, done in float64, gives the same numbers; also those that it writes into its arguments."""
    args, kwargs = tree_map(lambda x: WIDE.get(x, x) if isinstance(x, torch.dtype) else x, again)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        other = func(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError):  # it has no such operation in float64
        return False
    finally:
        torch.set_default_dtype(usual)
    pairs = list(zip(tree_leaves(out), tree_leaves(other), strict=True))
    if func._schema.is_mutable:
        pairs += zip(tree_leaves(given), tree_leaves((args, kwargs)), strict=True)
    return all(same(x, y) for x, y in pairs if torch.is_tensor(x))


def same(x: Any, wide: Any) -> bool:
    if narrower(wide) or x.shape != wide.shape:
        return False
    x = x.to(wide.dtype)
    return bool(((x == wide) | ((x != x) & (wide != wide))).all())
