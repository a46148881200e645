"""Cases of the contract, written by hand from the papers: parameters of a small adapter, its count, its start.

Counts are for a BERT of hidden 32, 3 layers, MLP 64, every projection 32 x 32 but up (64 x 32) and down; those of types that
answer in words for a LLaMA of 2 layers, hidden 32, keys of 16, MLP 48.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.tasks.task import Kind

D, MLP, LAYERS, VOCABULARY, POSITIONS = 32, 64, 3, 283, 512
MODULES = 2 * LAYERS


@dataclass(frozen=True)
class Case:
    """`count` is without the task head. `start`: exact, close (up to rounding) or free, as the paper has it. `loads`: outputs
    after loading are exact, or close where a product's rounding depends on where its numbers lie in memory.

    `words`: the base is a language model that answers in words, so it has no head.
    """

    parameters: dict[str, Any]
    count: int
    start: str = "exact"
    loads: str = "exact"
    learning_rate: float = 1e-2
    words: bool = False

    @property
    def kind(self) -> Kind:
        return "generation" if self.words else "classification"


# BERT: embeddings with their norm, L x (4 projections, MLP, 2 norms), pooler.
BERT = (VOCABULARY + POSITIONS + 2) * D + 2 * D
BERT += LAYERS * (4 * (D * D + D) + D * MLP + MLP + MLP * D + D + 4 * D) + D * D + D
BIASES = D + LAYERS * (4 * D + MLP + D + 2 * D) + D

CASES: dict[str, Case] = {
    "craft": Case({"ranks": ["all", 8, 6]}, 2 * (3**2 + 8**2 + 6**2), start="free"),
    "craft_star": Case({"ranks": ["all", 8, 6]}, 4 * (3**2 + 8**2 + 6**2), start="free"),
    "head": Case({}, 0),
    "full": Case({}, BERT, learning_rate=1e-3),
    "bitfit": Case({}, BIASES),
    "lora": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D)),
    "rslora": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D)),
    "dora": Case({"rank": 4}, 2 * LAYERS * (4 * (D + D) + D)),
    "pissa": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D), start="close"),
    "olora": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D), start="close"),
    "lora_xs": Case({"rank": 6}, 2 * LAYERS * 6**2),
    "vera": Case({"rank": 16}, 2 * LAYERS * (16 + D)),
    "galore": Case({"rank": 4, "interval": 5, "scale": 1}, BERT, learning_rate=3e-3),
    "milora": Case({"rank": 4}, 2 * LAYERS * 4 * (D + D), start="close"),
    "adalora": Case({"init_rank": 4, "target_rank": 2}, 2 * LAYERS * (4 * (D + D) + 4)),
    "lotr": Case({"rank": 5}, 2 * (5 * (D + D) + LAYERS * 5**2)),
    # 6 matrices of 1024 entries in two groups of 3072, each folded into 15 x 15 x 14 = 3150.
    "superlora": Case({"rank": 3, "groups": 2, "order": 3}, 2 * (3**3 + 3 * (15 + 15 + 14))),
    "houlsby": Case({"bottleneck": 4}, LAYERS * (2 * (2 * D * 4 + D + 4) + 2 * 2 * D)),
    "pfeiffer": Case({"bottleneck": 4}, LAYERS * (2 * D * 4 + D + 4)),
    "adapterdrop": Case({"bottleneck": 4, "dropped_layers": 1}, (LAYERS - 1) * (2 * D * 4 + D + 4)),
    # 32 = 8·4, 8 = 4·2: trains 4 2 | 8 4 and 8 4 | 4 2 of rank 2, two adapters a layer.
    "loretta": Case(
        {"bottleneck": 8, "rank": 2},
        2 * LAYERS * ((4 * 2 + 2 * 2 * 2 + 2 * 8 * 2 + 2 * 4) + (8 * 2 + 2 * 4 * 2 + 2 * 4 * 2 + 2 * 2)),
    ),
    "ia3": Case({}, LAYERS * (D + D + MLP)),
}
"""By method; `peft` is LILY here."""

_TYPES: dict[str, Case] = {
    # A holds 8 of each subspace's components, and the rows of all B together are those of W.
    "ADAMSS": Case({"r": 8, "num_subspaces": 2, "subspace_rank": 1}, MODULES * (2 * 8 + D)),
    "ADAPTION_PROMPT": Case({"adapter_len": 4, "adapter_layers": 2}, 2 * (4 * D + 1), words=True, learning_rate=1.0),
    "BEFT": Case({}, MODULES * D),
    "BOFT": Case({"boft_block_size": 4}, MODULES * (D // 4 * 4 * 4 + D)),
    "C3A": Case({"block_size": 8}, MODULES * (D // 8) ** 2 * 8, start="free"),
    "DEFT": Case({"r": 4}, MODULES * 4 * (D + D), start="free"),
    "DELORA": Case({"r": 4, "delora_lambda": 2}, MODULES * (4 * (D + D) + 1)),
    "FOURIERFT": Case({"n_frequency": 40, "scaling": 10.0}, MODULES * 40, start="free"),
    # A diagonal, and one entry in a hundred off it.
    "FROD": Case({"sparse_rate": 0.01}, MODULES * (D + int(0.01 * D * D)), start="free"),
    # A and B of rank 4, C of rank 4 between d_in and one bias, D and E one number each.
    "GLORA": Case({"r": 4}, MODULES * (2 * 4 * (D + D) + 4 * (D + 1) + 2), loads="close"),
    "GRALORA": Case({"r": 4, "alpha": 8}, MODULES * 4 * (D + D)),
    "HIRA": Case({"r": 4}, MODULES * 4 * (D + D)),
    "HRA": Case({"r": 4}, MODULES * 4 * D, start="free"),
    "IA3": Case({"feedforward_modules": []}, MODULES * D),
    # An A for each module, two B for each of q and v, and a router that mixes them.
    "LILY": Case({"r": 4, "num_B": 2}, MODULES * 4 * D + 2 * 2 * 4 * D + MODULES * 4 * 2),
    "LN_TUNING": Case({"target_modules": ["LayerNorm"]}, (1 + 2 * LAYERS) * 2 * D),
    "LOHA": Case({"r": 2}, MODULES * 2 * 2 * (D + D)),
    "LOKR": Case({"r": 2}, MODULES * (4 * 4 + 2 * (8 + 8))),
    "LORA": Case({"r": 4, "init_lora_weights": "orthogonal"}, MODULES * 4 * (D + D), start="free"),
    "MISS": Case({"r": 4}, MODULES * 4 * D),
    # 4 x 4 blocks of skew-symmetric 8 x 8 matrices.
    "OFT": Case({"oft_block_size": 8}, MODULES * (D // 8) * (8 * 7 // 2)),
    "OSF": Case({"effective_rank": 24}, MODULES * ((D - 24) * (D + D) + (D - 24)), start="free"),
    "PEANUT": Case({"r": 4}, MODULES * 4 * (D + D)),
    "PSOFT": Case({"r": 6}, MODULES * (6 * 5 // 2 + 6 + 6)),
    # VeRA's b and d, and a second d for the deviation of what is sampled.
    "PVERA": Case({"r": 16}, MODULES * (2 * 16 + D)),
    # 4 pairs of random bases of rank 8: their diagonals.
    "RANDLORA": Case({"r": 8}, MODULES * (4 * 8 + 4 * D)),
    "ROAD": Case({"group_size": 8}, MODULES * 2 * D // 2),
    "SHADOW": Case(
        {"r": 4, "shadow_num_hidden_layers": 1, "shadow_intermediate_size": 48},
        # Injection, update and gate in each of 2 layers; beside them a backbone of one layer.
        2 * (2 * 4 * D + 2 * (2 * 4 * D + 4 + D)) + (2 * D * D + 2 * 16 * D + 3 * 48 * D + 3 * D),
        words=True,
    ),
    # As many entries of W as LoRA of rank 2 has.
    "SHIRA": Case({"r": 2}, MODULES * 2 * (D + D)),
    "SUPERTUNING": Case({"sparsity": 0.9}, MODULES * round(0.1 * D * D)),
    "TINYLORA": Case({"r": 2, "u": 16}, MODULES * 16),
    "TRAINABLE_TOKENS": Case({"token_indices": list(range(40, 60))}, 20 * D, words=True),
    "UNILORA": Case({"r": 2, "theta_d_length": 32}, 32, start="free", learning_rate=1e-1),
    "VBLORA": Case(
        {"r": 2, "num_vectors": 12, "vector_length": 8}, 12 * 8 + MODULES * 2 * (D // 8 + D // 8) * 12, start="free"
    ),
    "VERA": Case({"r": 16}, MODULES * (16 + D)),
    "WAVEFT": Case({"n_frequency": 40}, MODULES * 40),
}
"""By PEFT's type; the parameters are PEFT's `config`."""
TYPES = {name: replace(case, parameters={"peft_type": name, "config": case.parameters}) for name, case in _TYPES.items()}
SUBJECTS = CASES | {f"peft {name}": case for name, case in TYPES.items()}
"""Every method but `peft`, and every type of PEFT."""
QUICK = ("craft", "craft_star", "lora", "adalora", "dora", "pissa", "vera", "lotr", "houlsby", "ia3", "bitfit", "full", "head")
"""A method of each kind; the tests of the others are slow."""
CASES["peft"] = TYPES["LILY"]


def put(model: Any, method: str, parameters: Mapping[str, Any] | None = None, kind: str = "SEQ_CLS") -> Any:
    """Puts a method, by default as its case has it, on a model that will train for 20 steps."""
    row, given = METHODS[method], CASES[method].parameters if parameters is None else parameters
    return row.build(model, row.parameters.model_validate(given), BuildContext(kind, total_steps=20))


def marked(cases: Iterable[Any], quick: Collection[Any] = QUICK) -> list[Any]:
    """Returns values, or tuples of them, for a test that is quick for some alone, such as a method of each kind."""
    values = {case: case if isinstance(case, tuple) else (case,) for case in cases}
    return [pytest.param(*each, marks=() if case in quick else pytest.mark.slow) for case, each in values.items()]
