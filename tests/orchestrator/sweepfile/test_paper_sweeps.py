"""The shipped files of the CRAFT paper's two tables: every published row has its configuration, of the published size."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from craft.methods import METHODS
from orchestrator.plan.gpu_costs import CARDS, gpu_cost
from orchestrator.plan.plan import make_plan
from orchestrator.sweepfile.load import load_sweep
from tests.craft.trainer.test_counting import config_of
from tests.orchestrator.plans import count

ROOT = Path(__file__).parents[3]
FILES = {
    "RoBERTa-base": ("glue/roberta_base.yaml", "published_glue.csv"),
    "RoBERTa-large": ("glue/roberta_large.yaml", "published_glue.csv"),
    "LLaMA2-7B": ("commonsense/llama.yaml", "published_commonsense.csv"),
    "LLaMA3-8B": ("commonsense/llama.yaml", "published_commonsense.csv"),
}


@pytest.mark.slow
@pytest.mark.parametrize("model", FILES)
def test_every_row_of_the_paper_is_planned_without_weights_and_the_header_has_the_hours(model: str, tmp_path: Path) -> None:
    config_of(model.lower(), tmp_path)
    file, table = FILES[model]
    plan = make_plan(load_sweep(ROOT / "sweeps" / file, [f"model={tmp_path}"]))
    ours = [
        (METHODS[configuration.method].title.lower(), configuration.counts.trainable_parameters)
        for configuration in plan.configurations
    ]
    with (ROOT / "dashboards" / "published" / table).open() as stream:
        published = [row for row in csv.DictReader(stream) if row["model"] == model]
    assert published
    for row in published:
        size = int(row["trainable_parameters"])
        exact = row["method"].startswith("CRAFT")
        # Other papers round their counts to one digit, some down.
        near = [
            count for name, count in ours if name == row["method"].lower() and abs(count - size) <= (0 if exact else 0.2 * size)
        ]
        assert near, f"{row['method']} with {size:,} parameters; planned: {ours}"
    assert {trial.run.protocol for trial in plan.trials} == {"customary"}
    cost = gpu_cost(plan, CARDS["H100"])
    (written,) = re.findall(rf"(?:# On an H100:|{model}) ([\d,]+) h of GPU", (ROOT / "sweeps" / file).read_text())
    assert int(written.replace(",", "")) == round(cost.gpu_hours)
    assert cost.lines[0].startswith(f"H100: {written} h of GPU")


# LoRA's table 9 (arXiv 2106.09685) and VeRA's table 8 (arXiv 2310.11454); VeRA's row has neither MNLI nor QQP.
ORDER = ("mnli", "sst2", "mrpc", "cola", "qnli", "qqp", "rte", "stsb")
VERA_ORDER = ("sst2", "mrpc", "cola", "qnli", "rte", "stsb")
E = 1e-4


@dataclass(frozen=True)
class Published:
    """A row's settings, task by task in the table's order."""

    file: str
    method: str
    parameters: dict[str, Any]
    batch_size: tuple[int, ...]
    epochs: tuple[int, ...]
    learning_rate: tuple[float, ...]
    max_length: tuple[int, ...]
    head_learning_rate: tuple[float, ...] = ()
    restricted: bool = False


BASE, LARGE = "roberta_base", "roberta_large"
ADAPTER_RATES = (3 * E,) * 8
ROWS = [
    Published(
        BASE, "lora", {"rank": 8, "alpha": 8}, (16, 16, 16, 32, 32, 16, 32, 16), (30, 60, 30, 80, 25, 25, 80, 40),
        (5 * E, 5 * E, 4 * E, 4 * E, 4 * E, 5 * E, 5 * E, 4 * E), (512,) * 8,
    ),
    Published(
        LARGE, "lora", {"rank": 8, "alpha": 16}, (4, 4, 4, 4, 4, 4, 8, 8), (10, 10, 20, 20, 10, 20, 20, 30),
        (3 * E, 4 * E, 3 * E, 2 * E, 2 * E, 3 * E, 4 * E, 2 * E), (128, 128, 512, 128, 512, 512, 512, 512),
    ),
    Published(
        LARGE, "lora", {"rank": 8, "alpha": 16}, (4,) * 8, (10, 10, 20, 20, 10, 20, 20, 10),
        (3 * E, 4 * E, 3 * E, 2 * E, 2 * E, 3 * E, 4 * E, 2 * E), (128,) * 8, restricted=True,
    ),
    Published(
        LARGE, "pfeiffer", {"bottleneck": 64}, (32,) * 8, (10, 20, 20, 20, 10, 20, 20, 20),
        (0.3 * E, 0.3 * E, *(3 * E,) * 6), (128,) * 8, restricted=True,
    ),
    Published(
        LARGE, "pfeiffer", {"bottleneck": 16}, (32,) * 8, (5, 20, 20, 20, 10, 20, 20, 20), ADAPTER_RATES, (128,) * 8,
        restricted=True,
    ),
    Published(
        LARGE, "houlsby", {"bottleneck": 64}, (32,) * 8, (10, 5, 10, 10, 5, 20, 20, 10), (0.3 * E, *(3 * E,) * 7), (128,) * 8,
        restricted=True,
    ),
    Published(
        LARGE, "houlsby", {"bottleneck": 8}, (32,) * 8, (10, 5, 10, 10, 5, 20, 20, 10), ADAPTER_RATES, (128,) * 8,
        restricted=True,
    ),
    Published(
        BASE, "vera", {"rank": 1024}, (64,) * 6, (60, 30, 80, 25, 160, 80), (4e-3, 1e-2, 1e-2, 1e-2, 4e-3, 1e-2), (512,) * 6,
        (4e-3, 4e-3, 1e-2, 4e-3, 1e-2, 1e-2), restricted=True,
    ),
    Published(
        LARGE, "vera", {"rank": 256}, (32,) * 6, (10, 40, 40, 20, 40, 20), (1e-2, 3e-2, 1e-2, 1e-2, 2e-2, 2e-2), (128,) * 6,
        (6e-3, 3e-3, 6e-3, 2e-4, 2e-3, 2e-3), restricted=True,
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.file}-{row.method}-{row.restricted}-{row.parameters}")
def test_rows_run_with_their_published_settings(row: Published) -> None:
    """What the trials themselves are given, after the file's layers are laid over each other."""
    sweep = load_sweep(ROOT / "sweeps" / "glue" / f"{row.file}.yaml")
    plan = count(sweep)
    order = VERA_ORDER if row.method == "vera" else ORDER
    (configuration,) = {
        trial.configuration
        for trial in plan.trials
        if trial.run.method == row.method
        and row.parameters.items() <= trial.run.parameters.items()
        and (trial.run.training.max_length == 128) == (row.max_length[-1] == 128)
        and trial.run.task == "glue/stsb"
    }
    runs = {
        trial.run.task.removeprefix("glue/"): trial.run
        for trial in plan.trials
        if (trial.configuration, trial.run.seed) == (configuration, 0)
    }
    for name in ("batch_size", "epochs", "learning_rate", "max_length", "head_learning_rate"):
        given = [getattr(runs[task].training, name) for task in order]
        expected = getattr(row, name)
        assert given == pytest.approx(expected) if expected else given == [None] * len(order), name
    assert {runs[task].training.gradient_accumulation for task in order} == {1}
    assert {runs[task].training.warmup_ratio for task in order} == {0.06}
    warm = {task for task in order if runs[task].warm_start is not None}
    assert warm == (set() if row.restricted else {"mrpc", "rte", "stsb"})
