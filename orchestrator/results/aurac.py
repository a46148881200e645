"""AURAC: the area under a method's score against log2 of its trainable parameters, one number for a whole front.

    AURAC = 1 / (log2 p_n - log2 p_1)  x  the trapezoid area under the points (log2 p_i, s_i),  p_1 < ... < p_n

It is the mean score over the range, where each doubling of the parameters weighs alike. Its form is that of MatryoshkaLoRA's
`metrics.py` (v2), with parameters in place of ranks. Areas over different ranges cannot be compared: a method that only ran at
large sizes has the better mean. So each area comes with its range, and with the area over the range that all methods share (if
they share one).

At each number of parameters stands the configuration that has the best *search* score there, with its reported score. A method
that tried more learning rates therefore gains nothing from the luck of the reported split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from orchestrator.results.summary import Summary


@dataclass(frozen=True)
class Measured:
    """A complete configuration as the area sees it; `search_score` is NaN where none is known."""

    method: str
    parameters: float
    search_score: float
    score: float


@dataclass(frozen=True)
class Area:
    """One method's area.

    Attributes:
        value: over the method's own range.
        low, high: the ends of that range, trainable parameters.
        sizes: how many numbers of parameters stand behind it, two at least.
        shared: the area over `shared_range`; None where there is no such range.
        shared_range: the range that all methods with an area share.
    """

    method: str
    value: float
    low: float
    high: float
    sizes: int
    shared: float | None = None
    shared_range: tuple[float, float] | None = None


def area(parameters: ArrayLike, scores: ArrayLike, between: tuple[float, float] | None = None) -> float:
    """The area of one curve, linear in log2 of the parameters between its points.

    Args:
        parameters: `(n,)`, positive, ascending, different.
        scores: `(n,)`.
        between: the range to measure, inside that of the curve; the whole curve without it.

    Returns:
        The mean score over the range; NaN for fewer than two points or a range without width.
    """
    at, score = np.log2(np.asarray(parameters, dtype=float)), np.asarray(scores, dtype=float)
    if len(at) < 2:
        return math.nan
    if between is not None:
        low, high = np.log2(between)
        ends = np.interp([low, high], at, score)
        inside = (at > low) & (at < high)
        at, score = np.concatenate([[low], at[inside], [high]]), np.concatenate([ends[:1], score[inside], ends[1:]])
    width = at[-1] - at[0]
    return float(np.trapezoid(score, at) / width) if width > 0 else math.nan


def areas(measured: Iterable[Measured]) -> list[Area]:
    """The area of every method that has two numbers of parameters or more, by name."""
    curves = {method: curve for method, curve in sorted(_curves(measured).items()) if len(curve) > 1}
    found = [
        Area(name, area([*curve], [*curve.values()]), min(curve), max(curve), len(curve)) for name, curve in curves.items()
    ]
    if len(found) < 2:
        return found
    between = max(one.low for one in found), min(one.high for one in found)
    if between[0] >= between[1]:
        return found
    return [
        replace(one, shared=area([*curve], [*curve.values()], between), shared_range=between)
        for one, curve in zip(found, curves.values(), strict=True)
    ]


def areas_of(summaries: Iterable[Summary]) -> list[Area]:
    """The areas of a sweep's complete configurations."""
    names = ("trainable_parameters", "search_score", "score")
    return areas(
        Measured(method_of(one.method, "cut_to" in one.parameters), *(one.value(name) for name in names))
        for one in summaries
        if one.complete
    )


def method_of(method: str, cut: bool) -> str:
    """The name under which an area counts a configuration: one that was cut, not trained, counts apart."""
    return f"{method} cut" if cut else method


def tracked(found: Sequence[Area]) -> dict[str, float]:
    """The areas as metrics of the sweep's run: `aurac/METHOD`, the ends of its range, and `aurac_shared/METHOD`."""
    metrics: dict[str, float] = {}
    for one in found:
        metrics |= {f"aurac/{one.method}": one.value}
        metrics |= {f"aurac_from/{one.method}": float(one.low), f"aurac_to/{one.method}": float(one.high)}
        if one.shared is not None:
            metrics[f"aurac_shared/{one.method}"] = one.shared
    return metrics


def in_words(found: Sequence[Area]) -> str:
    """The areas as a sentence, each with its range; empty without any."""
    if not found:
        return ""
    each = [f"{one.method} {one.value:.2f} ({one.low:,.0f} to {one.high:,.0f}, {one.sizes} sizes)" for one in found]
    sentence = f"area under score against log2 parameters (AURAC): {', '.join(each)}"
    if len(found) < 2:
        return sentence
    if (between := found[0].shared_range) is None:
        return sentence + "; the methods share no range, so their areas cannot be compared"
    shared = ", ".join(f"{one.method} {one.shared:.2f}" for one in found)
    return sentence + f"; over the range that all share ({between[0]:,.0f} to {between[1]:,.0f}), to compare: {shared}"


def _curves(measured: Iterable[Measured]) -> Mapping[str, dict[float, float]]:
    """Each method's score by number of parameters, ascending: that of the best search score at this number."""
    best: dict[str, dict[float, Measured]] = {}
    for one in measured:
        if not (math.isfinite(one.score) and math.isfinite(one.parameters) and one.parameters > 0):
            continue
        sizes = best.setdefault(one.method, {})
        if one.parameters not in sizes or _place(one) > _place(sizes[one.parameters]):
            sizes[one.parameters] = one
    return {method: {size: sizes[size].score for size in sorted(sizes)} for method, sizes in best.items()}


def _place(one: Measured) -> float:
    """What is compared at one number of parameters; the reported score where an old record holds no search score."""
    return one.search_score if math.isfinite(one.search_score) else one.score
