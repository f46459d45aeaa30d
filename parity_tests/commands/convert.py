"""attn-parity convert: a layer from one layout into another."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, refused, writable


def main(
    source: Annotated[Path, typer.Argument(help="A weight file, ours or foreign with --from, or a model's folder.")],
    target: Annotated[Path, typer.Argument(help="The file to write.")],
    to: Annotated[str | None, typer.Option(help="Whose names to write, such as torch_mha; ours by default.")] = None,
    layout: Annotated[str | None, typer.Option("--from", help="Whose names the source uses, such as bert.")] = None,
    variant: Annotated[str | None, typer.Option(help="Which variant, where the source's layout has several.")] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Which layer of the source.")] = None,
    part: Annotated[str | None, typer.Option(help="Which block of it, where a layer has several.")] = None,
    prefix: Annotated[str, typer.Option(help="What stands before the names of the source.")] = "",
    num_heads: Annotated[int | None, typer.Option(min=1, help="Heads, where the source does not say it.")] = None,
    fields: Annotated[str | None, typer.Option(help="Further fields of the config, as JSON.")] = None,
    to_layer: Annotated[int | None, typer.Option(min=0, help="The number of the layer in the target.")] = None,
    to_part: Annotated[str | None, typer.Option(help="Which block it is in the target.")] = None,
    to_prefix: Annotated[str, typer.Option(help="What to write before the names.")] = "",
    overwrite: Overwrite = False,
) -> None:
    """Write one layer under the names and axes of another library: bits are moved, nothing is computed.

    What the target cannot hold is refused. What was written is read back and compared, bit by bit.
    """
    import json

    from attn_np import weights
    from parity_tests.judge import checkpoint

    writable(target, read=(source,), overwrite=overwrite)
    try:
        given = json.loads(fields or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise typer.BadParameter(f"expected a JSON object, got {fields!r}; set --fields '{{\"causal\": true}}'")
    given |= {} if num_heads is None else {"num_heads": num_heads}
    try:
        where = {"layout": layout, "variant": variant, "layer": layer, "part": part, "prefix": prefix}
        found = checkpoint.read(source, **where, **given)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, main) from None
    there = {"layout": to, "layer": to_layer, "part": to_part, "prefix": to_prefix}
    flags_there = {name: f"--to-{name}" for name in there} | {"layout": "--to"}
    try:
        weights.write(target, found.config, found.values, **there)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, main, **flags_there) from None
    try:
        again = weights.read(target, config=found.config, **there)
    except (ValueError, TypeError, OSError) as error:
        target.unlink(missing_ok=True)  # written, and not what a reader would take
        raise refused(error, main, **flags_there) from None
    same = all(x.tobytes() == again.values[name].tobytes() for name, x in found.values.items())
    if isinstance(found, weights.Pretrained):
        console.print(found.report(), soft_wrap=True, markup=False)
    said = "the same bits when read back" if same else "OTHER BITS when read back"
    console.print(f"written: {target}: {', '.join(weights.tensors(target))}; {said}", soft_wrap=True, markup=False)
    raise typer.Exit(0 if same else 1)
