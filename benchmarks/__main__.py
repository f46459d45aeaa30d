"""How fast are the three trees, beside the functions and layers of others, on this machine?"""

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

from attn_np.contract._package import how_to_install

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ModuleNotFoundError as absent:
    raise SystemExit(f"benchmarks: expected the package {absent.name}, got none; {how_to_install('parity')}") from None

from benchmarks import plan, run, variants
from benchmarks.entrants import WHO
from benchmarks.plan import BOTH, Race
from benchmarks.run import Found

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
# Where the output goes to a file or a pipe, lines are as long as they need to be.
console = Console(highlight=False, width=None if Console().is_terminal else 180)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A hint in two minutes: 10 rounds, few races.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="All races: 16384 positions, bfloat16, all peers; more than an hour.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(help="Races whose names match, comma-separated, such as 'attend/forward/*'; --list shows names."),
    ] = None,
    who: Annotated[str | None, typer.Option(help="Entrants that match, comma-separated, such as 'attn_*'.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each race; 30, quick 10.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads, and cores where the system can hold to them.")] = 2,
    out: Annotated[Path, typer.Option(help="A folder for results.json, report.html, speed.png and speed.svg.")] = Path(
        "results/benchmark"
    ),
    json: Annotated[Path | None, typer.Option(help="Write results.json here as well.")] = None,
    report_of: Annotated[
        Path | None, typer.Option("--from", help="Run nothing: the report and the picture of this results.json.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Run nothing: the races and their targets.")] = False,
) -> None:
    """Everything side by side, in turns; writes figures, a page to read and a picture."""
    from benchmarks import picture, report

    if quick and full:
        raise typer.BadParameter("--quick, --full: expected one of them, got both; leave one out")
    if json is not None and not json.resolve().parent.is_dir():
        raise typer.BadParameter(
            f"--json: expected a file in a folder that exists, got {json}; make {json.parent} first"
        )
    level = plan.QUICK if quick else plan.FULL if full else plan.USUAL
    wanted = run.chosen(level, parts(only), parts(who))
    if listed:
        show_list(wanted)
        return
    if report_of is not None:
        try:
            found = run.read(report_of)
        except (OSError, ValueError) as error:
            raise typer.BadParameter(f"--from: {error}") from None
    else:
        if not wanted:
            raise typer.BadParameter(f"--only, --who: expected a race, got none that matches {only!r}; try --list")
        rounds = rounds or run.default_rounds(level)
        found = run.header(shown(sys.argv[1:]), level, rounds, threads)
        out.mkdir(parents=True, exist_ok=True)
        measure(wanted, found, rounds, threads, out / "results.json")
    out.mkdir(parents=True, exist_ok=True)
    drawn = picture.draw(found, (out / "speed.png", out / "speed.svg"))
    variants.draw(found, out / "variants.png")
    report.write_html(out / "report.html", found, drawn)
    report.show(console, found)
    if json is not None:
        run.write(json, found)
    console.print(f"written: {', '.join(str(path) for path in sorted(out.iterdir()))}", soft_wrap=True)


def parts(text: str | None) -> tuple[str, ...]:
    """A comma-separated option."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def shown(words: list[str]) -> str:
    """The command as somebody else would type it: of paths outside the folder the name alone."""
    short = [Path(word).name if Path(word).is_absolute() else word for word in words]
    return shlex.join(["python", "-m", "benchmarks", *short])


def measure(wanted: list[Race], found: Found, rounds: int, threads: int, path: Path) -> None:
    """The run itself, under a bar that counts rounds by how long they are expected to take."""
    costs = {race.name: expected(race) for race in wanted}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=sum(costs.values()))
        begun: dict[str, None] = {}

        def told(race: Race, done: int, of: int) -> None:
            begun[race.name] = None
            others = sum(costs[name] for name in begun if name != race.name)
            bar.update(task, completed=others + costs[race.name] * done / of, description=race.name)

        run.run(wanted, found, rounds, threads, path, told)


def expected(race: Race) -> float:
    """A guess at what a race costs, for the bar: pairs of positions, weighted by what each entrant makes of them."""
    if race.kind == "memory":
        return 3.0 * len(race.entrants)
    total = 3.0
    if race.seconds is not None:
        return total + race.seconds
    for entrant in race.entrants:
        work = entrant.work
        each = 1e-8 * work.length**2 * (4 if WHO[entrant.who].matrices else 1) * (3 if work.passes == BOTH else 1)
        total += 30 * (0.03 + (0.05 if work.what == "decode" else each))
    return total


def show_list(wanted: list[Race]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("race", "entrants", "targets"):
        table.add_column(name)
    for race in wanted:
        targets = [f"{t.ours} ≤ {t.at_most:.3g} × {t.theirs}" for t in race.targets if t.theirs is not None]
        targets += [f"{t.ours} ≤ {t.at_most / 1e6:.0f} MB" for t in race.targets if t.theirs is None]
        table.add_row(race.name, ", ".join(e.name for e in race.entrants), "\n".join(targets))
    console.print(table)


def main() -> None:
    # A run that is ended from outside keeps what it has, as one that is ended by Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(prog_name="python -m benchmarks")


if __name__ == "__main__":
    main()
