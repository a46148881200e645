"""Writes a front as files: `front.csv`, `front.tex`, `front.png`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.record.folder import FRONT_CSV, FRONT_PNG, FRONT_TEX
from orchestrator.results.summary import Summary
from orchestrator.review.front_tables import latex, write_csv
from orchestrator.sweepfile.objectives import Objectives


def write_front(summaries: Sequence[Summary], objectives: Objectives, folder: Path, title: str) -> list[Path]:
    """`front.csv`, `front.tex` and `front.png` in `folder`; returns their paths."""
    from orchestrator.review.front_picture import write_png

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in (FRONT_CSV, FRONT_TEX, FRONT_PNG)]
    write_csv(summaries, objectives, paths[0])
    paths[1].write_text(latex(summaries, objectives), encoding="utf-8")
    write_png(summaries, objectives, paths[2], title)
    return paths
