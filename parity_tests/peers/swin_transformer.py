"""Swin: patches of a picture look at each other in windows, which every other block shifts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity_tests.peers import Model
from parity_tests.ports.modules.in_float64 import InFloat64

# Grids of 16 x 8 patches and 8 x 4: in the second, windows of 4 x 4 fill the width, so nothing is shifted.
SMALL: dict[str, Any] = {
    "image_size": [32, 16],
    "patch_size": 2,
    "num_channels": 2,
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": 4,
    "mlp_ratio": 1.0,
}


def picture(rng: np.random.Generator) -> dict[str, Tensor]:
    """Two pictures of 32 x 16 dots."""
    return {"pixel_values": torch.from_numpy(rng.normal(size=(2, 2, 32, 16)))}


def joined(block: Any, windows: Tensor, query: Tensor) -> Tensor:
    """The windows that attention gave, in the order of the queries: joined and shifted back by the block's own code."""
    from transformers.models.swin.modeling_swin import window_reverse

    size, width, (rows, columns) = int(block.window_size), query.shape[-1], block.input_resolution
    filled = (-(-n // size) * size for n in (rows, columns))
    grid = window_reverse(windows.view(-1, size, size, width), size, *filled)
    return block.cyclic_shift(grid, reverse=True)[:, :rows, :columns].reshape(query.shape)


@dataclass(frozen=True)
class Blocks(Model):
    """A model whose blocks, `takes`, cut the grid into windows between their norm and their attention."""

    def calls(self, model: Any, given: Mapping[str, Tensor]) -> dict[int, tuple[Any, Any, np.ndarray]]:
        """What each block's norm gave, and its attention."""
        blocks = {layer: model.get_submodule(self.takes.format(layer=layer)) for layer in self.layers}
        queries: dict[int, Tensor] = {}
        windows: dict[int, Tensor] = {}
        for layer, block in blocks.items():

            def normed(_: Any, args: Any, output: Tensor, layer: int = layer) -> None:
                queries[layer] = output

            def attended(_: Any, args: Any, output: tuple[Tensor, ...], layer: int = layer) -> None:
                windows[layer] = output[0]

            block.layernorm_before.register_forward_hook(normed)
            block.attention.register_forward_hook(attended)
        with InFloat64(), torch.no_grad():
            model(**given)
        return {
            layer: ((queries[layer],), {}, joined(block, windows[layer], queries[layer]).numpy())
            for layer, block in blocks.items()
        }


FIRST, SECOND = "encoder.layers.0.blocks.{layer}", "encoder.layers.1.blocks.{layer}"
PEERS = {
    "first stage": Blocks("SwinForImageClassification", SMALL, f"swin.{FIRST}", part="stage1", given=picture),
    "second stage": Blocks("SwinModel", SMALL, SECOND, part="stage2", given=picture),
    "small windows": Blocks("SwinModel", SMALL | {"window_size": 2}, SECOND, part="stage2", given=picture),
    "odd windows": Blocks(
        "SwinModel", SMALL | {"image_size": [36, 18], "window_size": 3, "depths": [2], "num_heads": [2]}, FIRST,
        part="stage1", given=lambda rng: {"pixel_values": torch.from_numpy(rng.normal(size=(1, 2, 36, 18)))},
    ),
    "a grid that windows do not fill": Blocks(
        "SwinModel", SMALL | {"image_size": [22, 14], "window_size": 4, "depths": [2], "num_heads": [2]}, FIRST,
        part="stage1", given=lambda rng: {"pixel_values": torch.from_numpy(rng.normal(size=(2, 2, 22, 14)))},
    ),
}  # fmt: skip

FIRST_STAGE = PEERS["first stage"]
REFUSED = {
    "no biases before": (FIRST_STAGE, {"qkv_bias": False}, "'qkv_bias': expected one of True"),
    "fewer blocks": (FIRST_STAGE, {"depths": [1, 2]}, "'depths': expected more than 1 blocks in stage1"),
    "fewer stages": (PEERS["second stage"], {"depths": [2]}, "'depths': expected a list with an integer for stage2"),
    "a grid smaller than a window": (PEERS["second stage"], {"window_size": 7}, "'window_size': expected at most 4"),
    "three sides": (FIRST_STAGE, {"image_size": [8, 8, 8]}, "'image_size': expected an integer from 1, or two"),
}
