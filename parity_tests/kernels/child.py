"""The process that kernels run in: one that hangs or crashes ends the process, and the run goes on in the next."""

import io
import marshal
import os
import pickle
import queue
import subprocess
import sys
import threading
import types
from importlib import import_module
from typing import IO, Any

from parity_tests.kernels.arrays import FRAMEWORKS
from parity_tests.kernels.calling import Answer, Kernel, call
from parity_tests.kernels.specs import Spec

BY_VALUE = "__main__"
# In which a process loads the kernel and its framework.
START_SECONDS = 300.0
CRASHED = "assert_kernel: expected a kernel that loads, got a process that ends; import its module to see why"


def named(module: str, name: str) -> Any:
    """What a module has by a name; None where there is no such thing."""
    found: Any = sys.modules.get(module) or import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def importable(f: Any) -> bool:
    """Whether another process gets the function, or what wraps one as `jax.jit` does, by its name."""
    if getattr(f, "__module__", None) in (None, BY_VALUE) or not isinstance(getattr(f, "__qualname__", None), str):
        return False
    try:
        spec = import_module("importlib.util").find_spec(f.__module__)
    except (ValueError, ModuleNotFoundError):
        spec = None
    return spec is not None and named(f.__module__, f.__qualname__) is f


def names_in(code: types.CodeType) -> set[str]:
    """The names that a function's code and the functions in it look up."""
    inner = [names_in(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    return set(code.co_names).union(*inner)


def function(code: bytes, name: str, defaults: Any, options: Any, cells: int) -> Any:
    """A function without its globals and the values of its cells, which are set later: it may be among them."""
    room: dict[str, Any] = {"__builtins__": __builtins__, "__name__": BY_VALUE}
    closure = tuple(types.CellType() for _ in range(cells))
    f = types.FunctionType(marshal.loads(code), room, name, defaults, closure)
    f.__kwdefaults__ = options
    return f


def fill(f: Any, state: tuple[dict[str, Any], list[Any]]) -> None:
    """Set the globals and the cells of a function."""
    f.__globals__.update(state[0])
    for cell, value in zip(f.__closure__ or (), state[1], strict=True):
        cell.cell_contents = value


class Pickler(pickle.Pickler):
    """Functions that another process can't import go by value, modules by name."""

    def reducer_override(self, x: Any) -> Any:
        if isinstance(x, types.ModuleType):
            return import_module, (x.__name__,)
        if not isinstance(x, types.FunctionType):
            # What wraps a function, as `jax.jit` does, may have no form of its own.
            wraps = not isinstance(x, (type, types.BuiltinFunctionType)) and importable(x)
            return (named, (x.__module__, x.__qualname__)) if wraps else NotImplemented
        if importable(x):
            return NotImplemented
        known = {name: x.__globals__[name] for name in names_in(x.__code__) if name in x.__globals__}
        cells = [cell.cell_contents for cell in x.__closure__ or ()]
        made = (marshal.dumps(x.__code__), x.__name__, x.__defaults__, x.__kwdefaults__, len(cells))
        return function, made, (known, cells), None, None, fill


def dumped(x: Any) -> bytes:
    """An object for another process of the same Python.

    Raises:
        ValueError: what can't be sent.
    """
    file = io.BytesIO()
    try:
        Pickler(file).dump(x)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        rule = "a kernel that another process can get"
        raise ValueError(f"assert_kernel: expected {rule}, got one with {error}; define it in a module") from None
    return file.getvalue()


def send(file: IO[bytes], data: bytes) -> None:
    file.write(len(data).to_bytes(8, "little") + data)
    file.flush()


def receive(file: IO[bytes]) -> bytes:
    """What was sent; empty at the end."""
    size = file.read(8)
    return file.read(int.from_bytes(size, "little")) if len(size) == 8 else b""


class Child:
    """A process that holds a kernel; it starts with the first call and anew after one that hung or crashed.

    Attributes:
        limit: seconds for a call.
    """

    def __init__(self, kernel: Kernel, limit: float = 30.0) -> None:
        self.data, self.limit = dumped(kernel), limit
        self.process: subprocess.Popen[bytes] | None = None
        self.answers: queue.Queue[bytes] = queue.Queue()

    def start(self) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        environment = os.environ | {"PYTHONPATH": path}
        command = [sys.executable, "-m", __name__]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.process, self.answers = process, queue.Queue()
        answers, stdout = self.answers, process.stdout

        def read() -> None:
            while stdout is not None:
                data = receive(stdout)
                answers.put(data)
                if not data:
                    return

        threading.Thread(target=read, daemon=True).start()
        if process.stdin is not None:
            send(process.stdin, self.data)
        # What it answers first is that it has loaded the kernel, or why not.
        loaded = pickle.loads(self.answers.get(timeout=START_SECONDS) or pickle.dumps(RuntimeError(CRASHED)))
        if isinstance(loaded, Exception):
            self.stop()
            raise loaded
        return process

    def ask(self, spec: Spec) -> Answer:
        """What the kernel does with a case; a hang and a crash are complaints."""
        process = self.process or self.start()
        try:
            if process.stdin is not None:
                send(process.stdin, pickle.dumps(spec))
            data = self.answers.get(timeout=self.limit)
        except queue.Empty:
            self.stop()
            return Answer(complaints=[f"it does not return within {self.limit:g} seconds"])
        except BrokenPipeError:
            data = b""
        if not data:
            code = process.wait()
            self.stop()
            return Answer(complaints=[f"its process ends with status {code}"])
        found = pickle.loads(data)
        if isinstance(found, Exception):
            self.stop()
            raise found
        return found

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for file in (self.process.stdin, self.process.stdout):
                if file is not None:
                    try:
                        file.close()
                    except BrokenPipeError:  # what was not sent to a process that has ended
                        continue
        self.process = None

    def __enter__(self) -> "Child":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def main() -> None:
    """Answer until the other side closes; what a kernel prints goes to stderr."""
    answers, questions = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # a kernel's own processes must not read the questions
    try:
        kernel: Kernel = pickle.loads(receive(questions))
        names = FRAMEWORKS[kernel.framework].prepare(kernel.limits)
    except Exception as error:  # the other side raises it
        rule = "a kernel that loads in a process of its own"
        send(answers, pickle.dumps(ValueError(f"assert_kernel: expected {rule}, got {error!r}; mend its module")))
        return
    send(answers, pickle.dumps(None))
    while data := receive(questions):
        try:
            answer = call(kernel, pickle.loads(data), names)
            found = pickle.dumps(answer)
        except Exception as error:  # of the referee itself: the other side raises it
            import traceback

            found = pickle.dumps(RuntimeError(f"{error!r}\n{traceback.format_exc()}"))
        try:
            send(answers, found)
        except BrokenPipeError:  # the other side has ended
            os._exit(1)


if __name__ == "__main__":
    main()
