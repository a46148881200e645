"""Makes what lies in this folder: sweeps cut off, adapters, factors, a served model, records and keys of an older version.

It was run once, at commit 3706dda, before the packages were cut into folders; it needs the modules as they were then, so it
does not run against a later version. With that commit checked out in OLD, this file anywhere, and in an empty folder:

    PYTHONPATH=OLD HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 python tests/made_before/make.py OUT

writes everything to OUT, and to `expected.json` what that version itself made of it: the sweeps resumed, the adapters' outputs,
the replays, the keys. Texts with absolute paths in them have `@HERE@` for the folder that all paths began with. What Ray keeps
for itself (pickles, its own logs) and files that no one reads again are left out.
"""

# ruff: noqa: I001  (the modules that it imports are there no more, so they cannot be told from others' packages)

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = "@HERE@"
SPACE = """\
space:
  - method: lora
    rank: {values: [1, 2, 4]}
    learning_rate: {min: 1e-6, max: 1e-1, distribution: log_uniform}
  - method: craft
    ranks: {values: [[all, 4, 4], [all, 8, 8]]}
    learning_rate: {min: 1e-6, max: 1e-1, distribution: log_uniform}
"""
HEAD = "name: {name}\nmodel: m\ntasks: [{tasks}]\nseeds: [{seeds}]\ntraining: {{epochs: 3}}\n"
RATES = "space: [{method: lora, rank: 4, learning_rate: {values: [1e-3, 3e-3, 1e-4, 1e-6, 1e-5, 1e-2, 3e-5, 1e-1, 3e-6]}}]\n"
SWEEPS = {
    "tpe": HEAD.format(name="tpe", tasks="toy/acceptability", seeds="0, 1")
    + SPACE
    + "search: {algorithm: tpe, trials: 9, seed: 3}\n",
    "asha": HEAD.format(name="asha", tasks="toy/acceptability", seeds="0, 1")
    + SPACE
    + "search: {algorithm: random, trials: 7, seed: 1}\nscheduler: {name: asha, grace: 1, factor: 2}\n",
    "promotion": HEAD.format(name="promotion", tasks="toy/acceptability, toy/sentiment", seeds="0")
    + RATES
    + "search: {algorithm: grid}\nscheduler: {name: promotion, grace: 1, factor: 3}\n",
}
HOLD = {"tpe": 34, "asha": 13, "promotion": 12}
"""After how many epochs of all trials together the driver is killed: each time in the middle of a trial."""

REPLAYED = """\
name: replay
model: m
tasks: [toy/acceptability]
seeds: [0, 1]
training: {epochs: 3}
space: [{method: lora, rank: {values: [1, 2, 4]}, learning_rate: {values: [1e-5, 1e-4, 1e-3, 1e-2]}}]
"""
REPLAYS = {
    "tpe": ["search={algorithm: tpe, trials: 7}"],
    "asha": ["search={algorithm: random, trials: 10}", "scheduler={name: asha, factor: 2}"],
    "promotion": ["search={algorithm: grid}", "scheduler={name: promotion, factor: 2}"],
    "tpe and promotion": ["search={algorithm: tpe, trials: 9}", "scheduler={name: promotion, factor: 2}"],
}
WARM = """\
name: warm
model: m
tasks: [toy/acceptability]
seeds: [0]
training: {epochs: 3}
space:
  - {method: lora, rank: {values: [2, 4]}, learning_rate: {min: 1e-6, max: 1e-1, distribution: log_uniform}}
  - {method: craft, ranks: [all, 4, 4], learning_rate: {min: 1e-6, max: 1e-1, distribution: log_uniform}}
search: {algorithm: tpe, trials: 5, warm_start: [tpe]}
"""
TEXTS = ["a warm and funny film", "dull from start to end", "the plot is clever", "I hated it"]


def stand_in(log: str, hold: int | None) -> Any:
    """Three epochs with a checkpoint each; waits to be killed after `hold` epochs of all trials together."""

    def train(spec, directory, *, report, resume_from, on_step):
        import json
        import math
        import time
        from pathlib import Path

        from craft.checkpoint import write_folder
        from craft.results import Counts, Progress, RunResult

        def write(text):
            with Path(log).open("a") as file:
                file.write(text + "\n")

        def score(epoch):
            rate = -10 * abs(math.log10(spec.training.learning_rate) + 3)
            if spec.task == "toy/sentiment" and epoch < 3:
                return 50.0
            return 80 + rate + epoch - spec.seed / 2 + sum(map(ord, spec.method)) % 7

        done = json.loads((resume_from / "state.json").read_text())["epoch"] if resume_from else 0
        write(f"start {spec.key}")
        for epoch in range(done + 1, 4):
            if hold == Path(log).read_text().count("epoch "):
                write("held")
                time.sleep(600)
            write(f"epoch {spec.key} {epoch}")
            on_step(epoch, 3)
            folder = write_folder(
                directory / f"checkpoint-{epoch}",
                lambda aside, at=epoch: (aside / "state.json").write_text(json.dumps({"epoch": at})),
            )
            points = [{"step": epoch, "train_loss": 1 / epoch}]
            report(Progress(epoch, 3, float(epoch), {"search_score": score(epoch)}, points, folder))
        adapter = directory / "adapter"
        adapter.mkdir()
        (adapter / "adapter_model.safetensors").write_text(spec.key)
        size = 100 if spec.method == "lora" else 60
        return RunResult({"search_score": score(3), "score": score(3) - 1}, Counts(size, 2, 1000, 4 * size), adapter, 3, 3, 1.0)

    return train


def counted(run: Any) -> Any:
    from craft.results import Counts

    size = 100 if run.method == "lora" else 60
    return Counts(size, 2, 1000, 4 * size)


def drive(root: Path, name: str, kind: str, hold: int | None) -> int:
    """One session of a sweep: all that the command line does, with a stand-in for training."""
    from rich.console import Console

    from orchestrator import run, session
    from orchestrator.plan import Planner, make_plan
    from orchestrator.sweep import load_sweep

    session._prepare = lambda *_: {}
    session._page = lambda *_: []
    session.make_manifest = lambda *_, **__: {"left out": "it describes the machine"}
    session.run_sweep = functools.partial(session.run_sweep, train=stand_in(str(root / kind / f"{name}.log"), hold))
    file = f"{name}.yaml"
    arguments = [file, "--tracking-uri", f"sqlite:///{root / kind / 'mlflow.db'}", "--storage", str(root / kind / "runs")]
    given = run.parser().parse_args([*arguments, "--cpus", "1", "--quiet"])
    sweep = load_sweep(given.sweep, run._overrides(given))
    plan = make_plan(sweep, Planner(sweep, counted, lambda run: 1000))
    console = Console(file=sys.stdout, highlight=False, quiet=True)
    return run._run(given, plan, sweep.folder, True, console, "again")


def sweeps(root: Path, out: Path) -> dict[str, Any]:
    """Each sweep to its end; each cut off, kept, and then resumed to its end. Both ends must be the same."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for kind in ("uncut", "cut"):
        (root / kind).mkdir()
    SqlAlchemyStore(f"sqlite:///{root / 'uncut' / 'mlflow.db'}", str(root / "cut" / "mlartifacts")).engine.dispose()
    shutil.copy(root / "uncut" / "mlflow.db", root / "cut" / "mlflow.db")
    for name, text in SWEEPS.items():
        (root / f"{name}.yaml").write_text(text)
        (out / f"{name}.yaml").write_text(text)
        print(name, "uncut", session_of(root, name, "uncut"), flush=True)
        print(name, "cut", session_of(root, name, "cut", HOLD[name]), flush=True)
    keep_cut(root / "cut", out)
    expected = {}
    for name in SWEEPS:
        log = root / "cut" / f"{name}.log"
        before = len(log.read_text().splitlines())
        print(name, "resumed", session_of(root, name, "cut"), flush=True)
        whole, resumed = end_of(root / "uncut" / "runs" / name), end_of(root / "cut" / "runs" / name)
        if whole != resumed:
            print("DIFFERS", name, json.dumps(whole, indent=1), json.dumps(resumed, indent=1), flush=True)
        resumed["trained_after"] = [line for line in log.read_text().splitlines()[before:] if line.startswith("epoch")]
        expected[name] = resumed
    return expected


def session_of(root: Path, name: str, kind: str, hold: int | None = None) -> int:
    """A driver of its own process; killed with all that it started once its trial waits, where `hold` is given."""
    command = [sys.executable, str(Path(__file__).resolve()), str(root), "--drive", name, kind]
    command += [str(hold)] if hold else []
    log = root / kind / f"{name}.log"
    process = subprocess.Popen(command, cwd=root, start_new_session=True)
    while hold and not (log.exists() and "held" in log.read_text()):
        if process.poll() is not None:
            raise SystemExit(f"{name} ended before it was to be killed")
        time.sleep(0.1)
    if hold:
        time.sleep(4)  # what was reported reaches ledger, journal and store
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    time.sleep(3)
    return code


def end_of(folder: Path) -> dict[str, Any]:
    from orchestrator.ledger import Ledger
    from orchestrator.sweep_record import read_folder

    results = Ledger(folder).results()
    record = read_folder(folder)
    return {
        "results": {
            key: [one.status, one.metrics, one.steps, [note for note in one.notes if "spared" in note]]
            for key, one in sorted(results.items())
        },
        "configurations": [[one.configuration, one.label, one.on_front, one.complete] for one in record.summaries],
    }


def keep_cut(cut: Path, out: Path) -> None:
    """The folder, the store and its artifacts as they lay there when the drivers were killed."""
    from orchestrator.ledger import Ledger

    for name in SWEEPS:
        there, kept = cut / "runs" / name, out / "runs" / name
        kept.mkdir(parents=True)
        over = list(Ledger(there).finished())
        for file in sorted(path for path in there.rglob("*") if path.is_file()):
            part = file.relative_to(there)
            if part.parts[0] == "ray" and not any(one.startswith("checkpoint_") for one in part.parts):
                continue
            if any(key in part.parts for key in over[1:]):
                continue  # of trials that are over, the checkpoints of one will do
            if part.name in (".driver.json", ".lock") or part.suffix in (".log", ".lock") or part.parts[0] == "scratch":
                continue
            (kept / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, kept / part)
    if (cut / "mlartifacts").exists():
        for file in sorted((cut / "mlartifacts").rglob("sweep.yaml")):
            kept = out / file.relative_to(cut)
            kept.parent.mkdir(parents=True)
            shutil.copy(file, kept)
    with sqlite3.connect(cut / "mlflow.db") as store:
        dump = "\n".join(store.iterdump())
    (out / "mlflow.sql").write_text(dump)


def base_model(folder: Path) -> None:
    """A random BERT of two layers whose tokens are letters."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,'!?-"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    BertModel(config).save_pretrained(folder)


def outputs_of(folder: Path) -> list[list[float]]:
    import torch

    from craft.adapters import load_adapter

    model, tokenizer = load_adapter(folder)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        return model(**batch).logits.tolist()


def trainings(out: Path) -> dict[str, Any]:
    """Adapters of four methods, the factors they were made with, and a run cut off in its middle. `base` is in the cwd."""
    from craft.results import Progress
    from craft.spec import RunSpec
    from craft.training import train_run

    os.environ["CRAFT_CACHE_DIR"] = str(Path.cwd() / "cache")
    training = {"epochs": 2, "batch_size": 8, "max_length": 48, "learning_rate": 1e-2, "train_examples": 48}
    training |= {"eval_examples": 40}
    expected: dict[str, Any] = {}
    methods = {
        "craft": {"ranks": ["all", 4, 4]},
        "lotr": {"rank": 4},
        "milora": {"rank": 4},
        "bitfit": {},
    }
    for method, parameters in methods.items():
        spec = RunSpec(model="base", task="toy/sentiment", method=method, parameters=parameters, training=training)
        result = train_run(spec, Path("train") / method)
        shutil.copytree(result.adapter, out / "adapters" / method)
        expected[method] = {"key": spec.key, "metrics": result.metrics, "outputs": outputs_of(result.adapter)}

    class Cut(Exception):
        pass

    def cut(progress: Progress) -> None:
        if progress.step >= progress.total_steps / 2:
            raise Cut

    spec = RunSpec(
        model="base", task="toy/sentiment", method="craft", parameters=methods["craft"], training=training | {"epochs": 4}
    )
    whole = train_run(spec, Path("train") / "whole")
    with contextlib.suppress(Cut):
        train_run(spec, Path("train") / "cut", report=cut)
    last = max((Path("train") / "cut").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    shutil.copytree(last, out / "checkpoint")
    resumed = train_run(spec, Path("train") / "resumed", resume_from=last)
    for name in ("search_score", "score"):
        if whole.metrics[name] != resumed.metrics[name]:
            print("DIFFERS: the resumed run", whole.metrics, resumed.metrics)
    expected["checkpoint"] = {
        "spec": spec.model_dump(mode="json"),
        "key": spec.key,
        "from": last.name,
        "metrics": resumed.metrics,
        "outputs": outputs_of(resumed.adapter),
    }
    shutil.copytree(Path("cache") / "factors", out / "factors", ignore=shutil.ignore_patterns("*.lock"))
    return expected


def served(root: Path, out: Path) -> list[list[float]]:
    """A version in a registry, made of the CRAFT adapter, and its answers."""
    from mlflow import MlflowClient

    from orchestrator.registry import Candidate, register
    from orchestrator.serving import Answerer

    uri = f"sqlite:///{root / 'registry.db'}"
    shutil.copy(root / "uncut" / "mlflow.db", root / "registry.db")
    client = MlflowClient(uri, uri)
    experiment = client.create_experiment("served", str(root / "served"))
    run = client.create_run(experiment)
    folder = out / "adapters" / "craft"
    labels = json.loads((folder / "run.json").read_text())["labels"]
    register(uri, run, Candidate(folder, "mood", False, labels, ["champion"], {}))
    version = client.get_model_version_by_alias("mood", "champion")
    shutil.copytree(version.source.removeprefix("file://"), out / "served")
    import pandas as pd

    return Answerer(folder).predict(pd.DataFrame({"text": TEXTS})).to_numpy().tolist()


def recorded(out: Path) -> None:
    """Curves of a made-up grid, by way of a sweep's folder and the simulator's own command."""
    import math

    from craft.results import Counts
    from orchestrator import simulate as command
    from orchestrator.journal import Journal
    from orchestrator.ledger import Ledger
    from orchestrator.parameters import flat_parameters
    from orchestrator.plan import Planner, make_plan
    from orchestrator.sweep import load_sweep
    from orchestrator.trial import TrialResult

    (out / "replay.yaml").write_text(REPLAYED)
    sweep = load_sweep(out / "replay.yaml")
    folder = Path("grid")
    folder.mkdir()

    def sizes(run: Any) -> Counts:
        return Counts(100 * run.parameters["rank"], 2, 10_000, 400 * run.parameters["rank"])

    ledger = Ledger(folder)
    with Journal(folder / "journal.jsonl") as journal:
        for number, trial in enumerate(make_plan(sweep, Planner(sweep, sizes)).trials):
            run = trial.run
            names = {"key": trial.key, "label": trial.label, "task": run.task, "seed": run.seed}
            journal.append({"kind": "trial_started", **names, "params": flat_parameters(run)})
            rate = math.log10(run.training.learning_rate)
            final = 80 - 10 * abs(rate + 3) + rate / 10 + math.log2(run.parameters["rank"]) + run.seed
            for epoch in (1, 2, 3):
                rows = [{"step": epoch, "epoch": float(epoch), "search_score": round(final - 2 * (3 - epoch), 6)}]
                journal.append({"kind": "trial_progress", "key": trial.key, "rows": rows})
            metrics = {"search_score": round(final, 6), "score": round(final - 1, 6)}
            ledger.add(TrialResult(trial.key, "finished", metrics, sizes(run).known(), seconds=30.0 + number % 5))
    ledger.close()
    for ending in ("csv", "jsonl"):
        command.main(["record", str(folder), "--to", str(out / f"curves.{ending}")])


def replays(out: Path) -> dict[str, Any]:
    from orchestrator.learning_curves import read_record
    from orchestrator.simulation import Yardstick, simulate, whole_record
    from orchestrator.sweep import load_sweep

    record = read_record(out / "curves.csv")
    best, epochs = whole_record(load_sweep(out / "replay.yaml"), record)
    found: dict[str, Any] = {"whole": epochs}
    for name, changes in REPLAYS.items():
        sweep = load_sweep(out / "replay.yaml", changes)
        one = simulate(sweep, record, 3, Yardstick(best, sweep.objectives))
        command = [sys.executable, "-m", "orchestrator.simulate", str(out / "replay.yaml"), "--recorded"]
        command += [str(out / "curves.csv"), "--workers", "3", *(part for change in changes for part in ("--set", change))]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        found[name] = {
            "changes": changes,
            "epochs": one.epochs,
            "seconds": one.seconds,
            "ended": [one.finished, one.stopped, one.failed],
            "progress": one.progress,
            "configurations": [[each.configuration, each.label, each.value("search_score")] for each in one.summaries],
            "said": said[:-1],  # the last line tells how long it took
        }
    return found


def of_the_cut(root: Path, out: Path) -> dict[str, Any]:
    """What is read out of the folders and the store as they were kept: trials, curves, earlier results, the next proposal."""
    from dataclasses import asdict

    from orchestrator.learning_curves import record_sweep
    from orchestrator.ledger import Ledger
    from orchestrator.plan import Planner, make_plan
    from orchestrator.proposers import SEARCHERS
    from orchestrator.sweep import load_sweep
    from orchestrator.sweep_record import find_sweep, read_folder

    found: dict[str, Any] = {}
    for name in SWEEPS:
        folder = root / "cut" / "runs" / name
        record = read_folder(folder)
        stored = find_sweep(name, f"sqlite:///{root / 'cut' / 'mlflow.db'}")
        curves, left_out = record_sweep(folder)
        sweep = load_sweep(root / f"{name}.yaml")
        plan = make_plan(sweep, Planner(sweep, counted, lambda run: 1000))
        found[name] = {
            "results": {key: one.to_json() for key, one in Ledger(folder).results().items()},
            "entries": [
                [one.key, one.configuration, one.task, one.seed, one.result and one.result.status] for one in record.entries
            ],
            "stored": sorted([one.key, one.configuration, one.task, one.seed] for one in stored.entries if one.key),
            "summaries": [[one.configuration, one.label, one.complete, one.on_front] for one in record.summaries],
            "curves": [len(curves), left_out, [curve.name for curve in curves]],
        }
        if plan.adaptive:
            copy = Path("copy") / name
            shutil.copytree(folder, copy)
            proposer = SEARCHERS[sweep.search.algorithm].propose(plan, copy)
            found[name]["proposed"] = [one.id for one in plan.configurations]
            next_one = proposer.suggest()
            found[name]["next"] = [next_one.id, next_one.label] if next_one else None
    (out / "warm.yaml").write_text(WARM)
    sweep = load_sweep(out / "warm.yaml", [f"storage={root / 'cut' / 'runs'}"])
    plan = make_plan(sweep, Planner(sweep, counted, lambda run: 1000))
    found["earlier"] = [asdict(one) for one in plan.earlier]
    proposer = SEARCHERS["tpe"].propose(plan, None)
    found["after warm start"] = [proposer.suggest().id for _ in range(3)]
    return found


def keys(shipped: Path) -> dict[str, Any]:
    """What the planner makes of every shipped sweep: with stand-ins for counting, and of some with the real counts."""
    from craft.results import Counts
    from orchestrator.plan import Planner, make_plan
    from orchestrator.proposers import SEARCHERS
    from orchestrator.sweep import load_sweep

    found: dict[str, Any] = {}
    for file in sorted(shipped.rglob("*.yaml")):
        sweep = load_sweep(file)
        plan = make_plan(sweep, Planner(sweep, lambda run: Counts(1000, 10, 10**6, 4000), lambda run: 1000))
        proposer = SEARCHERS[sweep.search.algorithm].propose(plan, None) if plan.adaptive else None
        found[str(file.relative_to(shipped))] = {
            "configurations": len(plan.configurations),
            "trials": plan.expected_trials,
            "first": [[one.id, one.label] for one in plan.configurations[:20]],
            "keys": [trial.key for trial in (plan.trials or plan.examples)[:20]],
            "last": (plan.trials or plan.examples)[-1].key,
            "proposed": [one.id for one in (proposer.suggest() for _ in range(3)) if one] if proposer else [],
        }
    for name in ("ranks.yaml", "search.yaml", "glue/minilm.yaml"):
        plan = make_plan(load_sweep(shipped / name))
        found[name]["counted"] = {
            "trials": plan.expected_trials,
            "configurations": [[one.id, one.counts.trainable_parameters] for one in (plan.configurations or plan.probed)],
            "dropped": [one.configuration.id for one in plan.dropped],
        }
    return found


def tidy(root: Path, out: Path) -> None:
    """No path of the machine that made this stays in it."""
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        for place in (root / "cut", root):
            text = text.replace(str(place), HERE)
        if text != file.read_text():
            print("paths replaced in", file.relative_to(out))
            if file.name == "journal.jsonl":
                cursor = file.with_name("tracking.cursor.json")
                content = json.loads(cursor.read_text())
                whole = file.read_bytes()
                moved = {uri: len(whole[:at].replace(str(root / "cut").encode(), HERE.encode())) for uri, at in content.items()}
                cursor.write_text(json.dumps(moved))
            file.write_text(text)
    dump = out / "mlflow.sql"
    with (out / "mlflow.sql.gz").open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(dump.read_bytes())
    dump.unlink()
    (out / "runs").rename(out / "folders")  # git passes over folders of these names
    (out / "mlartifacts").rename(out / "artifacts")


def main() -> int:
    flags = argparse.ArgumentParser()
    flags.add_argument("folder", type=Path)
    flags.add_argument("--drive", nargs="+")
    given = flags.parse_args()
    if given.drive:
        name, kind, *hold = given.drive
        return drive(given.folder, name, kind, int(hold[0]) if hold else None)
    import orchestrator

    out = given.folder.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    root = Path.cwd()
    base_model(root / "base")
    shutil.copytree(root / "base", out / "base")
    expected: dict[str, Any] = {"trained": trainings(out)}
    expected["resumed"] = sweeps(root, out)
    # The kept folders once more in the place where they lay, for what is read out of them.
    shutil.move(root / "cut", root / "done")
    (root / "cut").mkdir()
    shutil.copytree(out / "runs", root / "cut" / "runs")
    if (out / "mlartifacts").exists():
        shutil.copytree(out / "mlartifacts", root / "cut" / "mlartifacts")
    with sqlite3.connect(root / "cut" / "mlflow.db") as store:
        store.executescript((out / "mlflow.sql").read_text())
    expected["cut"] = of_the_cut(root, out)
    expected["served"] = served(root, out)
    recorded(out)
    expected["replays"] = replays(out)
    (out / "expected.json").write_text(json.dumps(expected, indent=1))
    shipped = Path(orchestrator.__file__).parent.parent / "sweeps"
    (out / "keys.json").write_text(json.dumps(keys(shipped), indent=1))
    tidy(root, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
