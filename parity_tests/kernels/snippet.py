"""A case as a few lines of NumPy and the kernel's framework that run without this package."""

from collections.abc import Callable
from typing import Any

import numpy as np

from parity_tests.kernels.arrays import WIDE, layout_of, letters_of
from parity_tests.kernels.calling import Kernel
from parity_tests.kernels.likes import Value
from parity_tests.kernels.specs import Spec, lines, scale_of

# The same numbers as a view with strides, as `arrays.strided` makes them.
VIEW = {
    "numpy": "np.stack([a, a * np.nan], -2).reshape(*a.shape[:-2], -1, a.shape[-1])[..., ::2, :]",
    "torch": "torch.stack([a, a * torch.nan], -2).flatten(-3, -2)[..., ::2, :]",
}
IMPORTS = {"numpy": (), "torch": ("torch",), "jax": ("jax", "jax.numpy as jnp")}


def name_of(f: Callable[..., Any], known: str | None) -> tuple[str, str]:
    """A line that imports a function, empty where it can't, and its name there; known are `module:name`."""
    module, name = getattr(f, "__module__", None), getattr(f, "__qualname__", None)
    if known is not None:
        module, _, name = known.rpartition(":")
    if module is None or name is None or "<" in name:
        return "", "f"
    if module in ("", "__main__"):
        return "", name
    return f"from {module} import {name.split('.')[0]}", name


def axes(name: str, layout: str) -> str:
    """The text that lays the case's array out."""
    letters = letters_of(name, layout)
    kept = [letter for letter in letters if letter in layout]
    text = "".join(f"[{'0' if letter not in layout else ':'}]" for letter in letters if letter not in layout)
    order = [kept.index(letter) for letter in layout]
    return text + ("" if order == sorted(order) else f".transpose{tuple(order)}")


def array(kernel: Kernel, text: str, dtype: str) -> str:
    """The text that makes an array of the framework."""
    if kernel.framework == "torch":
        return f"torch.tensor({text}, dtype=torch.{dtype})"
    if kernel.framework == "numpy":
        return f"np.asarray({text}, '{dtype}')"
    return f"jnp.asarray({text}, jnp.{dtype})"


def argument(kernel: Kernel, spec: Spec, value: Value, numbers: dict[str, Any]) -> str:
    """The text of an argument."""
    wide = "float64" if spec.dtype == "float64" else "float32"
    if isinstance(value, tuple):
        name, layout = value
        text = name + axes(name, layout_of(name, layout, kernel.limits))
        if name == "log_decay" and kernel.limits.gate == "linear":
            text = f"np.exp({text})"
        return array(kernel, text, wide if name in WIDE else spec.dtype)
    try:
        x = eval(value, {"np": np, "wide": lambda a: a} | numbers)
    except NameError:  # of the case's arrays, or of the signature's own
        x = None
    if isinstance(x, (bool, int, float, tuple, str)) or value == "None":
        return repr(x)
    if value.startswith("wide("):
        return array(kernel, value[5:-1], wide)
    for name in ("b", "t", "s"):
        value = value.replace(f" {name},", f" {numbers[name]},")
    if value in ("mask", "keep", "lengths", "table", "cu_q", "cu_k") and kernel.framework == "torch":
        return f"torch.tensor({value})"
    if any(value.startswith(name) for name in ("q[", "k_pages", "v_pages", "bias")):
        return array(kernel, value, spec.dtype)
    return value


def outputs_of(spec: Spec) -> list[str]:
    """The outputs that a case has gradients of."""
    return ["y", *(["lse"] if spec.dlse else []), *(["last"] if spec.dlast else [])]


def given(kernel: Kernel, spec: Spec) -> tuple[list[str], list[str]]:
    """The texts of these outputs, and of their gradients."""
    outputs, gradients = list[str](), list[str]()
    for name in outputs_of(spec):
        text, layout = kernel.like.returns[name] if name != "lse" else ((kernel.like.lse or ("", {}))[0], "")
        outputs.append(f"({text})" if " if " in text else text)
        gradient = f"d{name}{axes(name, layout_of(name, layout, kernel.limits))}"
        if name == "lse" and kernel.limits.lse_base == "2":
            gradient = f"np.log(2) * {gradient}"
        wide = "float64" if spec.dtype == "float64" else "float32"
        text = array(kernel, gradient, wide if name in WIDE else spec.dtype)
        views = spec.strided and name == "y" and kernel.framework in VIEW
        gradients.append(f"view({text})" if views else text)
    return outputs, gradients


def snippet(
    kernel: Kernel, spec: Spec, name: str, at: tuple[int, ...], got: float, want: float, named: bool = False
) -> str:  # fmt: skip
    """The lines that show one wrong number of a result.

    Args:
        kernel, spec: what was asked of whom.
        name: of the result.
        at: where in it, in the case's layout.
        got, want: the number there, and the right one.
        named: whether a backward pass in NumPy returns gradients by parameter.
    """
    imported, f = name_of(kernel.f, kernel.name)
    found = [f"import {', '.join(('numpy as np', *IMPORTS[kernel.framework]))}"]
    found += [line for line in (imported, kernel.like.imports) if line]
    found += ["import ml_dtypes  # of bfloat16"] if kernel.framework == "numpy" and spec.dtype == "bfloat16" else []
    found += lines(spec, kernel.limits)
    if spec.lengths is not None:
        found.append(f"lengths = np.array({spec.lengths}, np.int32)")
    if spec.of_q is not None:
        found.append(f"cu_q, cu_k = (np.array(n, np.int32) for n in ({spec.of_q}, {spec.of_k or spec.of_q}))")
    left, right = spec.window or (None, None)
    numbers = {n: getattr(spec, n) for n in ("b", "t", "s", "h", "g", "d", "dv", "rate", "page")}
    numbers |= {"scale": scale_of(spec, kernel.limits), "softcap": spec.softcap, "left": left, "right": right}
    numbers |= {"cu_q": np.array(spec.of_q or ()), "cu_k": np.array(spec.of_k or spec.of_q or ())}
    passed, inputs, parameters = list[str](), list[tuple[str, str, str]](), list[str]()
    for i, (parameter, value) in enumerate(kernel.like.arguments(spec, kernel.limits, kernel.lse).items()):
        text = argument(kernel, spec, value, numbers)
        if isinstance(value, tuple):
            inputs.append((*value, text))
            text = f"x[{len(inputs) - 1}]"
            parameters.append(parameter)
        passed.append(text if i < kernel.like.positional else f"{parameter}={text}")
    if kernel.limits.head_map == "interleaved" and spec.h != spec.g:
        found.append(
            f"q = q.reshape({spec.b}, {spec.t}, {spec.g}, {spec.h // spec.g}, -1).swapaxes(2, 3).reshape(q.shape)"
        )
    views = spec.strided and kernel.framework in VIEW
    if views:
        found.append(f"view = lambda a: {VIEW[kernel.framework]}  # rows with NaN between them")
    found.append(f"x = [{', '.join(f'view({x})' if views and len(of) > 1 else x for _, of, x in inputs)}]")
    split = kernel.like.call.replace("*a, **kw", ", ".join(passed))
    split = split.replace("**kw", ", ".join(x for x in passed if "=" in x)).replace(
        "*a", ", ".join(x for x in passed if "=" not in x)
    )
    call = split if f == "f" else split.replace("f(", f"{f}(", 1)
    of: str = kernel.like.lse[0] if name == "lse" and kernel.like.lse else kernel.like.returns.get(name, ("", ""))[0]
    of = f"({of})" if " if " in of else of
    if not name.startswith("d") or name not in {f"d{n}" for n, _, _ in inputs}:
        layout = kernel.limits.lse_layout if name == "lse" else kernel.like.returns[name][1]
        found.append(f"out = {call}")
        found.append(f"print({of}[{placed(name, layout, at, kernel)}])  # {got:.6g}; right is {want:.6g}")
    else:
        outputs, gradients = given(kernel, spec)
        dy = gradients[0] if len(gradients) == 1 else f"({', '.join(gradients)})"
        i = next(i for i, (n, _, _) in enumerate(inputs) if f"d{n}" == name)
        place = placed(inputs[i][0], inputs[i][1], at, kernel)
        # Of a gate's factors the gradient by their logarithms is judged.
        by_log = f" * x[{i}][{place}]" if name == "dlog_decay" and kernel.limits.gate == "linear" else ""
        if kernel.framework == "torch":
            found.append(f"out = {call.replace(f'x[{i}]', f'x[{i}].requires_grad_()')}")
            found.append(f"torch.autograd.backward(({', '.join(outputs)},), ({', '.join(gradients)},))")
            found.append(f"print(x[{i}].grad[{place}]{by_log})  # {got:.6g}; right is {want:.6g}")
        elif kernel.framework == "jax":
            found.append(f"def y(*x): out = {call}; return {', '.join(outputs)}")
            found.append(f"grads = jax.vjp(y, *x)[1]({dy})")
            found.append(f"print(grads[{i}][{place}]{by_log})  # {got:.6g}; right is {want:.6g}")
        else:
            which = repr(parameters[i]) if named else i
            more = [f"d{n}={x}" for n, x in zip(outputs_of(spec)[1:], gradients[1:], strict=True)]
            found.append(f"grads = backward({', '.join([gradients[0], *passed, *more])})")
            found.append(f"print(grads[{which}][{place}]{by_log})  # {got:.6g}; right is {want:.6g}")
    return "\n".join(found)


def placed(name: str, layout: str, at: tuple[int, ...], kernel: Kernel) -> str:
    """Where a number of the case's array lies in the kernel's layout."""
    base = name[1:] if name.startswith("d") and name[1:] in ("q", "k", "v") else name
    layout = layout_of(base, layout, kernel.limits)
    letters = letters_of(base, layout)
    return ", ".join(str(at[letters.index(letter)]) for letter in layout)
