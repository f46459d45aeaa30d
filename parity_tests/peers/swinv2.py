"""Swin V2: cosines with a learned scale in windows of a picture, and a bias that a network gives to each offset."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity_tests.peers import Model
from parity_tests.ports.modules.in_float64 import InFloat64

# Grids of 16 x 8 patches and 8 x 4: in the second, windows of 8 x 8 are as high as the grid, so nothing is shifted.
SMALL: dict[str, Any] = {
    "image_size": [32, 16],
    "patch_size": 2,
    "num_channels": 2,
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": 4,
    "pretrained_window_sizes": [0, 0],
    "mlp_ratio": 1.0,
}


def picture(height: int, width: int) -> Any:
    """Two pictures of so many dots."""
    return lambda rng: {"pixel_values": torch.from_numpy(rng.normal(size=(2, 2, height, width)))}


def joined(block: Any, windows: Tensor, query: Tensor, sides: tuple[int, int]) -> Tensor:
    """The windows that attention gave, in the order of the queries, as the block joins them."""
    from transformers.models.swinv2.modeling_swinv2 import window_reverse

    size, (height, width) = block.window_size, sides
    filled = (-(-n // size) * size for n in sides)
    grid = window_reverse(windows.view(-1, size, size, query.shape[-1]), size, *filled)
    grid = torch.roll(grid, (block.shift_size, block.shift_size), (1, 2))
    return grid[:, :height, :width].reshape(query.shape)


def beyond_a_hundred(model: Any) -> None:
    """One head of each block without a shift gets a scale that is clamped.

    With a shift the library hides keys by taking 200 from scores, which such a scale would outweigh.
    """
    for name, param in model.named_parameters():
        if name.endswith("blocks.0.attention.self.logit_scale"):
            param[0] = log(100) + 1


@dataclass(frozen=True)
class Blocks(Model):
    """A model whose blocks, `takes`, cut their input into windows; their norm comes after attention."""

    def calls(self, model: Any, given: Mapping[str, Tensor]) -> dict[int, tuple[Any, Any, np.ndarray]]:
        """What each block got, and what its attention gave."""
        blocks = {layer: model.get_submodule(self.takes.format(layer=layer)) for layer in self.layers}
        queries: dict[int, tuple[Tensor, tuple[int, int]]] = {}
        windows: dict[int, Tensor] = {}
        for layer, block in blocks.items():

            def called(_: Any, args: Any, layer: int = layer) -> None:
                queries[layer] = args[:2]

            def attended(_: Any, args: Any, output: tuple[Tensor, ...], layer: int = layer) -> None:
                windows[layer] = output[0]

            block.register_forward_pre_hook(called)
            block.attention.register_forward_hook(attended)
        with InFloat64(), torch.no_grad():
            model(**given)
        return {
            layer: ((queries[layer][0],), {}, joined(block, windows[layer], *queries[layer]).numpy())
            for layer, block in blocks.items()
        }


FIRST, SECOND = "encoder.layers.0.blocks.{layer}", "encoder.layers.1.blocks.{layer}"
PEERS = {
    "first stage": Blocks(
        "Swinv2ForImageClassification", SMALL, f"swinv2.{FIRST}", part="stage1", given=picture(32, 16),
        prepare=beyond_a_hundred,
    ),
    "as high as a window": Blocks(
        "Swinv2Model", SMALL | {"window_size": 8}, SECOND, part="stage2", given=picture(32, 16)
    ),
    "other windows before": Blocks(
        "Swinv2Model", SMALL | {"pretrained_window_sizes": [0, 6], "window_size": 2}, SECOND, part="stage2",
        given=picture(32, 16),
    ),
    "a grid that windows do not fill": Blocks(
        "Swinv2Model", SMALL | {"image_size": [22, 14]}, FIRST, part="stage1", given=picture(22, 14)
    ),
}  # fmt: skip

FIRST_STAGE = PEERS["first stage"]
REFUSED = {
    "no biases before": (FIRST_STAGE, {"qkv_bias": False}, "'qkv_bias': expected one of True"),
    "fewer blocks": (FIRST_STAGE, {"depths": [1, 2]}, "'depths': expected more than 1 blocks in stage1"),
    "windows of one": (
        FIRST_STAGE, {"pretrained_window_sizes": [1, 1]}, "'pretrained_window_sizes': expected 0 or an integer from 2"
    ),
}  # fmt: skip
