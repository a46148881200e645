"""`python -m craft.tucker report MODEL`: the energy report of a model's projections, as a table and a plot.

It answers how much of the weights a rank triple keeps, whether that is more than the same ranks keep of noise, how fast the
spectrum of each mode falls, and how far initialization and dropout move the model. Decompositions go into the factor store, so
that a second report and later runs read them from there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from craft.factors.energy import LEVELS, RankEnergy, StackEnergy, stack_energy
from craft.factors.hosvd import Ranks, resolve_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from craft.models.projections import Located

_FEATURE_RANKS = (8, 16, 32, 64, 100, 128, 250, 360)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 2 where the model, a projection or a rank cannot be had."""
    options = _parser().parse_args(arguments)
    try:
        if options.plot:
            _painter(options.plot)
        stacks = report(
            options.model,
            projections=options.projections,
            ranks=options.ranks,
            epsilon=options.init_epsilon,
            dropout=options.dropout,
            device=options.device,
        )
        if options.plot:
            draw(options.model, stacks, options.plot)
    except (ValueError, OSError) as error:
        print(f"craft.tucker report: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(stack) for stack in stacks]))
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=120)
    for stack in stacks:
        _print(stack, console)
    for line in (
        "",
        "energy kept: share of ||W||^2 in R, and the same of Gaussian noise. Theorem 1: bound on ||W - R||^2 / ||W||^2.",
        f"init: expected ||T - R|| / ||R|| at J = I + {options.init_epsilon:g} N(0, 1), and Theorem 3's bound on it.",
        f"dropout: the same with dropout {options.dropout:g} on J.",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    if options.plot:
        console.print(f"Plot: {options.plot}", highlight=False, soft_wrap=True)
    return 0


def report(
    model: str,
    *,
    projections: Sequence[str] = ("q", "v"),
    ranks: Sequence[Sequence[int | str]] = (),
    epsilon: float = 1e-3,
    dropout: float = 0.005,
    device: str | None = None,
) -> list[StackEnergy]:
    """The energy of every stack of the model's `projections` at `ranks` (r1 = all and usual r2 = r3 if absent).

    Raises:
        ValueError: the model, a projection or a rank cannot be had; the message says what can.
    """
    from craft.factors.store import default_store
    from craft.models.projections import find_projections

    loaded = _load(model)
    stacks = []
    for name, layers in find_projections(loaded, projections).items():
        shape = (len(layers), *layers[0].shape)
        triples = [resolve_ranks(triple, shape, name=f"projection {name!r}") for triple in ranks] or _usual(shape)
        largest = [max(triple[mode] for triple in triples) for mode in range(3)]
        factors = default_store().get(stack_weights(loaded, layers), largest, name=name, device=device)
        stacks.append(stack_energy(name, factors, triples, epsilon=epsilon, dropout=dropout))
    return stacks


def stack_weights(model: nn.Module, layers: Sequence[Located]) -> list[Tensor]:
    """The weights of one stack as (d_out, d_in) views, in `nn.Linear` orientation."""
    from transformers.pytorch_utils import Conv1D

    weights = []
    for layer in layers:
        module = model.get_submodule(layer.module_name)
        weight = module.get_parameter("weight").detach()
        weights.append((weight.T if isinstance(module, Conv1D) else weight)[layer.start : layer.stop])
    return weights


def draw(model: str, stacks: Sequence[StackEnergy], path: Path) -> None:
    """Four panels: the share kept against r2, and the cumulated energy of each mode; Gaussian noise dashed.

    Raises:
        ValueError: `path` ends neither in .html (interactive, one file) nor in .png, .pdf or .svg.
    """
    painter = _painter(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    painter(model, stacks, path)


def _painter(path: Path) -> Callable[[str, Sequence[StackEnergy], Path], None]:
    kinds = {".html": _draw_html, ".png": _draw_image, ".pdf": _draw_image, ".svg": _draw_image}
    if path.suffix.lower() not in kinds:
        raise ValueError(f"--plot {path}: the file's ending says its kind: {', '.join(kinds)}")
    return kinds[path.suffix.lower()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m craft.tucker",
        description="How much of a model's weights a rank triple keeps, beside Gaussian noise: how to pick CRAFT's ranks.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "report",
        help="energy kept, decay of each mode, Theorem 1's bound, initialization and dropout perturbation",
        epilog="Example: python -m craft.tucker report sentence-transformers/all-MiniLM-L6-v2 --projections q k v o "
        "--ranks all,64,64 --ranks all,128,128 --plot energy.png",
    )
    command.add_argument("model", metavar="MODEL", help="hub id, local folder or FOLDER/FILE.gguf")
    command.add_argument("--projections", nargs="+", default=["q", "v"], metavar="WORD", help="default: q v")
    command.add_argument(
        "--ranks", action="append", type=_triple, default=[], metavar="R1,R2,R3", help="repeatable; all = full"
    )
    command.add_argument("--init-epsilon", type=float, default=1e-3, help="J starts at I + epsilon N(0, 1); default 1e-3")
    command.add_argument("--dropout", type=float, default=0.005, help="on the entries of J; default 0.005")
    command.add_argument("--device", help="where to decompose, such as cuda; the processor if absent")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw to .png, .pdf, .svg or .html")
    command.add_argument("--json", action="store_true", help="print the numbers as JSON instead of tables")
    return parser


def _triple(text: str) -> tuple[int | str, ...]:
    parts = text.replace("x", ",").split(",")
    if len(parts) != 3 or not all(part == "all" or part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank triple such as all,64,64 or 12,100,100")
    return tuple(part if part == "all" else int(part) for part in parts)


def _usual(shape: Sequence[int]) -> list[Ranks]:
    features = min(shape[1], shape[2])
    return [(shape[0], rank, rank) for rank in _FEATURE_RANKS if rank <= features] or [(shape[0], features, features)]


def _load(name: str) -> nn.Module:
    from transformers import AutoModel

    from craft.models.gguf_file import is_gguf
    from craft.models.loading import ModelUnavailable, load_config, load_model, resolve_model
    from craft.models.quiet import quiet_libraries

    if is_gguf(name):
        return load_model(name, "generation", ())
    config = load_config(name, "generation", ())
    try:
        with quiet_libraries():
            model: nn.Module = AutoModel.from_pretrained(
                resolve_model(name), config=config, dtype="auto", use_safetensors=True, trust_remote_code=False
            )
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"model {name}: its weights cannot be read: {' '.join(str(error).split())[:300]}") from error
    return model


def _print(stack: StackEnergy, console: Console) -> None:
    shape = " x ".join(map(str, stack.shape))
    console.print(f"\n{stack.name}: {shape}, norm {stack.norm:.4g}", style="bold", highlight=False)
    table = Table(box=None)
    headings = ("r1, r2, r3", "trains", "energy kept", "of noise", "Theorem 1", "init", "Theorem 3", "dropout")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in stack.rows:
        table.add_row(*_cells(row))
    console.print(table)
    decay = Table(box=None)
    for heading in ("mode", "size", *(f"columns for {level:.0%}" for level in LEVELS), "the same of noise"):
        decay.add_column(heading, justify="right")
    for mode in stack.modes:
        decay.add_row(str(mode.mode), str(mode.size), *map(str, mode.needed), ", ".join(map(str, mode.noise)))
    console.print(decay)


def _cells(row: RankEnergy) -> tuple[str, ...]:
    bound = "says nothing" if row.bound >= 1 else f"at most {row.bound:.1%}"
    return (
        ", ".join(map(str, row.ranks)),
        f"{row.parameters:,}",
        f"{row.kept:.1%}",
        f"{row.noise:.1%}",
        bound,
        f"{row.initial:.2%}",
        f"at most {row.initial_bound:.0%}",
        f"{row.dropout:.1%}",
    )


def _curves(stacks: Sequence[StackEnergy]) -> list[dict[str, Any]]:
    """The plot as data: panel 0 to 3, label, x, y and colour of every curve. Stacks of one shape share their noise curve."""
    curves: list[dict[str, Any]] = []
    shapes = dict.fromkeys(stack.shape for stack in stacks)
    drawn: set[tuple[int, ...]] = set()
    for index, stack in enumerate(stacks):
        rows = sorted(stack.rows, key=lambda row: row.ranks[1])
        noise = "noise" if len(shapes) == 1 else f"noise {'x'.join(map(str, stack.shape))}"
        mine = {"label": stack.name, "colour": _COLOURS[index % len(_COLOURS)], "noise": False}
        others = {"label": noise, "colour": "#888888", "noise": True}
        ranks = [row.ranks[1] for row in rows]
        curves.append({**mine, "panel": 0, "x": ranks, "y": [row.kept for row in rows]})
        curves.extend({**mine, "panel": mode.mode, "x": _counts(mode.size), "y": list(mode.cumulated)} for mode in stack.modes)
        if stack.shape in drawn:
            continue
        drawn.add(stack.shape)
        curves.append({**others, "panel": 0, "x": ranks, "y": [row.noise for row in rows]})
        for mode in stack.modes:
            curves.append({**others, "panel": mode.mode, "x": _counts(mode.size), "y": list(mode.cumulated_noise)})
    return curves


def _counts(size: int) -> list[int]:
    return list(range(1, size + 1))


_TITLES = (
    ("energy kept", "r2"),
    ("mode 1: layers", "leading columns"),
    ("mode 2: outputs", "leading columns"),
    ("mode 3: inputs", "leading columns"),
)
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")


def _draw_image(model: str, stacks: Sequence[StackEnergy], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.8), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    for curve in _curves(stacks):
        style = "--" if curve["noise"] else "-"
        few = curve["panel"] < 2 and not curve["noise"]
        panel = panels[curve["panel"]]
        panel.plot(curve["x"], curve["y"], style, color=curve["colour"], label=curve["label"], marker="o" * few, markersize=4)
    for panel, (title, axis) in zip(panels, _TITLES, strict=True):
        panel.set(title=title, xlabel=axis, ylim=(0, 1.02))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("share of squared norm")
    panels[0].legend(fontsize=8)
    figure.suptitle(model)
    figure.savefig(path, dpi=150)


def _draw_html(model: str, stacks: Sequence[StackEnergy], path: Path) -> None:
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=4, shared_yaxes=True, subplot_titles=[title for title, _ in _TITLES])
    for curve in _curves(stacks):
        figure.add_scatter(
            x=curve["x"],
            y=curve["y"],
            name=curve["label"],
            legendgroup=curve["label"],
            showlegend=curve["panel"] == 0,
            mode="lines",
            line={"color": curve["colour"], "dash": "dash" if curve["noise"] else "solid"},
            row=1,
            col=curve["panel"] + 1,
        )
    for column, (_, axis) in enumerate(_TITLES, start=1):
        figure.update_xaxes(title_text=axis, row=1, col=column)
    figure.update_yaxes(range=[0, 1.02])
    figure.update_layout(title=model, template="plotly_white")
    figure.write_html(path, include_plotlyjs=True)


if __name__ == "__main__":
    raise SystemExit(main())
