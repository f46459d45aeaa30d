"""Time and memory against length, on logarithmic axes."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import statistics
from benchmarks.entrants import WHO
from benchmarks.plan import BOTH
from benchmarks.run import Found

Curve = list[tuple[int, float, float, float]]
PANELS = (
    ("attend/forward/full/", "time", "forward"),
    (f"attend/{BOTH}/full/", "time", "forward and backward"),
    ("memory/forward/full/", "memory", "memory beyond inputs and output"),
)


def curves(found: Found, prefix: str) -> dict[str, Curve]:
    """For every entrant the lengths with the median and the middle half of the samples: milliseconds, or megabytes."""
    out: dict[str, Curve] = {}
    for race in found["races"]:
        if not race["name"].startswith(prefix) or not race["name"].removeprefix(prefix).isdigit():
            continue
        for one in race["entrants"]:
            # Its memory is there before the call.
            if race["kind"] == "memory" and one["who"] == "two products":
                continue
            points = out.setdefault(one["name"], [])
            if one.get("seconds"):
                low, high = statistics.quartiles(one["seconds"])
                middle = statistics.median(one["seconds"])
                points.append((one["work"]["length"], 1e3 * middle, 1e3 * low, 1e3 * high))
            elif "bytes" in one:
                # Less than a tenth of a megabyte cannot be told from nothing.
                value = max(one["bytes"] / 1e6, 0.1)
                points.append((one["work"]["length"], value, value, value))
    return {name: sorted(points) for name, points in out.items() if points}


def draw(found: Found, paths: Iterable[Path]) -> str | None:
    """Write the picture to files by their endings; returns it as SVG, None where there is nothing to draw."""
    panels = [(title, kind, curves(found, prefix)) for prefix, kind, title in PANELS]
    panels = [panel for panel in panels if any(len(points) > 1 for points in panel[2].values())]
    if not panels:
        return None
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "attn-parity", "font.size": 9, "axes.titlesize": 10}):
        figure = Figure(figsize=(4.6 * len(panels), 5.2), layout="constrained", facecolor="white")
        FigureCanvasSVG(figure)
        handles: dict[str, Any] = {}
        for number, (title, kind, found_curves) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), number + 1)
            for name, points in found_curves.items():
                who = WHO[name]
                x, middle, low, high = zip(*points, strict=True)
                width, size = (2.2, 5) if who.ours else (1.3, 3.5)
                style = {"color": who.colour, "linestyle": who.dashes, "linewidth": width, "markersize": size}
                (handles[name],) = axes.plot(x, middle, marker="o", **style, label=name, zorder=3 if who.ours else 2)
                axes.fill_between(x, low, high, color=who.colour, alpha=0.15, linewidth=0)
            lengths = sorted({point[0] for points in found_curves.values() for point in points})
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(lengths, [str(length) for length in lengths], rotation=45)
            axes.minorticks_off()
            axes.set_xlabel("positions")
            axes.set_ylabel("milliseconds" if kind == "time" else "megabytes")
            axes.set_title(title, loc="left")
            axes.grid(True, color="#dddddd", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        names = [name for name in WHO if name in handles]
        figure.legend(
            [handles[name] for name in names],
            names,
            loc="outside lower center",
            ncols=min(5, len(names)),
            frameon=False,
        )
        for path in paths:
            figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]
