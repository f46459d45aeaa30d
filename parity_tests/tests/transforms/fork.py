"""Results of NumPy's layers, and of a child process that is forked while threads compute; no other framework is loaded.

`python -m parity_tests.tests.transforms.fork` prints, for every variant, whether the child's results are the bits of
its parent's.
"""

import json
import os
from functools import cache
from hashlib import sha256
from threading import Thread
from typing import Any

import numpy as np

import attn_np
from attn_np import contract
from attn_np.kernels import flash
from attn_np.kernels import threads as _kernel_threads
from parity_tests.judge.candidates import leaves, numpy_layer, pulled
from parity_tests.judge.cases import Case, Drawn, draw

Arrays = dict[str, np.ndarray]


@cache
def case_of(variant: str, example: str | None = None) -> tuple[Case, Drawn]:
    case = Case(variant, example or next(iter(contract.examples(variant))), "full", "float64")
    return case, draw(case)


def results(layer: Any, case: Case, inputs: Arrays, **options: Any) -> Arrays:
    """Outputs, and gradients of every input and parameter."""
    y, pull = attn_np.value_and_vjp(layer, **inputs, **options)
    outputs = leaves(y)
    grads = pull(*pulled(case, case_of(case.variant)[1], {n: x.shape for n, x in outputs.items()}).values())
    return outputs | {f"d{name}": x for name, x in (grads.inputs | grads.params).items()}


def digests() -> dict[str, str]:
    """A checksum of every variant's results."""
    found = {}
    for variant in contract.variants():
        case, drawn = case_of(variant)
        arrays = results(numpy_layer(case, drawn.params), case, drawn.inputs)
        found[variant] = sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in arrays.values())).hexdigest()
    return found


def fork_and_compare() -> dict[str, bool]:
    """Fork while threads are inside the blocks of `attend`, and compare all checksums with the child's."""
    rng, stop = np.random.default_rng(0), []
    q, k, v = (rng.normal(size=(1, 700, 4, 16)).astype("float32") for _ in range(3))
    options: Any = {"mask": None, "bias": None, "causal": True, "window": None, "softcap": None, "sinks": None}

    def busy() -> None:
        while not stop:
            flash.attend(q, k, v, scale=0.25, **options)

    want = digests()
    threads_before = [library.num_threads for library in _kernel_threads.blas().lib_controllers]
    workers = [Thread(target=busy) for _ in range(3)]
    for worker in workers:
        worker.start()
    while _kernel_threads.one_blas_thread.callers == 0:
        pass
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            flash.attend(q, k, v, scale=0.25, **options)
            threads = [library.num_threads for library in _kernel_threads.blas().lib_controllers]
            os.write(writer, json.dumps(digests() | {"BLAS": str(threads == threads_before)}).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        got = json.loads(pipe.read())
    os.waitpid(child, 0)
    stop.append(True)
    for worker in workers:
        worker.join()
    return {name: got[name] == x for name, x in (want | {"BLAS": "True"}).items()}


if __name__ == "__main__":
    print(json.dumps(fork_and_compare()))
