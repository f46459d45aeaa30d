"""A kernel called on a case: its arguments made, what it returns read, its promises about memory checked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.kernels.arrays import FRAMEWORKS, WIDE, laid, unlaid
from parity_tests.kernels.canonical import Array
from parity_tests.kernels.likes import Like, Value
from parity_tests.kernels.limits import Limits
from parity_tests.kernels.specs import Spec, arrays, case_of, scale_of


@dataclass
class Answer:
    """What a kernel did with a case.

    Attributes:
        results: outputs and gradients in the case's layout, in float64.
        complaints: promises that it broke, in words.
        raised: its error.
        named: whether a backward pass in NumPy returns gradients by parameter.
    """

    results: dict[str, Array] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    raised: str = ""
    named: bool = False


@dataclass(frozen=True)
class Kernel:
    """A function with the signature that it is judged by.

    Attributes:
        f, like, limits: as of `assert_kernel`.
        framework: of its arrays.
        backward: for NumPy: (dy, *the arguments) -> the gradients of its inputs, in their order or by parameter.
        name: "package.module:function", where it is given: what the kernel is imported by.
    """

    f: Callable[..., Any]
    like: Like
    limits: Limits
    framework: str
    backward: Callable[..., Any] | None = None
    name: str | None = None

    @property
    def lse(self) -> bool:
        """Whether the log-sum-exp is asked for."""
        return self.like.lse is not None and self.limits.lse


def room_of(kernel: Kernel, spec: Spec) -> dict[str, Any]:
    """What the expressions of a signature know."""
    case, limits = case_of(spec, kernel.limits), kernel.limits
    x, wide = dict(arrays(spec, kernel.limits)), np.float64 if spec.dtype == "float64" else np.float32
    for name in ("q", "k", "v", "bias", "slopes", "sinks", "beta", "state", "log_decay"):
        value = getattr(case, name, None)
        if value is not None:
            x[name] = value
    if spec.gate and limits.gate == "linear":
        x["log_decay"] = np.exp(x["log_decay"])
    left, right = spec.window or (None, None)
    if limits.window == "count":
        left, right = (None if n is None else n + 1 for n in (left, right))
    scale, cap = scale_of(spec, limits), spec.softcap
    if cap is not None and limits.order.index("cap") < limits.order.index("scale"):
        cap = cap / scale
    lengths = None if spec.lengths is None else np.array(spec.lengths, np.int32)
    starts = {"cu_q": spec.of_q, "cu_k": spec.of_k or spec.of_q}
    x |= {name: np.array(of, np.int32) for name, of in starts.items() if of is not None}
    if "table" in x:
        x["table"] = x["table"].astype(np.int32)
    sizes = {name: getattr(spec, name) for name in ("b", "t", "s", "h", "g", "d", "dv", "page", "rate")}
    return x | sizes | {
        "np": np, "scale": scale, "softcap": cap, "left": left, "right": right, "lengths": lengths,
        "wide": lambda a: np.asarray(a, wide),
    }  # fmt: skip


def typed(x: Any, name: str, dtype: str) -> Any:
    """Numbers in the kernel's type, or in a wide one; others as they are."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float64:
        return x
    if name in WIDE:
        return x if dtype == "float64" else x.astype(np.float32)
    with np.errstate(over="ignore"):
        return x.astype(DTYPES[dtype])


@contextmanager
def unwritten_is_nan(framework: str) -> Iterator[None]:
    """Whatever a kernel allocates without writing holds NaN."""
    module: Any = np
    if framework == "torch":
        import torch

        module = torch
    names = () if framework == "jax" else ("empty", "empty_like")
    own = {name: getattr(module, name) for name in names}

    def filled(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **options: Any) -> Any:
            x = make(*args, **options)
            if module is np:
                if x.dtype.kind == "f":
                    x.fill(np.nan)
            elif x.is_floating_point() and type(x) is module.Tensor and x.device.type != "meta":
                x.detach().fill_(float("nan"))
            return x

        return made

    try:
        for name in names:
            setattr(module, name, filled(own[name]))
        yield
    finally:
        for name in names:
            setattr(module, name, own[name])


class ReturnedError(Exception):
    """What a kernel returns has not the form of its signature."""


class Call:
    """One call of a kernel: its arguments in its framework."""

    def __init__(self, kernel: Kernel, spec: Spec, names: dict[str, Any]) -> None:
        self.kernel, self.spec = kernel, spec
        self.framework = FRAMEWORKS[kernel.framework]
        limits, device = kernel.limits, kernel.limits.device
        room = names | room_of(kernel, spec)
        exec(kernel.like.imports, room)
        of_scores = {"of_scores": "bias", "of_pairs": "mask", "of_heads": "slopes"}  # arrays that functions close over
        for name, x in of_scores.items():
            if room.get(x) is not None:
                room[name] = self.framework.array(typed(room[x], x, spec.dtype), False, device)
        self.inputs: dict[str, tuple[str, str]] = {}
        self.arguments: dict[str, Any] = {}
        for parameter, value in kernel.like.arguments(spec, limits, kernel.lse).items():
            x = self.value(value, room)
            if isinstance(value, tuple):
                self.inputs[parameter] = value
            name = value[0] if isinstance(value, tuple) else ""
            x = typed(x, name, spec.dtype)
            views = spec.strided and isinstance(value, tuple)
            if hasattr(x, "map"):  # of a pattern the arrays in it
                x = x.map(lambda _, part: self.framework.array(part, False, device))
            self.arguments[parameter] = self.framework.array(x, views, device) if isinstance(x, np.ndarray) else x
        self.room, self.named = room, False

    def value(self, value: Value, room: dict[str, Any]) -> Any:
        if isinstance(value, tuple):
            return laid(room[value[0]], *value, self.kernel.limits, self.spec.g)
        return eval(value, room)

    @property
    def wanted(self) -> list[str]:
        """The parameters whose gradients are asked for."""
        if not self.spec.grads:
            return []
        names = self.kernel.limits.gradients
        return [p for p, (name, _) in self.inputs.items() if names is None or name in names]

    def run(self, arguments: dict[str, Any]) -> Any:
        split = list(arguments.items())
        a, kw = [x for _, x in split[: self.kernel.like.positional]], dict(split[self.kernel.like.positional :])
        return eval(self.kernel.like.call, self.room | {"f": self.kernel.f, "a": a, "kw": kw})

    def outputs(self, out: Any) -> dict[str, Any]:
        """What is judged of what was returned, in the kernel's layout."""
        like, room = self.kernel.like, self.room | {"out": out}
        texts = {name: text for name, (text, _) in like.returns.items()}
        if like.lse is not None and self.kernel.lse:
            texts["lse"] = like.lse[0]
            if not isinstance(out, (tuple, list)):
                rule = f"expected the log-sum-exp as {like.lse[0]}, got one array"
                raise ReturnedError(f'{rule}; if it is not returned, say "lse": false in limits')
        try:
            return {name: eval(text, room) for name, text in texts.items()}
        except (TypeError, IndexError, KeyError, AttributeError):
            got = f"{type(out).__name__} of {len(out)}" if isinstance(out, (tuple, list)) else type(out).__name__
            raise ReturnedError(f"expected {', '.join(texts.values())} in what it returns, got {got}") from None

    def layout(self, name: str) -> str:
        return self.kernel.limits.lse_layout if name == "lse" else self.kernel.like.returns[name][1]

    def cotangents(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Gradients of the outputs, in the kernel's layout."""
        case, found = case_of(self.spec, self.kernel.limits), {}
        given = {"y": case.dy, "lse": getattr(case, "dlse", None), "last": getattr(case, "dlast", None)}
        for name, x in given.items():
            if name in outputs and x is not None and (name != "lse" or self.kernel.lse):
                x = x if name != "lse" or self.kernel.limits.lse_base == "e" else x * np.log(2)
                laid_out = typed(
                    laid(x, name, self.layout(name), self.kernel.limits, self.spec.g), name, self.spec.dtype
                )
                found[name] = self.framework.array(
                    laid_out, self.spec.strided and name == "y", self.kernel.limits.device
                )
        return found

    def with_gradients(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Outputs, and gradients by parameter where they are asked for."""
        return getattr(self, f"by_{self.kernel.framework}")()

    def by_numpy(self) -> tuple[dict[str, Any], dict[str, Any]]:
        outputs = self.outputs(self.run(self.arguments))
        if not self.wanted or self.kernel.backward is None:
            return outputs, {}
        given = self.cotangents(outputs)
        dy = given["y"]
        split, n = list(self.arguments.items()), self.kernel.like.positional
        more = {f"d{name}": x for name, x in given.items() if name != "y"}
        got = self.kernel.backward(dy, *(x for _, x in split[:n]), **dict(split[n:]), **more)
        self.named = isinstance(got, dict)
        if not isinstance(got, (dict, tuple, list)):
            raise ReturnedError(f"backward: expected gradients in order or by parameter, got {type(got).__name__}")
        return outputs, dict(got) if isinstance(got, dict) else dict(zip(self.inputs, got, strict=False))

    def by_torch(self) -> tuple[dict[str, Any], dict[str, Any]]:
        import torch

        arguments = dict(self.arguments)
        for name in self.wanted:
            arguments[name] = arguments[name].detach().requires_grad_()
        outputs = self.outputs(self.run(arguments))
        if not self.wanted:
            return outputs, {}
        given = self.cotangents(outputs)
        got = torch.autograd.grad(
            [outputs[name] for name in given], [arguments[p] for p in self.wanted], list(given.values()),
            allow_unused=True,
        )  # fmt: skip
        return outputs, dict(zip(self.wanted, got, strict=True))

    def by_jax(self) -> tuple[dict[str, Any], dict[str, Any]]:
        import jax

        # One compilation of all, not one of every operation in it.
        traced = {name: x for name, x in self.arguments.items() if isinstance(x, jax.Array)}

        def of(inputs: dict[str, Any]) -> dict[str, Any]:
            return self.outputs(self.run(self.arguments | inputs))

        if not self.wanted:
            return jax.jit(of)(traced), {}
        given = self.cotangents(dict.fromkeys((*self.kernel.like.returns, "lse")))

        def both(inputs: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            learned = {name: inputs[name] for name in self.wanted}
            outputs, vjp = jax.vjp(lambda x: of(inputs | x), learned)
            (got,) = vjp({name: given.get(name, jax.numpy.zeros_like(x)) for name, x in outputs.items()})
            return outputs, got

        return jax.jit(both)(traced, given)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a result by the signature, in the case's layout."""
        s = self.spec
        n = s.b if s.of_q is None else len(s.of_q) - 1
        return {
            "y": (s.b, s.t, s.h, s.dv), "lse": (s.b, s.h, s.t), "last": (n, s.g, s.d, s.dv),
        }[name]  # fmt: skip


def advice(kernel: Kernel, spec: Spec, words: str) -> str:
    """What to say in the limits of a kernel that lacks an option's parameter."""
    lacks = [
        option
        for option in kernel.like.takes
        if option in spec.options and any(f"argument '{name}'" in words for name in kernel.like.options[option])
    ]
    return f"; if it has no {lacks[0]}, name the options that it has in limits" if lacks else ""


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def call(kernel: Kernel, spec: Spec, names: dict[str, Any]) -> Answer:
    """What a kernel does with a case."""
    answer = Answer()
    made = Call(kernel, spec, names)
    read = made.framework.numpy
    before = {p: bits(read(x)) for p, x in made.arguments.items() if hasattr(x, "dtype")}
    try:
        with unwritten_is_nan(kernel.framework):
            outputs, grads = made.with_gradients()
    except ReturnedError as error:
        answer.complaints.append(str(error))
        return answer
    except Exception as error:  # a kernel's own errors are of any kind
        words = " ".join(str(error).split()) or "no message"
        answer.raised = f"{type(error).__name__}: {words[:300]}{advice(kernel, spec, words)}"
        return answer
    answer.named = made.named
    changed = [p for p, x in before.items() if bits(read(made.arguments[p])) != x]
    answer.complaints += [f"it writes into its input {p}" for p in changed]
    g = spec.g
    for name, x in outputs.items():
        layout, wide = made.layout(name), name in WIDE
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            answer.complaints.append(f"{name}: expected an array, got {type(x).__name__}")
            continue
        dtype = made.framework.dtype(x)
        right = ("float32", "float64") if wide else (spec.dtype,)
        if dtype not in right:
            answer.complaints.append(f"{name}: expected {' or '.join(right)}, got {dtype}")
        got = unlaid(np.asarray(read(x), np.float64), name, layout, kernel.limits, g)
        if got.shape != made.shape_of(name):
            answer.complaints.append(f"{name}: expected the shape {made.shape_of(name)} by b t h d, got {got.shape}")
            continue
        answer.results[name] = got * (np.log(2) if name == "lse" and kernel.limits.lse_base == "2" else 1.0)
    for parameter in made.wanted:
        name, layout = made.inputs[parameter]
        x, want = grads.get(parameter), made.arguments[parameter]
        if x is None:
            answer.complaints.append(f"no gradient of {parameter}")
            continue
        got = np.asarray(read(x), np.float64)
        if got.shape != tuple(want.shape):
            answer.complaints.append(
                f"gradient of {parameter}: expected the shape {tuple(want.shape)}, got {got.shape}"
            )
            continue
        got = unlaid(got, name, layout, kernel.limits, g)
        if name == "log_decay" and kernel.limits.gate == "linear":
            got = got * made.room["log_decay"]  # which holds the factors
        answer.results[f"d{name}"] = got
    if kernel.limits.same_bits and spec.seed % 4 == 0 and not changed:
        with unwritten_is_nan(kernel.framework):
            again, _ = made.with_gradients()
        for name, x in again.items():
            if hasattr(x, "dtype") and bits(read(x)) != bits(read(outputs[name])):
                answer.complaints.append(f"{name}: a second call returns other bits")
    return answer
