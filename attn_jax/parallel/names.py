"""Names of axes: what nnx needs to know to shard the parameters of layers."""

from typing import Any

from flax import nnx

from attn_jax.frame.layer import Layer
from attn_jax.ops.modules import linear_arrays


def name_axes(model: Any, **names: str | None) -> None:
    """Name the axes of the parameters of all layers of ours in a model, for `nnx.get_partition_spec` and what uses it.

        name_axes(model, h="model", g="model")  # heads over the mesh's axis "model"
        specs = nnx.get_partition_spec(nnx.state(model))  # w_q `d h k`: P(None, "model", None)

    An axis is named by its letter in the layer's contract (`d` width, `h` heads, `g` heads of keys and values; a
    parameter's letters stand in `layer.config.params()`). The names are axes of a mesh, or logical names that
    `nnx.logical_axis_rules` maps to them. Axes that get no name are whole on every device, and so are those of arrays
    whose size the mesh's axis does not divide, if they are left out here: `g`, where there are fewer heads of keys.
    Parameters that `nnx.vmap` has stacked keep their first axes without a name. The kernel of a module has two axes,
    of features: `d` and `(h k)` for w_q; each takes the name of its outer letter.

    Raises:
        ValueError: a letter that no parameter has, or in modules only as an inner one of features.
    """
    params = []
    for layer in (part for _, part in nnx.iter_modules(model) if isinstance(part, Layer)):
        in_modules = {name for projection in layer.projections for name in projection.names()}
        own = {name: given.axes.split() for name, given in layer.config.own_params().items() if name not in in_modules}
        params += [(getattr(layer, name), letters) for name, letters in own.items()]
        for projection in layer.projections:
            linear, outer = getattr(layer, projection.name), projection.output_letters[0]
            linear_arrays(projection, linear)  # which refuses what is no kernel and bias alone
            params.append((linear.kernel, [projection.input_letters[0], outer]))
            params += [] if projection.bias is None else [(linear.bias, [outer])]
    known = sorted({letter for _, letters in params for letter in letters})
    for letter in names:
        if letter not in known:
            letters = ", ".join(known) or "of which this model has none"
            raise ValueError(
                f"name_axes: expected letters of the axes of parameters, {letters}, got {letter!r}; leave it out"
            )
    for param, letters in params:
        stacked = (None,) * (param.get_value().ndim - len(letters))
        param.set_metadata(out_sharding=(*stacked, *(names.get(letter) for letter in letters)))
