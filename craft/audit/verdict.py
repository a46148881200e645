"""`Audit`: what came of an audit, and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from craft.audit.changes import share_layers
from craft.audit.folder import Folder
from craft.audit.paired import Difference
from craft.words import points

SERVED = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank."""


def served_rank(rank: int) -> int:
    """Returns the least of vLLM's ranks which fits."""
    return next((served for served in SERVED if served >= rank), rank)


@dataclass(frozen=True)
class Size:
    """The adapter at one size. `parameters` are those of the LoRA without a task head; `ranks` by module."""

    parameters: int
    ranks: Mapping[str, int]
    score: float
    difference: Difference
    folder: Path | None = None


@dataclass(frozen=True)
class Audit:
    """What came of an audit.

    Attributes:
        score, without: with the adapter, and without its change of weights (the base; its head as it was trained).
        sizes: from large to small. `enough` is the smallest whose `probability` is at least `sure`, if the adapter `helps`.
        shares: each module's share of the change.
        form: in which form pairs are read, if the audit chose it.
        seen: the rows whose texts the adapter was trained on.
        helps: whether the rows show that the whole adapter's change helps by more than `within`; without it no size is enough.
    """

    folder: Folder
    metric: str
    rows: int
    parameters: int
    score: float
    without: float
    sizes: tuple[Size, ...]
    within: float
    sure: float
    trained: bool
    shares: Mapping[str, float]
    warnings: tuple[str, ...]
    form: str | None = None
    helps: bool = True
    seen: int = 0

    def probability(self, size: Size) -> float:
        """Returns the least probability that neither this size nor a larger one loses more than `within` points (Bonferroni).

        The smallest of several sizes that pass is a chosen one: its own probability alone would call it enough too often.
        """
        larger = [tried.difference for tried in self.sizes if tried.parameters >= size.parameters]
        return max(0.0, 1 - sum(1 - difference.probability(self.within) for difference in larger))

    @property
    def enough(self) -> Size | None:
        good = [size for size in self.sizes if self.helps and self.probability(size) >= self.sure]
        return min(good, key=lambda size: size.parameters, default=None)

    @property
    def verdict(self) -> str:
        """The answer in words, with its doubt."""
        many = f"{self.seen:,} of these {self.rows:,} rows {'was' if self.seen == 1 else 'were'} in its training"
        return self._answer + (f" In doubt: {many}, and may be learnt by heart." if self.seen else "")

    @property
    def _answer(self) -> str:
        if not self.helps:
            lost = points(float(f"{self.within:.3g}"))
            return (
                f"No verdict: these {self.rows:,} rows do not show that the adapter's change helps by more than the "
                f"{lost} that may be lost (score {self.score:.1f}, without its change {self.without:.1f}): "
                "any size would seem enough. Give more held-out rows, or train the adapter longer."
            )
        size = self.enough
        if size is not None:
            gap = size.difference
            ranks = sorted(rank for rank in size.ranks.values() if rank)
            method = "CRAFT" if self.folder.peft_type == "CRAFT" else "a LoRA"
            form = f"{method} of rank {ranks[0]}" if ranks[0] == ranks[-1] else f"{method} of ranks {ranks[0]} to {ranks[-1]}"
            return (
                f"{size.parameters:,} of its {self.parameters:,} parameters are enough: {gap.mean:+.1f} points "
                f"({gap.low:+.1f} to {gap.high:+.1f}), P(within {self.within:.3g}) {self.probability(size):.2f}; {form}."
            )
        if not self.sizes:
            return f"Half of its {self.parameters:,} parameters are too few for rank 1. Keep the adapter as it is."
        largest = self.sizes[0]  # a smaller one is enough only if this one is
        gap, count = largest.difference, largest.difference.rows_to_decide(self.within, self.sure)
        if count is None:
            advice = "" if self.trained else ", or give --train: cuts that are trained on lose less"
            loss = f"{largest.parameters:,} parameters lose {-gap.mean:.1f} points on these rows, more than {self.within:.3g}"
            return f"No size is enough: {loss}. Keep the adapter as it is{advice}."
        need = max(count, self.rows + 1)
        return (
            f"Not decided: with {largest.parameters:,} of its {self.parameters:,} parameters the score changes by "
            f"{gap.mean:+.1f} points ({gap.low:+.1f} to {gap.high:+.1f}). About {need:,} held-out rows may show whether "
            f"more than {self.within:.3g} would be lost; there are {self.rows:,}."
        )

    @property
    def served_rank(self) -> int:
        """The least of the ranks that servers of LoRA are built for which fits the smallest size that is enough."""
        return served_rank(max(self.enough.ranks.values())) if self.enough else 0

    def picture(self, rows: int) -> Iterator[str]:
        """Yields a line for each of the layers with the largest shares of the change, with a bar."""
        for layer, share in sorted(share_layers(self.shares).items(), key=lambda item: -item[1])[:rows]:
            yield f"  {layer:<10} {100 * share:3.0f} % of the change  {'#' * round(40 * share)}"
