"""Names of axes: what nnx needs to know to shard the parameters of layers."""

from typing import Any

import jax
from flax import nnx

from attn_jax.frame.layer import Layer
from attn_jax.ops.modules import linear_arrays
from attn_np.contract._base import require


def name_axes(model: Any, mesh: Any = None, **names: str | None) -> None:
    """Name the axes of the parameters of all layers of ours in a model, for `nnx.get_partition_spec` and what uses it.

        name_axes(model, mesh, h="model", g="model")  # heads over the mesh's axis "model"
        specs = nnx.get_partition_spec(nnx.state(model))  # w_q `d h k`: P(None, "model", None)

    An axis is named by its letter in the layer's contract (`d` width, `h` heads, `g` heads of keys and values; a
    parameter's letters stand in `layer.config.params()`). The names are axes of a mesh, or logical names that
    `nnx.logical_axis_rules` maps to them. Axes that get no name are whole on every device, and so are those of arrays
    whose size the mesh's axis does not divide, if they are left out here: `g`, where there are fewer heads of keys.
    The mesh, or that of `jax.set_mesh`, only says how many devices an axis has, to refuse what they do not divide.
    Parameters that `nnx.vmap` has stacked keep their first axes without a name. The kernel of a module has two axes,
    of features: `d` and `(h k)` for w_q; each takes the name of its outer letter.

    Raises:
        ValueError: a letter that no parameter has, or in modules only as an inner one of features; a size that the
            devices of the mesh's axis do not divide.
    """
    params = []
    for layer in (part for _, part in nnx.iter_modules(model) if isinstance(part, Layer)):
        in_modules = {name for projection in layer.projections for name in projection.names()}
        for name, given in layer.config.own_params().items():
            if name not in in_modules:
                param, letters = getattr(layer, name), given.axes.split()
                shape = param.get_value().shape
                params.append((param, letters, shape[len(shape) - len(letters) :]))
        for projection in layer.projections:
            linear = getattr(layer, projection.name)
            linear_arrays(projection, linear)  # which refuses what is no kernel and bias alone
            (in_letter, *_), (out_letter, *_) = projection.input_letters, projection.output_letters
            params.append((linear.kernel, [in_letter, out_letter], [projection.inputs[0], projection.outputs[0]]))
            params += [] if projection.bias is None else [(linear.bias, [out_letter], [projection.outputs[0]])]
    known = sorted({letter for _, letters, _ in params for letter in letters})
    for letter in names:
        if letter not in known:
            letters = ", ".join(known) or "of which this model has none"
            raise ValueError(
                f"name_axes: expected letters of the axes of parameters, {letters}, got {letter!r}; leave it out"
            )
    devices = dict((jax.sharding.get_abstract_mesh() if mesh is None else mesh).shape)
    for letter, size in (
        (letter, size) for _, letters, sizes in params for letter, size in zip(letters, sizes, strict=True)
    ):
        axis = names.get(letter)
        count = devices.get(axis, 1)
        got = f"{size} over {count} devices of the axis {axis!r}"
        fix = f"leave {letter}= out, or choose another mesh"
        require(size % count == 0, "name_axes", f"{letter} that the devices of the mesh divide", got, fix)
    for param, letters, _ in params:
        stacked = (None,) * (param.get_value().ndim - len(letters))
        param.set_metadata(out_sharding=(*stacked, *(names.get(letter) for letter in letters)))
