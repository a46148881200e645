"""Cut adapters against the arithmetic written out by hand, numpy's SVD of J - I and of s B A; and the sizes of a run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from craft.results import RunFailed, RunResult
from craft.spec import RECOVERY, RunSpec
from craft.trainer import cuts
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.counting import planned_counts
from craft.trainer.cuts import cut_and_score
from craft.trainer.training import train_run

Trained = Callable[..., tuple[RunSpec, RunResult]]
SHORT = {"max_steps": 4, "train_examples": 24, "eval_examples": 16, "max_length": 24, "batch_size": 8, "learning_rate": 3e-2}
SIZES = {"craft": (60, 150), "lora": (460, 1000)}
PARAMETERS: dict[str, Any] = {
    "craft": {"ranks": ["all", 8, 8], "scaling": 1.5},
    "lora": {"rank": 4, "alpha": 6, "projections": ["q", "v"]},
}


@pytest.fixture(scope="module")
def trained(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trains a method once a module."""

    @cache
    def get(method: str) -> tuple[RunSpec, RunResult]:
        parameters = PARAMETERS.get(method, PARAMETERS["lora"])
        spec = RunSpec(model=tiny_bert, task="toy/sentiment", method=method, parameters=parameters, training=SHORT)
        return spec, train_run(spec, tmp_path_factory.mktemp(method), cuts=SIZES.get(method, ()))

    return get


def cut_to(adapter: Path, size: str, to: Path) -> RunSpec:
    """Cuts an adapter without scoring it, into the folder `to`; returns the run in its record."""
    with tempfile.TemporaryDirectory() as scratch:
        run, result = cut_and_score(adapter, size, Path(scratch) / "place", score=False)
        result.adapter.rename(to)
    return run


def j_of(adapter: Path) -> dict[str, np.ndarray]:
    tensors = load_file(adapter / "adapter_model.safetensors")
    return {key: j.astype(float) for key, j in tensors.items() if "craft_J" in key}


@pytest.mark.parametrize("rank", [1, 3])
def test_a_craft_adapter_cut_to_one_rank_has_the_leading_directions_of_j(trained: Trained, tmp_path: Path, rank: int) -> None:
    """J1 (3 x 3) stays whole from rank 2 on, J2 and J3 (8 x 8) from rank 4: as many parameters as the square itself."""
    _, result = trained("craft")
    (result.adapter / "README.md").write_text("the card of the whole adapter")
    to = tmp_path / "cut"
    smaller = cut_to(result.adapter, str(rank), to)
    assert not (to / "README.md").exists()
    before = j_of(result.adapter)
    for key, j in j_of(to).items():
        u, s, vt = np.linalg.svd(before[key] - np.eye(len(j)))
        nearest = before[key] if rank >= len(j) / 2 else np.eye(len(j)) + (u[:, :rank] * s[:rank]) @ vt[:rank]
        np.testing.assert_allclose(j, nearest, atol=1e-6)
    record = json.loads((to / "run.json").read_text())
    assert record["counts"]["trainable_parameters"] == 2 * (min(9, 2 * 3 * rank) + 2 * min(64, 2 * 8 * rank))
    assert (record["spec"]["cut_from"]["to"], smaller.parameters["ranks"]) == (str(rank), ["all", 8, 8])


def test_one_threshold_gives_each_j_a_rank_of_its_own(trained: Trained, tmp_path: Path) -> None:
    _, result = trained("craft")
    before = j_of(result.adapter)
    largest = sum(j.size for j in before.values())
    for budget in (60, 150, largest - 1):
        to = tmp_path / str(budget)
        cut_to(result.adapter, f"parameters:{budget}", to)
        ranks = {key: np.linalg.matrix_rank(j - np.eye(len(j)), tol=1e-6) for key, j in j_of(to).items()}
        parameters = sum(min(j.size, 2 * len(j) * ranks[key]) for key, j in before.items())
        assert json.loads((to / "run.json").read_text())["counts"]["trainable_parameters"] == parameters <= budget
        spectra = {key: np.linalg.svd(j - np.eye(len(j)))[1] ** 2 / (2 * len(j)) for key, j in before.items()}
        most = {key: -(-len(j) // 2) for key, j in before.items()}
        left = [spectra[key][ranks[key]] for key in before if ranks[key] < most[key]]
        taken = [spectra[key][ranks[key] - 1] for key in before if 0 < ranks[key] < most[key]]
        assert not left or not taken or max(left) <= min(taken), "nothing that was left is worth more than what was taken"


@pytest.mark.parametrize("method", ["lora", "rslora"])
@pytest.mark.parametrize("rank", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_cut_lora_adapter_is_the_nearest_of_its_rank(trained: Trained, tmp_path: Path, method: str, rank: int) -> None:
    _, result = trained(method)
    to = tmp_path / "cut"
    smaller = cut_to(result.adapter, str(rank), to)
    tensors = load_file(result.adapter / "adapter_model.safetensors")
    scale = 6 / 2 if method == "rslora" else 6 / 4
    layers = {name: layer for name, layer in load_adapter(to)[0].named_modules() if hasattr(layer, "get_delta_weight")}
    assert len(layers) == 6
    for name, layer in layers.items():
        u, s, vt = np.linalg.svd(scale * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"])
        delta = layer.get_delta_weight("default").detach().numpy()  # type: ignore[operator]
        np.testing.assert_allclose(delta, (u[:, :rank] * s[:rank]) @ vt[:rank], atol=1e-5)
    kept = load_file(to / "adapter_model.safetensors")
    assert all((kept[name] == tensors[name]).all() for name in tensors if "classifier" in name)
    counts = json.loads((to / "run.json").read_text())["counts"]
    planned = planned_counts(smaller.model_copy(update={"parameters": smaller.parameters | {"rank": rank}}))
    for name in ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes"):
        assert counts[name] == getattr(planned, name), name


def test_one_threshold_gives_modules_ranks_of_their_own(trained: Trained, tmp_path: Path) -> None:
    _, result = trained("lora")
    tensors = load_file(result.adapter / "adapter_model.safetensors")
    names = [key.removesuffix(".lora_A.weight") for key in tensors if key.endswith("lora_A.weight")]
    spectra = {
        name: np.linalg.svd(1.5 * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"], compute_uv=False)[:4]
        for name in names
    }
    # All modules are 32 x 32, so a direction costs 64 parameters: 460 pay for the 7 largest singular values of all.
    threshold = sorted(np.concatenate([*spectra.values()]))[-7]
    wanted = {name: int((values >= threshold).sum()) for name, values in spectra.items()}
    assert len(set(wanted.values())) > 1, "else the test shows nothing"
    to = tmp_path / "cut"
    cut_to(result.adapter, "parameters:460", to)
    halves = load_file(to / "adapter_model.safetensors")
    assert {name: len(halves.get(f"{name}.lora_A.weight", ())) for name in names} == wanted
    model, _ = load_adapter(to)
    sizes = {name: weight.numel() for name, weight in model.named_parameters() if "lora_" in name}
    assert sum(sizes.values()) == 7 * 64 == json.loads((to / "run.json").read_text())["counts"]["trainable_parameters"]
    with pytest.raises(ValueError, match="cut the one that was trained"):
        cut_to(to, "1", tmp_path / "again")


@pytest.mark.parametrize("method", ["craft", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_size_of_a_run_is_its_finished_adapter_cut_trained_on_and_scored_bit_for_bit(
    trained: Trained, tmp_path: Path, method: str
) -> None:
    spec, result = trained(method)
    for size, cut in zip(SIZES[method], result.cuts, strict=True):
        to = tmp_path / str(size) / "adapter"
        run, again = cut_and_score(result.adapter, f"parameters:{size}", to.parent, recovery=RECOVERY)
        assert cut.metrics == again.metrics
        ours, theirs = (json.loads((adapter / "run.json").read_text()) for adapter in (cut.adapter, to))
        assert ours == theirs
        assert (cut.counts.known(), cut.notes, cut.facts) == (theirs["counts"], theirs["notes"], theirs["facts"])
        assert run == spec.cut_to(f"parameters:{size}", RECOVERY), "its key is known before anything is trained"
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            assert (cut.adapter / name).read_bytes() == (to / name).read_bytes()
        predictions = cut.adapter.parent / "predictions.safetensors"
        assert predictions.read_bytes() == (to.parent / predictions.name).read_bytes()
    assert result.metrics == train_run(spec, tmp_path / "alone").metrics, "cutting changes nothing of the run itself"


def test_a_size_that_diverges_fails_alone(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, result = trained("lora")
    recover = cuts.recover

    def diverge(model: Any, run: RunSpec, *rest: Any) -> None:
        if run.key == spec.cut_to(f"parameters:{SIZES['lora'][0]}", RECOVERY).key:
            raise RunFailed("training diverged")
        recover(model, run, *rest)

    monkeypatch.setattr(cuts, "recover", diverge)
    failed, cut = train_run(spec, tmp_path, cuts=SIZES["lora"]).cuts
    assert (str(failed), cut.metrics) == ("training diverged", result.cuts[1].metrics)


def test_a_run_that_only_helps_to_choose_scores_no_reported_row(trained: Trained, tmp_path: Path) -> None:
    spec, whole = trained("lora")
    run = train_run(spec.model_copy(update={"search_only": True}), tmp_path, cuts=SIZES["lora"])
    for short, scored in zip([run, *run.cuts], [whole, *whole.cuts], strict=True):
        searched = {name: value for name, value in scored.metrics.items() if name.startswith("search_")}
        assert short.metrics == searched != scored.metrics
    assert not list(tmp_path.rglob("predictions*"))


@pytest.mark.parametrize("method", ["craft", "lora"])
def test_a_cut_adapter_is_trained_on_within_its_rank(trained: Trained, tmp_path: Path, method: str) -> None:
    _, result = trained(method)
    alone, longer = (cut_and_score(result.adapter, "2", tmp_path / str(share), recovery=share)[1] for share in (0.0, 1.0))
    assert longer.counts == alone.counts
    before, after = (load_file(result.adapter / "adapter_model.safetensors") for result in (alone, longer))
    changed = {name for name in before if (before[name] != after[name]).any()}
    heads = {name for name in before if "classifier" in name}
    assert changed
    assert heads
    assert not changed & heads, "nothing was cut off the task head"
    if method == "craft":
        for j in j_of(longer.adapter).values():
            assert len(j) < 8 or np.linalg.matrix_rank(j - np.eye(len(j)), tol=1e-5) == 2


@pytest.mark.parametrize(
    ("method", "text", "said"),
    [
        ("craft", "4", "the rank is 4, but from rank 4 on nothing is cut. Give a rank from 1 to 3"),
        ("craft", "parameters:5", "too few for one direction; the first takes up to 16"),
        ("craft", "parameters:274", "274 parameters: the adapter was trained with 274; give fewer"),
        ("lora", "parameters:63", "too few for one direction; the first takes up to 64"),
        ("lora", "parameters:9_999", "the adapter was trained with 1,536; give fewer"),
    ],
)
def test_mistakes_are_told_in_words(trained: Trained, tmp_path: Path, method: str, text: str, said: str) -> None:
    _, result = trained(method)
    with pytest.raises(ValueError, match=said):
        cut_to(result.adapter, text, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
