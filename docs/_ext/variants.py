"""One page per variant, written from its contract, its three source files and one run of its NumPy layer.

Pages are found by discovery, like everything else: a new contract module is a new page. What a contract leaves out, its
page leaves out.
"""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import functions
import pictures
import sources
from ideas import FREE, Picture, arrays, call, picture, plain

from attn_np import contract
from attn_np.contract import Config
from attn_np.contract._letters import LETTERS

ROOT = Path(__file__).parents[2]
TREES = {"NumPy": "attn_np", "Flax": "attn_jax", "PyTorch": "attn_torch"}
KINDS = {
    "array": "float array",
    "bias": "float array, broadcastable",
    "mask": "boolean, broadcastable; True = may attend",
    "keep": "boolean, broadcastable; True = not dropped",
    "marks": "boolean, broadcastable; True = marked",
    "integers": "integer array",
}
# Families in the order in which one learns them: their titles, and what their members have in common.
FAMILIES = {
    "dense": ("Softmax attention", "Every query weighs every key: how it is scored, projected and computed."),
    "heads": (
        "Heads that share and mix",
        "Fewer keys to cache, a latent in their place, or heads that hear of each other.",
    ),
    "positions": ("Positions", "How the order of the words gets into the scores."),
    "sparse": ("Patterns", "Each query looks at fewer keys."),
    "scores": ("Other weighings", "Something else than a softmax, or something done to the scores before it."),
    "linear": (
        "States instead of caches",
        "Attention without a softmax is a state of one size, which every position changes.",
    ),
    "alignment": ("Where attention began", "Which word of a sentence belongs to which of its translation."),
    "recurrent": ("Recurrent networks", "The networks that were the first to attend."),
}
# Modules of `attn_np.textbook` that are called otherwise than the variant.
BOARDS = {"blockwise": "flash", "entmax_attention": "sparsemax"}
# By field or argument, what a layer has beside the formula.
ADDED = {
    "mask": "masks of any shape that broadcasts (`mask=`), and queries that may see nothing",
    "causal": "causality (`causal`), also with fewer queries than keys",
    "window": "a sliding window (`window`)",
    "bias": "an additive bias of the scores (`bias=`)",
    "keep": "dropout (`dropout`, with masks of your own by `keep=`)",
    "use_bias": "biases of the projections (`use_bias`)",
    "use_output": "a projection of the outputs (`use_output`)",
    "softcap": "a bound of the scores (`softcap`)",
    "num_kv_heads": "query heads that share keys and values (`num_kv_heads`)",
}
# field=value, dotted.name, snake_case
IDENTIFIER = r"[A-Za-z]\w*=[\w.]+|[A-Za-z]\w+(?:\.\w{2,})+|[A-Za-z]\w*_\w+"


# Text -----------------------------------------------------------------------------------------------------------------


def prose(text: str, *, every: bool = False) -> str:
    """Contract prose as MyST: names of variants become links, names of fields and functions become code.

    Many names are words of the language too. Without `every` they become links in backticks only.
    """
    names = [name for name in contract.variants() if every or "_" in name or len(name) < 4]
    known = "|".join(sorted(names, key=len, reverse=True))
    pattern = rf"`[^`]*`|\$[^$]*\$|(?<![\w.])(?:{known})(?![\w.=(])|{IDENTIFIER}"

    def mark(found: re.Match[str]) -> str:
        word = found[0]
        if word.strip("`") in contract.variants():
            return f"[`{word.strip('`')}`]({word.strip('`')}.md)"
        if word[0] in "`$":
            return word
        return f"`{word}`"

    escaped = re.sub(r"(?<!\\)([*<>\[\]])", r"\\\1", text) if "`" not in text and "$" not in text else text
    marked = re.sub(pattern, mark, escaped)
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", marked)


def code(text: object) -> str:
    return f"`{text}`" if "|" not in str(text) else "`" + str(text).replace("|", "\\|") + "`"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [head, tuple("---" for _ in head), *rows]
    return ["", *(f"| {' | '.join(line)} |" for line in lines), ""]


def meanings(config: type[Config]) -> dict[str, str]:
    """What the fields mean: the section `Attributes:` of the class's docstring."""
    section = inspect.cleandoc(config.__doc__ or "").partition("Attributes:\n")[2]
    found, name = {}, ""
    for line in section.splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif name and line.startswith(" " * 8):
            found[name] += " " + line.strip()
        elif line.strip():
            break
    return found


def typename(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


# Parts of a page ------------------------------------------------------------------------------------------------------


def block(text: str, *options: str) -> list[str]:
    return ["````{code-block} python", *options, "", text, "````", ""]


def three_trees(variant: str, files: dict[str, sources.Source]) -> list[str]:
    """The forward in three trees: side by side in a wide window, else in tabs."""
    out = ["The same lines in three trees; those that are not in all of them are marked.", ""]
    out += ["`````{tab-set}", ":sync-group: tree", ":class: trees", ""]
    apart = sources.lines_apart(file.forward for file in files.values())
    for (tree, file), numbers in zip(files.items(), apart, strict=True):
        marked = [f":emphasize-lines: {','.join(map(str, numbers))}"] if numbers else []
        out += [f"````{{tab-item}} {tree}", f":sync: {tree.lower()}", ""]
        out += ["```{code-block} python", f":caption: {TREES[tree]}/{variant}.py", *marked, "", file.forward, "```"]
        out += ["````", ""]
    return [*out, "`````", ""]


def board_of(variant: str) -> Path | None:
    """The textbook module of a variant; None where there is none."""
    path = ROOT / "attn_np" / "textbook" / f"{BOARDS.get(variant, variant)}.py"
    return path if path.exists() else None


def board(variant: str) -> list[str]:
    """The variant as one writes it on a board, and in words what the library's layer adds."""
    path = board_of(variant)
    if path is None:
        return []
    source = path.read_text("utf-8")
    code = source[source.index("import numpy as np") :].rstrip()
    file = path.relative_to(ROOT)
    out = ["## On the board", ""]
    out += ["Plain NumPy and nothing else, forward and backward; tests hold it to the layer. "]
    if variant == "entmax_attention":
        out[-1] += "This is the case `alpha=2`, *sparsemax*. "
    out += ["", *block(code, f":caption: {file}")]
    return [*out, "### What the library adds", "", *added(variant), ""]


def added(variant: str) -> list[str]:
    """A list of what the layer has and the board has not: from its contract."""
    config, examples = contract.get(variant).Config, contract.examples(variant).values()
    names = {*config.fields(), *(name for example in examples for name in example.arguments())}
    lines = [f"- {words}" for name, words in ADDED.items() if name in names]
    if any(example.cache_axes() for example in examples):
        lines.append("- decoding: a cache and one step at a time (`init_cache`, `step`)")
    lines += [
        "- 16, 32 and 64 bits with one rounding at the end (`dtype`), in NumPy, Flax and PyTorch",
        "- a tape of named intermediates (`trace`), fast paths, and errors that say what was expected",
    ]
    said = {word for name in names & ADDED.keys() for word in (name, *re.findall(r"`(\w+)=?`", ADDED[name]))}
    more = [name for name in config.fields() if name not in said and name not in config.required()]
    return [*lines, f"- the fields {', '.join(f'`{name}`' for name in more)}, [below](#fields)"] if more else lines


def legend(letters: set[str]) -> str:
    """What the letters of axes mean."""
    return "Axes: " + ", ".join(f"`{x}` {meaning}" for x, meaning in LETTERS.items() if x in letters) + "."


def classed(name: str, lines: list[str]) -> list[str]:
    """A table with a class of the style sheet."""
    return [f":::{{div}} {name}", *lines, ":::", ""] if lines else []


def line_by_line(path: Path) -> list[str]:
    """Each line of the forward that computes something, beside its formula; the functions that it calls."""
    rows = [(code(line), f"${formula}$") for line, formula in sources.line_by_line(path)]
    boxes = sources.opened(path, backward=False)
    letters = set("".join(re.findall(r"_\{([a-z]+)\}", "".join(formula for _, formula in rows))))
    about = "Each product as the sum that it is: over the letters that its result lacks. " + legend(letters)
    out = ["### Line by line", "", about, "", *classed("steps", table(("Line", "Formula"), rows))] if rows else []
    return [*out, "### What it calls", "", *boxes] if boxes else out


def backward(path: Path, file: sources.Source) -> list[str]:
    """The backward pass: its code, what each step computes, and the rules that it calls."""
    out = [
        "### Backward",
        "",
        "The forward pass in reverse, by hand, in NumPy. Each line takes the gradient of a result ",
    ]
    out[-1] += "(named `d` and its name) to the gradients of its operands."
    out += ["", *block(file.backward, f":caption: attn_np/{path.name}")]
    rows = [
        (code(line), "<br>".join(f"${formula}$" for formula in formulas) or sources.escaped(sentence))
        for line, formulas, sentence in sources.backward_steps(path)
    ]
    out += classed("steps", table(("Step", "What it computes"), rows))
    return [*out, *sources.opened(path, backward=True)]


# Pages ----------------------------------------------------------------------------------------------------------------


def page(variant: str, drawn: Picture | None) -> str:
    config = contract.get(variant).Config
    examples = contract.examples(variant)
    title = getattr(config, "title", variant)
    paths = {tree: ROOT / package / f"{variant}.py" for tree, package in TREES.items()}
    files = {tree: sources.source(path) for tree, path in paths.items() if path.exists()}
    out = [f"# {title}", ""]

    def get(name: str) -> Any:
        return getattr(config, name, None)

    family = f"family *{config.family}*, " if get("family") else ""
    out += [f"`{variant}`: {family}class `{config.class_name}`" if get("class_name") else f"`{variant}`", ""]
    if get("idea"):
        out += [prose(config.idea), ""]
    if get("formula"):
        out += ["$$", config.formula, "$$", ""]
    if drawn:
        out += [
            "```{raw} html",
            f":file: {variant}.svg",
            "```",
            "",
            f"<p class='picture-caption'>{pictures.caption(drawn.caption)}</p>",
            "",
        ]
    out += board(variant)
    if get("notation"):
        out += ["## Notation", ""]
        out += table(("In the paper", "Here"), [(code(a), code(b)) for a, b in config.notation.items()])

    if files:
        out += ["## Use", "", *use(variant), ""]
        out += ["## The code", "", *three_trees(variant, files)]
    if "NumPy" in files:
        out += line_by_line(paths["NumPy"])
    if "NumPy" in files and files["NumPy"].backward:
        out += backward(paths["NumPy"], files["NumPy"])

    out += ["## Fields", ""]
    told = meanings(config)
    rows = []
    for f in fields(config):
        default = "required" if f.default is MISSING else code(repr(f.default))
        rows.append((code(f.name), code(typename(f.type)), default, prose(told.get(f.name, ""))))
    out += classed("fields", table(("Field", "Type", "Default", "Meaning"), rows))

    ranked = sorted(examples.values(), key=lambda item: -len(item.params()))
    example, params = ranked[0], {}
    out += ["## Parameters", ""]
    for holder in ranked:  # parameters that depend on a field stand in different examples
        new = {n: p for n, p in holder.params().items() if n not in params}
        params |= new
        if new:
            out += [f"The keys of a weight file, with the shapes of `{config.class_name}({call(holder)})`.", ""]
            rows = [(code(n), code(p.axes), code(holder.shapes()[n]), str(holder.fans()[n])) for n, p in new.items()]
            out += classed("axes", table(("Name", "Axes", "Shape", "Fan"), rows))
    if params:
        normal = [code(n) for n, p in params.items() if p.normal]
        others = f"; those of {', '.join(normal)} are standard normal" if normal else ""
        out += [f"Initial values are uniform in (-1/sqrt(fan), 1/sqrt(fan)){others}.", ""]
    else:
        out += ["None: it works on the queries, keys and values that it is given.", ""]

    rows, letters = [], set("".join(p.axes for p in params.values()))
    for n, arg in example.arguments().items():
        letters |= set(arg.axes)
        absent = (
            f"{code(arg.falls_back_to)} stands in"
            if arg.falls_back_to
            else ("optional" if arg.optional else "required")
        )
        rows.append((code(n), code(arg.axes), KINDS.get(arg.kind, arg.kind), absent))
    out += ["## Arguments of a call", "", *classed("axes", table(("Argument", "Axes", "Holds", "When left out"), rows))]
    out += [legend(letters), ""]

    if get("cost"):
        out += ["## Cost", "", prose(config.cost), ""]
    if get("equals"):
        out += ["## Equals", "", *(f"- {prose(line, every=True)}" for line in config.equals), ""]
    named = [(name, preset) for name, (behind, preset) in contract.presets().items() if behind == variant]
    if named:
        out += ["## Presets", "", "Named settings of some fields; arguments of your own take precedence.", ""]
        rows = [
            (code(name), preset.title, code(", ".join(f"{f}={v!r}" for f, v in preset.fields.items())),
             f"{prose(preset.idea)} {prose(preset.paper)}.")
            for name, preset in named
        ]  # fmt: skip
        out += table(("Name", "Title", "Fields", "Idea"), rows)
    if get("traps"):
        out += ["## Traps", "", *(f"- {prose(line)}" for line in config.traps), ""]
    if get("paper"):
        out += ["## Paper", "", prose(config.paper), ""]
    return "\n".join(out)


def use(variant: str) -> list[str]:
    """The same call of a plain layer in three tabs."""
    config = plain(variant)
    sizes = FREE | {"b": 2, "t": 5, "s": 5} | config.sizes()
    given = arrays(config, sizes, mask=False)
    build = f'layer = attn.build("{variant}", seed=0{", " + call(config) if call(config) else ""})'
    lines = {
        name: f'rng.normal(size={x.shape}).astype("float32")'
        if x.dtype.kind == "f"
        else f"rng.random(size={x.shape}) < 0.25"
        if x.dtype.kind == "b"
        else f"rng.integers(0, {sizes.get('u', 2)}, size={x.shape})"
        for name, x in given.items()
    }
    wrap = {"NumPy": "{}", "Flax": "jnp.asarray({})", "PyTorch": "torch.from_numpy({})"}
    needs = {"NumPy": [], "Flax": ["import jax.numpy as jnp"], "PyTorch": ["import torch"]}
    out = ["````{tab-set}", ":sync-group: tree", ""]
    for tree, package in TREES.items():
        third = sorted(["import numpy as np", *needs[tree]])
        text = [*third, f"import {package} as attn", "", "rng = np.random.default_rng(0)"]
        text += [f"{name} = {wrap[tree].format(value)}" for name, value in lines.items()]
        text += [
            build,
            f"result, tape = attn.trace(layer, {', '.join(f'{n}={n}' for n in lines)})",
            "print(list(tape))",
        ]
        out += [f"```{{tab-item}} {tree}", f":sync: {tree.lower()}", "", "~~~python", *text, "~~~", "```", ""]
    return [*out, "````"]


def year(variant: str) -> str:
    """The year of a variant's paper."""
    return next(iter(re.findall(r"\b(?:19|20)\d\d\b", getattr(contract.get(variant).Config, "paper", ""))), "")


def by_family() -> dict[str, list[str]]:
    """The variants of each family, the oldest first; the families in the order in which one learns them."""
    found: dict[str, list[str]] = {}
    for variant in contract.variants():
        found.setdefault(getattr(contract.get(variant).Config, "family", "other"), []).append(variant)
    order = [*FAMILIES, *sorted(found.keys() - FAMILIES.keys())]
    return {family: sorted(found[family], key=lambda name: (year(name), name)) for family in order if family in found}


def catalogue() -> str:
    families = by_family()
    out = ["# Catalogue", "", f"{len(contract.variants())} variants, by family, each written three times. New to "]
    out[-1] += "attention? Begin with [`dot_product`](dot_product.md), [`mha`](mha.md) and [`gqa`](gqa.md), or with "
    out += ["[the course](../course/index.md).", ""]
    for family, members in families.items():
        title, about = FAMILIES.get(family, (f"{family[:1].upper()}{family[1:]}", ""))
        out += [f"## {title}", "", about, "", "::::{grid} 1 1 2 2", ":gutter: 3", ""]
        for variant in members:
            config = contract.get(variant).Config
            out += [
                f":::{{grid-item-card}} {getattr(config, 'title', variant)}",
                f":link: {variant}",
                ":link-type: doc",
                "",
            ]
            out += [f"`{variant}`, {year(variant)}", "", prose_plain(getattr(config, "idea", "")), ":::", ""]
        out += ["::::", ""]
        also = [
            f"- `{name}`, {preset.title}: [`{variant}`]({variant}.md) with "
            + ", ".join(f"`{field}={value!r}`" for field, value in preset.fields.items())
            for name, (variant, preset) in contract.presets().items()
            if variant in members
        ]
        out += [*also, ""] if also else []
    out += [
        "```{toctree}",
        ":hidden:",
        ":maxdepth: 1",
        "",
        *(variant for members in families.values() for variant in members),
        "```",
        "",
    ]
    return "\n".join(out)


def prose_plain(text: str) -> str:
    """Prose without links, for cards that are links themselves."""
    return re.sub(r"\[(`[^`]*`)\]\([^)]*\)", r"\1", prose(text))


def write(folder: Path) -> list[Path]:
    """Write every page that changed; remove those whose variant is gone."""
    folder.mkdir(exist_ok=True)
    pages = {"index.md": catalogue()}
    pages["reference.txt"] = functions.reference()
    for variant in contract.variants():
        drawn = picture(variant) if (ROOT / "attn_np" / f"{variant}.py").exists() else None
        pages[f"{variant}.md"] = page(variant, drawn)
        if drawn:
            pages[f"{variant}.svg"] = drawn.svg
    for old in folder.iterdir():
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
    return [folder / name for name in pages]


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "variants"))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
