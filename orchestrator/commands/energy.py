"""What CRAFT's ranks keep of a model's weights, as one table: `craft-sweeps energy MODEL`.

The energy kept is the share ||R||^2 / ||W||^2 of a stack's squared norm. The factors are orthonormal, so ||R|| = ||G||, and one
decomposition gives the share of every smaller rank triple. It goes into the factor store, where later runs find it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from craft.ranks import Ranks, parse_ranks, resolve_ranks
from orchestrator.tools.quiet import write_report

USUAL_RANKS = (8, 16, 32, 64, 100, 128, 250, 360)


@dataclass(frozen=True)
class RankEnergy:
    """One rank triple of one projection: what CRAFT trains there, and the share of ||W||^2 that R holds."""

    projection: str
    ranks: Ranks
    parameters: int
    energy_kept: float


def print_report(
    model: str, projections: Sequence[str], ranks: Sequence[str], device: str | None = None, as_json: bool = False
) -> None:
    """Prints `report` as a table, or as JSON.

    Args:
        ranks: triples as text, `all,64,64`.
    """
    rows = report(model, projections=projections, ranks=[parse_ranks(text) for text in ranks], device=device)
    if as_json:
        write_report(json.dumps([asdict(row) for row in rows]))
        return
    table = Table("projection", "r1, r2, r3", "trains", "energy kept", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(row.projection, ", ".join(map(str, row.ranks)), f"{row.parameters:,}", f"{row.energy_kept:.1%}")
    Console(emoji=False).print(table)


def report(
    model: str, *, projections: Sequence[str] = ("q", "v"), ranks: Sequence[Sequence[int | str]] = (), device: str | None = None
) -> list[RankEnergy]:
    """Computes what each of `ranks` (r1 = all and usual r2 = r3 if absent) keeps of each of the model's `projections`.

    Raises ValueError if the model, a projection or a rank is not available; the message says what is.
    """
    import torch

    from craft.factors.hosvd import stack_factors
    from craft.models import Base
    from craft.models.loading import load_config, load_model
    from craft.models.projections import find_projections
    from craft.tuners.craft.stack import base_weight

    # The format that the files have, with any head: no head has projections.
    narrow = load_config(Base(model, "generation", ())).dtype == torch.bfloat16
    base = load_model(Base(model, "classification", ("no", "yes"), precision="bfloat16" if narrow else "float32"))
    rows = []
    for name, layers in find_projections(base, projections).items():
        shape = (len(layers), *layers[0].shape)
        triples = [resolve_ranks(triple, shape, name=f"projection {name!r}") for triple in ranks]
        least = min(shape[1:])
        usual = [(shape[0], rank, rank) for rank in USUAL_RANKS if rank <= least] or [(shape[0], least, least)]
        triples = triples or usual
        largest = [max(triple[mode] for triple in triples) for mode in range(3)]
        weights = [base_weight(base.get_submodule(layer.module_name), layer) for layer in layers]
        factors = stack_factors(weights, largest, name=name, device=device)
        for triple in triples:
            kept = float(factors.slice(triple).core.double().square().sum()) / (factors.squared_norm or 1.0)
            rows.append(RankEnergy(name, triple, sum(rank * rank for rank in triple), kept if factors.squared_norm else 1.0))
    return rows
