"""attn-parity peers: layers against the libraries whose files they load."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import console, listed, needs_clone


def main(
    families: Annotated[str | None, typer.Option(help="Comma-separated names of layouts; all by default.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write them, and the libraries' defaults, where tests and pages read them.")
    ] = False,
) -> None:
    """Hold layers against transformers, Flax, Keras, Equinox and torch: random weights, nothing downloaded.

    The figures are the worst errors in bounds, of the library's own output and of ours from its file: at most 1 agrees.
    """
    import importlib
    import json
    import tempfile
    from importlib.metadata import version

    from rich.table import Table

    from parity_tests.judge.frameworks import FRAMEWORKS, prepare

    needs_clone()
    peers = importlib.import_module("parity_tests.peers")
    prepare(FRAMEWORKS)
    measure = importlib.import_module("parity_tests.peers._measure")
    results = json.loads(measure.RESULTS.read_text("utf-8")) if measure.RESULTS.exists() else {}
    results = {name: held for name, held in results.items() if name in peers.names()}
    out, agree = Table(box=None, pad_edge=False), True
    for column in ("layout", "library", "layers", "worst of the library", "worst of ours"):
        out.add_column(column)
    chosen = listed(families, peers.names(), "the name of a layout that has a peer")
    for family in chosen:
        rows, libraries = [], set()
        with console.status(f"judging {family}"):
            for (owner, _), peer in peers.peers().items():
                if owner == family:
                    with tempfile.TemporaryDirectory() as folder:
                        rows += [ratios for _, ratios in measure.measured(peer, Path(folder))]
                    libraries.add(f"{peer.library} {version(peer.library)}")
        theirs = max(row[measure.THEIRS] for row in rows)
        ours = max(x for row in rows for name, x in row.items() if name != measure.THEIRS)
        agree = agree and max(theirs, ours) <= 1
        figures = {"library": float(f"{theirs:.3g}"), "ours": float(f"{ours:.3g}")}
        results[family] = {"libraries": sorted(libraries), "layers": len(rows)} | figures
        out.add_row(family, ", ".join(sorted(libraries)), str(len(rows)), f"{theirs:.3g}", f"{ours:.3g}")
    console.print(out)
    if record and agree:
        measure.RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n", "utf-8")
        importlib.import_module("parity_tests.peers._recorded").record(chosen)
        console.print("recorded; make sync writes them to the documentation's table of layouts")
    raise typer.Exit(0 if agree else 1)
