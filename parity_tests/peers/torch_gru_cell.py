"""`torch.nn.GRUCell`, called at one position after the other, from a state of its own."""

from typing import Any

import numpy as np
import torch

from parity_tests.peers._module import Draw, Made, Module, drawn


def cell(draw: Draw, **fields: Any) -> Made:
    module = torch.nn.GRUCell(5, 7, dtype=torch.float64, **fields)
    held, x, first = drawn(module, draw), draw(2, 4, 5), draw(1, 2, 7)
    state, states = torch.from_numpy(first[0]), []
    with torch.no_grad():
        for t in range(x.shape[1]):
            state = module(torch.from_numpy(x[:, t]), state)
            states.append(state.numpy())
    return Made(held, {"x": x, "state": first}, np.stack(states, 1))


PEERS = {
    "biases": Module("torch", "torch_gru_cell", cell),
    "no biases": Module("torch", "torch_gru_cell", lambda draw: cell(draw, bias=False)),
}
