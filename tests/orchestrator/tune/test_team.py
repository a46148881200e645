"""Two workers for each trial, on real Ray: the scores of one worker, even if one of the two dies or lacks memory on the way."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.trial import Train
from orchestrator.sweepfile.load import load_sweep

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT without dropout, whose masks would depend on who draws them."""
    import torch
    from transformers import BertConfig, BertModel

    from craft.models.loading import MINILM, load_tokenizer

    folder = tmp_path_factory.mktemp("tiny-bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    BertModel(BertConfig(**sizes, **dropout, initializer_range=0.2)).save_pretrained(folder)
    load_tokenizer(MINILM).save_pretrained(folder)
    return folder


def plan_of(folder: Path, model: Path, resources: str, seeds: str = "[0, 1]") -> Plan:
    folder.mkdir()
    file = folder / "sweep.yaml"
    file.write_text(
        f"name: test\nmodel: {model}\ntasks: [toy/sentiment]\nseeds: {seeds}\nresources: {resources}\n"
        "training: {epochs: 8, batch_size: 8, train_examples: 81, eval_examples: 40, max_length: 32, learning_rate: 3e-3}\n"
        "space: [{method: craft, ranks: [all, 8, 8]}, {method: lora, rank: 2}]\n"
    )
    return make_plan(load_sweep(file))


def run(plan: Plan, folder: Path, train: Train | None = None) -> SweepOutcome:
    from orchestrator.tune.runner import run_sweep

    return run_sweep(plan, RunOptions(folder / "test", cpus=2, verbosity="quiet"), train=train)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: Path) -> SweepOutcome:
    """What one worker gives."""
    folder = tmp_path_factory.mktemp("alone") / "alone"
    outcome = run(plan_of(folder, model, "{cpu: 1}"), folder)
    assert len(outcome.finished) == 4
    return outcome


def assert_the_same(outcome: SweepOutcome, alone: SweepOutcome) -> None:
    for key, result in outcome.results.items():
        assert result.status == "finished", result.error
        assert result.facts["workers"] == 2
        other = alone.results[key]
        assert result.steps == other.steps == 88
        for name in ("score", "search_score", "search_loss"):
            assert result.metrics[name] == pytest.approx(other.metrics[name], rel=1e-3), name
        left, right = (weights(one.facts["adapter"]) for one in (result, other))
        assert left.keys() == right.keys()
        for name in left:
            assert (left[name].double() - right[name].double()).norm() < 1e-3 * right[name].double().norm() + 1e-4, name


def test_more_workers_than_examples_in_a_micro_batch_are_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ValueError, match="got 9, which share micro-batches of 8 examples"):
        run(plan_of(tmp_path / "nine", model, "{cpu: 0.1, workers: 9}"), tmp_path / "nine")


class Killer(threading.Thread):
    """Kills the second worker of a trial once that trial has stored a checkpoint."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.killed = folder, False

    def run(self) -> None:
        until = time.monotonic() + 240
        while not self.killed and time.monotonic() < until:
            if any(self.folder.glob("test/ray/attempt-*/*/checkpoint_*/manifest.json")):
                for process in psutil.Process().children(recursive=True):
                    self._look(process)
            time.sleep(0.01)

    def _look(self, process: psutil.Process) -> None:
        try:
            if not self.killed and process.cmdline()[:1] == ["ray::Member.join"]:
                process.kill()
                self.killed = True
        except psutil.Error:
            return


@pytest.mark.parametrize("shared", ["{cpu: 1, workers: 2}", "{cpu: 1, workers: 2, fsdp: true}"])
def test_two_workers_end_where_one_does_though_one_of_them_is_killed(
    tmp_path: Path, model: Path, shared: str, alone: SweepOutcome
) -> None:
    killer = Killer(tmp_path / "together")
    killer.start()
    together = run(plan_of(tmp_path / "together", model, shared), tmp_path / "together")
    assert killer.killed
    assert len(together.finished) == 4, [one.error for one in together.results.values()]
    assert len([one for one in together.results.values() if one.facts.get("resumed_at")]) == 1
    assert_the_same(together, alone)


def never_raising() -> Train:
    """A team whose collectives wait for ever when a member is gone, as NCCL's do inside one machine."""

    def train(spec: Any, directory: Path, **told: Any) -> Any:
        import torch.distributed as dist

        from craft.trainer import liveness
        from orchestrator.tune.team import TeamTraining
        from orchestrator.worker.settings import WorkerSettings

        def waiting(real: Any) -> Any:
            def waits(*given: Any, **named: Any) -> Any:
                try:
                    return real(*given, **named)
                except RuntimeError:
                    while True:
                        time.sleep(1)

            return waits

        dist.all_reduce, dist.broadcast = waiting(dist.all_reduce), waiting(dist.broadcast)
        liveness.GRACE_SECONDS = 4.0
        return TeamTraining({"CPU": 1.0}, WorkerSettings("", None, 1))(spec, directory, **told)

    return train


def test_a_killed_worker_ends_one_that_waits_for_it_for_ever(tmp_path: Path, model: Path, alone: SweepOutcome) -> None:
    killer = Killer(tmp_path / "together")
    killer.start()
    plan = plan_of(tmp_path / "together", model, "{cpu: 1, workers: 2}", "[0]")
    together = run(plan, tmp_path / "together", never_raising())
    assert killer.killed
    assert len(together.finished) == 2, [one.error for one in together.results.values()]
    assert len([one for one in together.results.values() if one.facts.get("resumed_at")]) == 1
    assert "rank 1), and this one did not stop within 4 s" in (tmp_path / "together/test/sweep.log").read_text()
    assert_the_same(together, alone)


def short_of_memory() -> Train:
    """A team whose second member has no memory for micro-batches of more than four examples."""

    def train(spec: Any, directory: Path, **told: Any) -> Any:
        from orchestrator.tune import team
        from orchestrator.worker.settings import WorkerSettings

        class Small(team.Member):
            def join(self, *given: Any) -> None:
                import torch

                from craft.trainer.hf_trainer import RunTrainer

                real = getattr(RunTrainer.training_step, "real", RunTrainer.training_step)

                def step(trainer: Any, model: Any, inputs: Any, *more: Any) -> Any:
                    if len(inputs["input_ids"]) > 4:
                        raise torch.OutOfMemoryError("CUDA out of memory")
                    return real(trainer, model, inputs, *more)

                step.real = real  # type: ignore[attr-defined]
                RunTrainer.training_step = step  # type: ignore[method-assign]
                super().join(*given)

        team.Member = Small  # type: ignore[misc]
        return team.TeamTraining({"CPU": 1.0}, WorkerSettings("", None, 1))(spec, directory, **told)

    return train


def test_one_worker_without_memory_makes_all_try_smaller_micro_batches(
    tmp_path: Path, model: Path, alone: SweepOutcome
) -> None:
    plan = plan_of(tmp_path / "together", model, "{cpu: 1, workers: 2}", "[0]")
    together = run(plan, tmp_path / "together", short_of_memory())
    assert len(together.finished) == 2, [one.error for one in together.results.values()]
    for result in together.results.values():
        assert any(note.startswith("micro-batches of 4 x 2 ") for note in result.notes), result.notes
    assert_the_same(together, alone)


def weights(adapter: str) -> dict[str, Any]:
    return load_file(Path(adapter) / "adapter_model.safetensors")
