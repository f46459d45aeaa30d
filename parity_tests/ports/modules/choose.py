"""Which framework a module or function is of."""

from importlib import import_module
from types import ModuleType
from typing import Any

from parity_tests.ports.modules.sides import Caller, Side, numpy_function_side


def side_of(module: Any, call: Caller, framework: str | None, weights: bool, inputs: Any) -> Side:
    """A torch module, a Flax NNX or Linen module, or a function, as one side.

    Args:
        module: a Linen module comes with its variables, `(module, variables)`, or alone to get weights of the other
            side.
        call: called as `call(module, *inputs)` in place of the module itself.
        framework: whose arrays a function takes: "numpy", "torch" or "jax".
        weights: a function takes a dictionary of weights first.
        inputs: a Linen module without variables is initialised with these.

    Raises:
        TypeError: it is none of them.
    """
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(module).__mro__}
    single: Any = module[0] if isinstance(module, tuple) and module else module
    if any(base.__module__ == "flax.linen.module" and base.__name__ == "Module" for base in type(single).__mro__):
        return listener("jax").linen_side(module, call, inputs)
    if "torch.Module" in names:
        return listener("torch").torch_side(single, call)
    if "flax.Module" in names:
        return listener("jax").nnx_side(single, call)
    if not callable(module) or isinstance(module, type):
        raise TypeError(
            f"compare_modules: expected a torch module, a Flax module or a function, got {type(module).__name__}; "
            f"give an object that can be called, a Linen module as (module, variables)"
        )
    framework = framework or "numpy"
    if framework == "torch":
        return listener("torch").torch_function_side(module, call, weights)
    if framework == "jax":
        return listener("jax").jax_function_side(module, call, weights)
    if framework != "numpy":
        raise ValueError(f"compare_modules: expected framework= numpy, torch or jax, got {framework!r}; name one")
    return numpy_function_side(module, call, weights)


def listener(framework: str) -> ModuleType:
    """Our module that runs modules of a framework, loaded by need: an environment may hold one framework alone."""
    return import_module(f"parity_tests.ports.modules.listen_{framework}")
