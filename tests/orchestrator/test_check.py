"""`check` on this machine: what is well is called so, what would cost a night is found, and nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from craft.results import Counts
from orchestrator.commands.check import Finding, check_machine, diagnose, needed_bytes
from orchestrator.plan.plan import Plan
from orchestrator.plan.tuning import budget_of
from orchestrator.plan.ways import Gpu
from orchestrator.record.options import Options
from orchestrator.tune import cluster as tune_cluster
from orchestrator.tune import crew
from tests.orchestrator.conftest import Cli
from tests.orchestrator.plans import toy_plan
from tests.orchestrator.stand_in import ray_cluster

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
ONE = 2 * 1024 * 4 * 4
"""Bytes of a trial's two checkpoints: 1,024 parameters x 4 bytes x (value, best, two moments)."""
COPIES = 2 * 4088
"""Bytes of an adapter's two copies."""


def plan_of(
    folder: Path, more: str = "", model: str = MODEL, runs: str = "runs", space: str = "{method: lora, rank: 2}"
) -> Plan:
    """1,024 parameters in all, and an adapter of 4,088 bytes."""
    return toy_plan(folder, f"model: {model}\nseeds: [0, 1]\nspace: [{space}]\n{more}storage: {folder / runs}\n", 1022)


def found(findings: Iterable[Finding], what: str) -> Finding:
    """The first finding about `what`; later checks are not made."""
    return next(finding for finding in findings if what in finding.subject)


def call_of(folder: Path, address: str | None = None) -> Options:
    return Options(str(folder / "sweep.yaml"), tracking_uri=f"sqlite:///{folder / 'mlflow.db'}", address=address)


@pytest.mark.slow
def test_a_machine_that_has_all_is_well_and_stays_as_it_was(tmp_path: Path) -> None:
    findings = [*diagnose(plan_of(tmp_path), call_of(tmp_path))]
    assert {finding.level for finding in findings} == {"good"}, findings
    assert list((tmp_path / "runs").iterdir()) == []
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.parametrize(
    ("what", "given", "options"),
    [
        ("model", {"model": "nobody/nothing"}, {}),
        ("storage", {"runs": "file/runs"}, {}),
        ("tracking", {}, {"tracking_uri": "http://me:secret@127.0.0.1:9"}),
    ],
)
def test_what_would_cost_a_night_is_found_without_showing_a_password(
    what: str, given: dict[str, str], options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "file").write_text("")
    finding = found(diagnose(plan_of(tmp_path, **given), replace(call_of(tmp_path), **options)), what)
    assert finding.level == "bad"
    assert "secret" not in finding.sentence


def test_a_full_disk_is_foreseen(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert needed_bytes(plan) == 2 * (ONE + COPIES)
    drawn = plan_of(tmp_path, "search: {algorithm: tpe, configurations: 5}\n", space="{method: lora, rank: {min: 1, max: 8}}")
    assert needed_bytes(drawn) == 5 * needed_bytes(plan), "each configuration like the largest drawn point"
    huge = replace(plan, configurations=[replace(plan.configurations[0], counts=Counts(10**12, 24, 5000, 4096))])
    assert found(diagnose(huge, call_of(tmp_path)), "disk").level == "bad"


@pytest.mark.parametrize(
    ("block", "outputs"),
    [("{method: lora, rank: {values: [1, 2, 4, 8]}}", 1), ("{method: lora, rank: {values: [1, 2]}, sizes: [500]}", 2)],
)
def test_the_disk_of_all_trials_that_a_fair_comparison_may_have_is_counted(tmp_path: Path, block: str, outputs: int) -> None:
    plan = plan_of(tmp_path, "compare: fair\n", space=block)
    _, tuning, measuring = budget_of(plan.sweep, plan.families)
    assert tuning > len(plan.jobs) / 2
    assert needed_bytes(plan) == (tuning + measuring) * (ONE + outputs * COPIES)


def test_a_machine_with_another_storage_or_other_data_is_found(tmp_path: Path) -> None:
    runs, here = [plan_of(tmp_path).trials[0].run.model_dump(mode="json")], str(tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".token").write_text("ok")
    check_machine(here, ".token", runs, {})
    with pytest.raises(OSError, match="a file it has just put there is missing"):
        check_machine(str(tmp_path), ".token", runs, {})
    with pytest.raises(ValueError, match="has other files of toy/paraphrase"):
        check_machine(here, ".token", runs, {"toy/paraphrase": "0" * 64})


@pytest.mark.slow
def test_a_wrong_call_is_status_2_and_a_trouble_status_1(tmp_path: Path, cli: Cli) -> None:
    assert "absent.yaml" in cli("check", str(tmp_path / "absent.yaml"), status=2).err
    plan_of(tmp_path, "resources: {cpu: 1000}\n")
    options = ["--storage", str(tmp_path / "runs"), "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    printed = cli("check", str(tmp_path / "sweep.yaml"), *options, status=1).out
    assert "no trial fits now: each asks for cpu 1000" in printed
    assert "[" not in printed, "marks are colours, not markup"


@pytest.mark.parametrize(("address", "tried"), [(None, 0), ("auto", 1)])
def test_no_step_waits_for_what_can_never_fit(
    address: str | None, tried: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an address no machine joins; a cluster may grow."""
    steps = list[str]()
    cluster = SimpleNamespace(slots=lambda share: 0, machines=[{"CPU": 4.0, "GPU": 1.0}])
    monkeypatch.setattr(tune_cluster, "joined", lambda address: nullcontext(cluster))
    monkeypatch.setattr(tune_cluster, "try_gpus", lambda gpu: [])
    monkeypatch.setattr(tune_cluster, "ask_each", lambda *_: [])
    monkeypatch.setattr(crew, "try_steps", lambda job, *_: steps.append(job.key))
    findings = [*diagnose(plan_of(tmp_path, "resources: {gpu: 2}\n"), call_of(tmp_path, address))]
    assert found(findings, "room").sentence.startswith("no trial fits now")
    assert len(steps) == tried


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.usefixtures("without_token")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch may be able to use GPUs")
def test_every_machine_of_a_cluster_is_asked_and_torch_is_tried_where_there_are_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with ray_cluster({"num_cpus": 1, "num_gpus": 2}) as cluster:
        call = call_of(tmp_path, cluster.address)
        findings = [*diagnose(plan_of(tmp_path), call)]
        assert {finding.level for finding in findings} == {"good"}, findings
        assert len([finding for finding in findings if "sees the storage" in finding.sentence]) == 2
        assert found(findings, "room").sentence.startswith("1 trial at once")
        shared = plan_of(tmp_path, "resources: {cpu: 1, gpu: 0.3}\n")
        torch_there = found(diagnose(shared, call), ": torch")
        assert torch_there.level == "bad"
        assert re.search("gave a GPU that torch cannot use: torch.*built without CUDA", torch_there.sentence)

        monkeypatch.setattr(tune_cluster, "require_gpu", lambda: Gpu("L4", 2**30))
        findings = [*diagnose(shared, call)]
        assert found(findings, ": torch").sentence == "computes on L4 with 1.0 GiB"
        assert "of 307.2 MiB (L4)" in found(findings, "GPUs").sentence
        monkeypatch.setattr(tune_cluster, "JOIN_SECONDS", 0.0)
        findings = [*diagnose(plan_of(tmp_path, "resources: {cpu: 4}\n"), call, 2)]
        assert (found(findings, "machines").level, found(findings, "machines").sentence) == ("bad", "1 of 2 have joined")
        assert found(findings, "room").level == "bad", "a job's machines do not grow"
