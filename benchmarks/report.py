"""What a run found, for a reader: verdicts on targets, ratios, times, tokens per second, memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import statistics, variants
from benchmarks.entrants import WHO
from benchmarks.run import Found

# Digits that agree: half of a type's. What differs by more computes something else.
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7}
# A share of the cores that others may take before it is told.
BUSY = 0.1
STYLES = {"met": "green", "met within noise": "green", "missed": "bold red", "not measured": "yellow", "": "dim"}


@dataclass(frozen=True)
class Line:
    """A ratio of two entrants in a race, or a size, and what was hoped for.

    Attributes:
        race: its name.
        ours, theirs: names of entrants; theirs is None for a size in bytes.
        value, low, high: the ratio and its 95 % interval, or bytes three times; None where it was not measured.
        at_most: the target, where there is one.
        verdict: "met", "met within noise", "missed", "not measured", or "" without a target.
        why: why it was not measured.
        rounds: how many pairs of samples.
    """

    race: str
    ours: str
    theirs: str | None
    value: float | None
    low: float | None
    high: float | None
    at_most: float | None
    verdict: str
    why: str
    rounds: int


def missing(one: dict[str, Any] | None, figure: str) -> str | None:
    """Why an entrant has no "seconds" or no "bytes", whichever is asked for; None where it has."""
    if one is None:
        return "not part of this run"
    if one.get(figure) not in (None, []):  # nothing beyond inputs and output is 0 bytes
        return None
    state = "not run" if one["state"] == "measured" else one["state"]
    return f"{one['name']}: {state}" + (f", {one['why']}" if one.get("why") else "")


def compared(race: dict[str, Any], ours: str, theirs: str | None, at_most: float | None) -> Line:
    by_name = {one["name"]: one for one in race["entrants"]}
    figure = "bytes" if theirs is None or race["kind"] == "memory" else "seconds"
    why = [missing(by_name.get(name), figure) for name in (ours, theirs) if name is not None]
    reasons = "; ".join(reason for reason in why if reason)
    if reasons:
        verdict = "not measured" if at_most is not None else ""
        return Line(race["name"], ours, theirs, None, None, None, at_most, verdict, reasons, 0)
    if theirs is None:
        size = float(by_name[ours]["bytes"])
        found, count = statistics.Ratio(size, size, size), 1
    elif race["kind"] == "memory":
        value = by_name[ours]["bytes"] / max(by_name[theirs]["bytes"], 1)
        found, count = statistics.Ratio(value, value, value), 1
    else:
        a, b = by_name[ours]["seconds"], by_name[theirs]["seconds"]
        found, count = statistics.ratio(a, b), len(a)
    verdict = statistics.verdict(found, at_most) if at_most is not None else ""
    return Line(race["name"], ours, theirs, found.value, found.low, found.high, at_most, verdict, "", count)


def lines(found: Found) -> list[Line]:
    """Every target of the run, and every other ratio of one of ours to one that is not."""
    out = []
    for race in found["races"]:
        judged = {(t["ours"], t["theirs"]): t["at_most"] for t in race["targets"]}
        out += [compared(race, ours, theirs, at_most) for (ours, theirs), at_most in judged.items()]
        for one in race["entrants"]:
            for other in race["entrants"]:
                pair = one["name"], other["name"]
                if WHO[one["who"]].ours and not WHO[other["who"]].ours and pair not in judged:
                    line = compared(race, *pair, None)
                    if line.value is not None:
                        out.append(line)
    return out


def seconds(value: float) -> str:
    """A time in few characters."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def size(value: float) -> str:
    return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.1f} MB"


def figure(line: Line) -> str:
    if line.value is None:
        return "–"
    return size(line.value) if line.theirs is None else f"{line.value:.3g}"


def interval(line: Line) -> str:
    if line.low is None or line.high is None or line.theirs is None or line.rounds < 2:
        return ""
    return f"{line.low:.3g} to {line.high:.3g}"


def target(line: Line) -> str:
    if line.at_most is None:
        return ""
    return f"≤ {size(line.at_most)}" if line.theirs is None else f"≤ {line.at_most:.3g}"


def faster(line: Line) -> str:
    """The same in words."""
    if line.value is None:
        return line.why
    if line.theirs is None:
        return "beyond inputs and output"
    taken = "memory" if line.race.startswith("memory") else "time"
    if line.value >= 1:
        return f"{line.value:.3g} × its {taken}"
    if taken == "memory":
        return f"{100 * line.value:.0f} % of its memory"
    return f"{1 / line.value:.3g} × faster"


def times(found: Found) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Each race with its entrants: what each took, with the middle half of its samples."""
    for race in found["races"]:
        rows = []
        for one in race["entrants"]:
            why = missing(one, "bytes" if race["kind"] == "memory" else "seconds")
            row = {"name": one["name"], "ours": "ours" if WHO[one["who"]].ours else "", "middle": "", "note": why or ""}
            row["figure"] = "–"
            if why is None and race["kind"] == "memory":
                row["figure"] = size(one["bytes"])
            elif why is None:
                middle = statistics.median(one["seconds"])
                low, high = statistics.quartiles(one["seconds"])
                row["figure"], row["middle"] = seconds(middle), f"{seconds(low)} to {seconds(high)}"
                if one["work"]["what"] == "decode":
                    row["note"] = f"{1 / middle:,.0f} tokens per second"
                if one.get("differs", 0.0) > EPSILON[one["work"]["dtype"]] ** 0.5:
                    row["note"] = f"computes something else: differs by {one['differs']:.2g}"
            rows.append(row)
        yield race["name"], rows


def counts(judged: list[Line]) -> dict[str, int]:
    """How many targets have each verdict."""
    return {word: sum(line.verdict == word for line in judged) for word in STYLES if word}


def headline(found: Found) -> str:
    judged = [line for line in lines(found) if line.at_most is not None]
    told = counts(judged)
    met = told["met"] + told["met within noise"]
    words = f"{met} targets met ({told['met within noise']} within noise), {told['missed']} missed"
    words += f", {told['not measured']} not measured" if told["not measured"] else ""
    fewest = min((line.rounds for line in judged if line.rounds and line.theirs), default=found["pairs"])
    short = f"; from {fewest} rounds on where a target asks for 30, so they are a hint" if fewest < 30 else ""
    disturbed = [race["others"] for race in found["races"] if (race.get("others") or 0.0) > BUSY]
    if disturbed:
        short += f"; in {len(disturbed)} of the races others used up to {100 * max(disturbed):.0f} % of the cores"
    stopped = "" if found["state"] == "complete" else f"; the run was {found['state']}, what it had is here"
    return words + short + stopped


def show(console: Console, found: Found) -> None:
    """Targets with their verdicts, then what every entrant took."""
    everything = lines(found)
    judged = [line for line in everything if line.at_most is not None]
    table = Table(title="targets: ratio of medians with its 95 % interval", title_justify="left")
    for name in ("race", "ours", "against", "ratio", "interval", "target", "verdict", ""):
        table.add_column(name, justify="right" if name in ("ratio", "interval", "target") else "left")
    last = ""
    for line in judged:
        style = STYLES[line.verdict]
        verdict = f"[{style}]{line.verdict}[/]" if style else line.verdict
        cells = (line.ours, line.theirs or "", figure(line), interval(line), target(line))
        table.add_row(line.race if line.race != last else "", *cells, verdict, escape(faster(line)))
        last = line.race
    if judged:
        console.print(table)
    table = Table(title="medians, and the middle half of the samples", title_justify="left")
    for name in ("race", "entrant", "median", "middle half", ""):
        table.add_column(name, justify="right" if name in ("median", "middle half") else "left")
    for race, rows in times(found):
        for number, row in enumerate(rows):
            name = f"[bold]{row['name']}[/]" if row["ours"] else row["name"]
            table.add_row(race if not number else "", name, row["figure"], row["middle"], escape(row["note"]))
        table.add_section()
    console.print(table)
    summary = variants.table(found)
    if summary is not None:
        console.print(summary)
    console.print(headline(found), soft_wrap=True)


def write_html(path: Path, found: Found, picture: str | None) -> None:
    """The same as one page, complete in itself."""
    environment = Environment(
        loader=PackageLoader("benchmarks"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    everything = lines(found)
    page = environment.get_template("report.html.j2").render(
        found=found,
        headline=headline(found),
        judged=[line for line in everything if line.at_most is not None],
        rest=[line for line in everything if line.at_most is None],
        times=list(times(found)),
        picture=Markup(picture) if picture else None,
        figure=figure,
        interval=interval,
        target=target,
        faster=faster,
    )
    path.write_text(page, "utf-8")
