"""`check` on this machine: what is well is called so, what would cost a night is found, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from craft.results import Counts
from orchestrator.commands import check
from orchestrator.commands.check import Finding, check_machine, needed_bytes
from orchestrator.plan.plan import Plan
from orchestrator.plan.tuning import budget_of
from orchestrator.plan.ways import Gpu
from orchestrator.record.options import Options
from orchestrator.tune import cluster as tune_cluster
from tests.orchestrator.conftest import Cli
from tests.orchestrator.plans import toy_plan
from tests.orchestrator.tune.running import ray_cluster

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def plan_of(
    folder: Path, more: str = "", model: str = MODEL, runs: str = "runs", space: str = "{method: lora, rank: 2}"
) -> Plan:
    """1,024 parameters in all, and an adapter of 4,088 bytes."""
    return toy_plan(folder, f"model: {model}\nseeds: [0, 1]\nspace: [{space}]\n{more}storage: {folder / runs}\n", 1022)


def found(findings: list[Finding], what: str) -> Finding:
    (finding,) = [finding for finding in findings if what in finding.subject]
    return finding


def diagnose(*given: Any) -> list[Finding]:
    return list(check.diagnose(*given))


def first(what: str, *given: Any) -> Finding:
    """The finding about `what`; later checks are not made."""
    return next(finding for finding in check.diagnose(*given) if what in finding.subject)


def store(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def call_of(folder: Path, address: str | None = None) -> Options:
    return Options(str(folder / "sweep.yaml"), tracking_uri=store(folder), address=address)


@pytest.mark.patient  # Ray starts
def test_a_machine_that_has_all_is_well_and_stays_as_it_was(tmp_path: Path) -> None:
    findings = diagnose(plan_of(tmp_path), call_of(tmp_path))
    assert {finding.level for finding in findings} == {"good"}, findings
    assert list((tmp_path / "runs").iterdir()) == []
    assert not (tmp_path / "mlflow.db").exists()


def test_a_model_that_is_not_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plan = plan_of(tmp_path, model="nobody/nothing")
    assert first("model", plan, call_of(tmp_path)).level == "bad"


def test_storage_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert first("storage", plan_of(tmp_path, runs="file/runs"), call_of(tmp_path)).level == "bad"


def test_a_full_disk_is_foreseen(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    # Two trials, each with two checkpoints of 1,024 parameters x 4 bytes x (value, best, two moments) and two copies of 4,088.
    assert needed_bytes(plan) == 2 * (2 * 1024 * 4 * 4 + 2 * 4088)
    drawn = plan_of(tmp_path, "search: {algorithm: tpe, configurations: 5}\n", space="{method: lora, rank: {min: 1, max: 8}}")
    assert needed_bytes(drawn) == 5 * needed_bytes(plan), "each configuration like the largest drawn point"
    huge = replace(plan.configurations[0], counts=Counts(10**12, 24, 5000, 4096))
    larger = replace(plan, configurations=[huge])
    assert first("disk", larger, call_of(tmp_path)).level == "bad"


@pytest.mark.parametrize(
    "block", ["{method: lora, rank: {values: [1, 2, 4, 8]}}", "{method: lora, rank: {values: [1, 2]}, sizes: [500]}"]
)
def test_the_disk_of_all_trials_that_a_fair_comparison_may_have_is_counted(tmp_path: Path, block: str) -> None:
    plan = plan_of(tmp_path, "compare: fair\n", space=block)
    _, tuning, measuring = budget_of(plan.sweep, plan.families)
    assert tuning > len(plan.jobs) / 2
    cuts = 2 if "sizes" in block else 1
    assert needed_bytes(plan) == (tuning + measuring) * (2 * 1024 * 4 * 4 + cuts * 2 * 4088)


def test_a_server_that_does_not_answer_is_found_without_showing_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = "http://me:secret@127.0.0.1:9"
    finding = first("tracking", plan_of(tmp_path), replace(call_of(tmp_path), tracking_uri=uri))
    assert finding.level == "bad"
    assert "secret" not in finding.sentence


def test_a_machine_with_another_storage_or_other_data_is_found(tmp_path: Path) -> None:
    runs = [plan_of(tmp_path).trials[0].run.model_dump(mode="json")]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".token").write_text("ok")
    check_machine(str(tmp_path / "runs"), ".token", runs, {})
    with pytest.raises(OSError, match="a file it has just put there is missing"):
        check_machine(str(tmp_path), ".token", runs, {})
    with pytest.raises(ValueError, match="has other data of toy/paraphrase"):
        check_machine(str(tmp_path / "runs"), ".token", runs, {"toy/paraphrase": "0" * 64})


@pytest.mark.patient  # Ray starts
def test_a_wrong_call_is_status_2_and_a_trouble_status_1(tmp_path: Path, cli: Cli) -> None:
    assert "absent.yaml" in cli("check", str(tmp_path / "absent.yaml"), status=2).err
    plan_of(tmp_path, "resources: {cpu: 1000}\n")
    uri = store(tmp_path)
    printed = cli(
        "check", str(tmp_path / "sweep.yaml"), "--storage", str(tmp_path / "runs"), "--tracking-uri", uri, status=1
    ).out
    assert "no trial fits now: each asks for cpu 1000" in printed
    assert "[" not in printed, "marks are colours, not markup"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.usefixtures("without_token")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch may be able to use GPUs")
def test_every_machine_of_a_cluster_is_asked_and_torch_is_tried_where_there_are_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with ray_cluster({"num_cpus": 1, "num_gpus": 2}) as cluster:
        findings = diagnose(plan_of(tmp_path), call_of(tmp_path, cluster.address))
        assert {finding.level for finding in findings} == {"good"}, findings
        assert len([finding for finding in findings if "sees the storage" in finding.sentence]) == 2
        assert found(findings, "room").sentence.startswith("1 trial at once")
        shared = plan_of(tmp_path, "resources: {cpu: 1, gpu: 0.3}\n")
        findings = diagnose(shared, call_of(tmp_path, cluster.address))
        torch_there = found(findings, ": torch")
        assert torch_there.level == "bad"
        assert "gave a GPU that torch cannot use: torch" in torch_there.sentence
        assert "built without CUDA" in torch_there.sentence

        monkeypatch.setattr(tune_cluster, "require_gpu", lambda: Gpu("L4", 2**30))
        findings = diagnose(shared, call_of(tmp_path, cluster.address))
        assert found(findings, ": torch").sentence == "computes on L4 with 1.0 GiB"
        assert "of 307.2 MiB (L4)" in found(findings, "GPUs").sentence
        monkeypatch.setattr(tune_cluster, "JOIN_SECONDS", 0.0)
        findings = diagnose(plan_of(tmp_path, "resources: {cpu: 4}\n"), call_of(tmp_path, cluster.address), 2)
        assert (found(findings, "machines").level, found(findings, "machines").sentence) == ("bad", "1 of 2 have joined")
        assert found(findings, "room").level == "bad", "a job's machines do not grow"
