"""`torch.nn.GRU`: layers on each other, with biases and without, from a state of their own."""

from typing import Any

import torch

from parity_tests.peers._module import Draw, Made, Module, drawn


def gru(draw: Draw, **fields: Any) -> Made:
    module = torch.nn.GRU(5, 7, batch_first=True, dtype=torch.float64, **fields)
    directions = 2 if module.bidirectional else 1
    state, x, first = drawn(module, draw), draw(2, 5, 5), draw(module.num_layers * directions, 2, 7)
    with torch.no_grad():
        y, _ = module(torch.from_numpy(x), torch.from_numpy(first))
    return Made(state, {"x": x, "state": first}, y.numpy())


PEERS = {
    "one layer": Module("torch", "torch_gru", gru),
    "three layers": Module("torch", "torch_gru", lambda draw: gru(draw, num_layers=3)),
    "two directions": Module("torch", "torch_gru", lambda draw: gru(draw, num_layers=2, bidirectional=True)),
    "no biases": Module("torch", "torch_gru", lambda draw: gru(draw, num_layers=2, bias=False)),
}
