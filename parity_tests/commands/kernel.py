"""attn-parity kernel: is an attention kernel right, within what it takes?"""

from typing import Annotated

import typer

from parity_tests.commands._shared import console, refused


def main(
    target: Annotated[str, typer.Argument(help="The kernel: package.module:function, from the current directory too.")],
    like: Annotated[str, typer.Option(help="Whose signature it has, such as attend or flash_attn_func.")] = "attend",
    limits: Annotated[
        str | None,
        typer.Option(help='What it takes: fields of Limits as JSON, such as {"block": 32}, or package.module:name.'),
    ] = None,
    arithmetic: Annotated[
        str | None,
        typer.Option(help="The widest class of arithmetic that is right; the widest of each type by default."),
    ] = None,
    framework: Annotated[str | None, typer.Option(help="Of its arrays, where it is not the signature's.")] = None,
    backward: Annotated[str | None, typer.Option(help="For NumPy: package.module:function.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long to ask.")] = 60.0,
    all_: Annotated[bool, typer.Option("--all", help="Ask for half an hour.")] = False,
    cases: Annotated[int | None, typer.Option(min=1, help="How many cases at most.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 0,
) -> None:
    """Judge a kernel by the meaning of a signature: outputs, gradients, and its promises about memory.

    It runs in a process of its own. The verdict names the narrowest class of arithmetic that holds; a failing case is
    made small and printed with the cause, if a known mistake gives its numbers.

    The exit status is 0 where the kernel agrees, 1 where it differs or no case was judged, and 2 where what was given
    can't be used.
    """
    from parity_tests.kernels.loading import loaded
    from parity_tests.kernels.referee import judge_kernel

    try:
        given: object = loaded(limits) if limits is not None else None
        verdict = judge_kernel(
            loaded(target), like if ":" not in like else loaded(like), given, arithmetic,  # type: ignore[arg-type]
            backward=None if backward is None else loaded(backward), framework=framework, seconds=seconds, all=all_,
            cases=cases, seed=seed, name=target,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise refused(error, main) from None
    console.print(str(verdict), soft_wrap=True, markup=False, highlight=False)
    console.print(f"{verdict.seconds:.0f} seconds", highlight=False)
    raise typer.Exit(0 if verdict.agrees else 1)
