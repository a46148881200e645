"""`sweeps/baselines.yaml`: every method is in it, and is planned with the count that its paper's formula gives on MiniLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.methods import METHODS
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.sweepfile.load import load_sweep

FILE = Path(__file__).parents[3] / "sweeps" / "baselines.yaml"

# MiniLM: 6 layers of width 384, an MLP of 1536, 30,522 words, 512 positions. Written out by hand, with nothing of the package.
L, D, MLP = 6, 384, 1536
LAYER = 4 * (D * D + D) + (D * MLP + MLP) + (MLP * D + D) + 2 * 2 * D
WHOLE = (30522 + 512 + 2) * D + 2 * D + L * LAYER + D * D + D
ADAPTER = 2 * D * 16 + D + 16
FORMULAS = {
    "head": 0,
    "craft": 2 * (6**2 + 64**2 + 64**2),
    "craft_star": 4 * (6**2 + 64**2 + 64**2),
    "full": WHOLE,
    "bitfit": D + L * (4 * D + MLP + D + 2 * D) + D,
    "galore": WHOLE,
    "lora": 2 * L * 8 * (D + D),
    "rslora": 2 * L * 8 * (D + D),
    "dora": 2 * L * (8 * (D + D) + D),
    "pissa": 2 * L * 8 * (D + D),
    "olora": 2 * L * 8 * (D + D),
    "milora": 2 * L * 8 * (D + D),
    "adalora": 2 * L * 12 * (D + D + 1),
    "lora_xs": 2 * L * 25**2,
    "vera": 2 * L * (256 + D),
    "lotr": 2 * (32 * (D + D) + L * 32**2),
    # 12 matrices of 384 x 384 in four groups of 442,368, each folded into 77 x 76 x 76.
    "superlora": 4 * (8**3 + 8 * (77 + 76 + 76)),
    "houlsby": L * (2 * ADAPTER + 2 * 2 * D),
    "pfeiffer": L * ADAPTER,
    "adapterdrop": (L - 2) * ADAPTER,
    # 384 = 8·8·6 and 64 = 8·8: trains 8 8 | 8 8 6 and 8 8 6 | 8 8 of rank 5, two adapters a layer.
    "loretta": 2 * L * ((8 * 5 + 3 * 5 * 8 * 5 + 5 * 6) + (8 * 5 + 2 * 5 * 8 * 5 + 5 * 6 * 5 + 5 * 8)),
    "ia3": L * (D + D + MLP),
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(load_sweep(FILE))


def test_every_method_that_runs_on_a_cpu_is_in_it_once(plan: Plan) -> None:
    methods = [one.method for one in plan.configurations]
    assert sorted(methods) == sorted(name for name, row in METHODS.items() if row.requires is None and name != "peft")
    assert len({trial.run.task for trial in plan.trials}) == 2


@pytest.mark.parametrize("method", FORMULAS)
def test_its_count_is_its_papers(plan: Plan, method: str) -> None:
    (one,) = [one for one in plan.configurations if one.method == method]
    assert one.counts.trainable_parameters == FORMULAS[method]
