"""`python -m craft.tucker report MODEL`: what CRAFT's ranks keep of a model's weights, as one table.

The energy kept is the share ||R||^2 / ||W||^2 of a stack's squared norm. The factors are orthonormal, so ||R|| = ||G||, and one
decomposition gives the share of every smaller rank triple. It goes into the factor store, where later runs find it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from craft.factors.hosvd import Ranks, TuckerFactors, resolve_ranks
from craft.words import be_printable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from craft.models.projections import Located

_FEATURE_RANKS = (8, 16, 32, 64, 100, 128, 250, 360)


@dataclass(frozen=True)
class RankEnergy:
    """One rank triple of one projection: what CRAFT trains there, and the share of ||W||^2 that R holds."""

    projection: str
    ranks: Ranks
    parameters: int
    kept: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the exit status is 2 if the model, a projection or a rank cannot be had."""
    be_printable()
    options = _parser().parse_args(arguments)
    try:
        rows = report(options.model, projections=options.projections, ranks=options.ranks, device=options.device)
    except (ValueError, OSError) as error:
        print(f"craft.tucker report: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    table = Table("projection", "r1, r2, r3", "trains", "energy kept", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(row.projection, ", ".join(map(str, row.ranks)), f"{row.parameters:,}", f"{row.kept:.1%}")
    Console().print(table)
    return 0


def report(
    model: str, *, projections: Sequence[str] = ("q", "v"), ranks: Sequence[Sequence[int | str]] = (), device: str | None = None
) -> list[RankEnergy]:
    """What each of `ranks` (r1 = all and usual r2 = r3 if absent) keeps of every one of the model's `projections`.

    Raises:
        ValueError: the model, a projection or a rank cannot be had; the message says what can.
    """
    from craft.factors.stacks import stack_factors
    from craft.models.projections import find_projections

    loaded = _load(model)
    rows = []
    for name, layers in find_projections(loaded, projections).items():
        shape = (len(layers), *layers[0].shape)
        triples = [resolve_ranks(triple, shape, name=f"projection {name!r}") for triple in ranks] or _usual(shape)
        largest = [max(triple[mode] for triple in triples) for mode in range(3)]
        factors = stack_factors(_stack_weights(loaded, layers), largest, name=name, device=device)
        rows += [RankEnergy(name, triple, sum(rank * rank for rank in triple), _kept(factors, triple)) for triple in triples]
    return rows


def _kept(factors: TuckerFactors, ranks: Ranks) -> float:
    total = factors.squared_norm
    return float(factors.slice(ranks).core.double().square().sum()) / total if total else 1.0


def _stack_weights(model: nn.Module, layers: Sequence[Located]) -> list[Tensor]:
    """The weights of one stack as (d_out, d_in) views, in `nn.Linear` orientation."""
    from transformers.pytorch_utils import Conv1D

    weights = []
    for layer in layers:
        module = model.get_submodule(layer.module_name)
        weight = module.get_parameter("weight").detach()
        weights.append((weight.T if isinstance(module, Conv1D) else weight)[layer.start : layer.stop])
    return weights


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m craft.tucker", description="How much of a model's weights CRAFT's ranks keep."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "report",
        help="the energy kept by rank",
        epilog="Example: python -m craft.tucker report sentence-transformers/all-MiniLM-L6-v2 --projections q k v o "
        "--ranks all,64,64 --ranks all,128,128",
    )
    command.add_argument("model", metavar="MODEL", help="hub id, local folder or FOLDER/FILE.gguf")
    command.add_argument("--projections", nargs="+", default=["q", "v"], metavar="WORD", help="default: q v")
    command.add_argument(
        "--ranks", action="append", type=_triple, default=[], metavar="R1,R2,R3", help="repeatable; all = full"
    )
    command.add_argument("--device", help="where to decompose, such as cuda; the processor if absent")
    command.add_argument("--json", action="store_true", help="print the numbers as JSON instead of a table")
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

    from craft.models.loading import ModelUnavailable, load_config, resolve_model
    from craft.models.quiet import quiet_libraries

    config = load_config(name, "generation", ())
    try:
        with quiet_libraries():
            model: nn.Module = AutoModel.from_pretrained(
                resolve_model(name), config=config, dtype="auto", use_safetensors=True, trust_remote_code=False
            )
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"model {name}: its weights cannot be read: {' '.join(str(error).split())[:300]}") from error
    return model


if __name__ == "__main__":
    raise SystemExit(main())
