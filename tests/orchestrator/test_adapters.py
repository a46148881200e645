"""Adapters taken home: what is picked, what the folder holds, the outputs that were scored, and requests that do not fit."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

import craft
from craft.models.files import MINILM, resolve_model
from orchestrator.adapters.model_card import Taken
from orchestrator.adapters.taking import cut_adapters, folders_of, how_to_load, take_adapters
from orchestrator.commands.app import WRONG, main
from orchestrator.plan.trial import TrialResult
from orchestrator.record.checkpoints import stored_checkpoints
from orchestrator.record.events import Ended, Wanted
from orchestrator.review.past_sweep import PastSweep, read_folder
from orchestrator.review.pick import NothingMeets, choose_seed, pick, titles
from orchestrator.sweepfile.mistakes import SweepError
from tests.orchestrator.conftest import Cli, SmallSweep
from tests.orchestrator.recorded import over_seeds, record, write_adapter, write_log

FRONT = {
    "LoRA small": (100, over_seeds(70, 72, 71, search=81.5)),
    "LoRA middle": (5_000, over_seeds(90, 92, 91, search=82)),
    "LoRA large": (80_000, over_seeds(88, 88, 88, search=82.4)),
    "LoRA cut": (10, over_seeds(99, search=99)),
}


@pytest.fixture
def front(tmp_path: Path) -> PastSweep:
    """Three complete configurations and one that has only one of its seeds."""
    return read_folder(record(tmp_path / "front", FRONT, seeds=(0, 1, 2)))


@pytest.mark.parametrize(
    ("rule", "label"),
    [
        ("best", "LoRA large"),  # the best search score, though another reports more
        ("enough", "LoRA middle"),  # of the reported scores, as the table marks it
        ("smallest-within:1", "LoRA middle"),
        ("smallest-within:30", "LoRA small"),
        ("under:79_999", "LoRA middle"),
        ("under:5000", "LoRA middle"),
        ("under:4999", "LoRA small"),
        ("knee", "LoRA middle"),
        ("lora cut", "LoRA cut"),
        ("large", "LoRA large"),
        ("0000000001", "LoRA middle"),
    ],
)
def test_rules_pick(front: PastSweep, rule: str, label: str) -> None:
    chosen = pick(rule, front.summaries, front.sweep.objectives)
    assert chosen.summary.label == label
    assert rule != "knee" or chosen.reason == "the knee of the front of score against size (reported scores)"


def test_the_smallest_within_a_point_is_the_row_that_the_table_marks(front: PastSweep, tmp_path: Path) -> None:
    (marked,) = [summary for summary in front.summaries if summary.enough]
    chosen = pick("enough", front.summaries, front.sweep.objectives)
    assert chosen.summary is marked
    assert f"P = {marked.counts['p_enough']:.2f}" in chosen.reason
    level = {"LoRA small": (100, over_seeds(88, 90, 92)), "LoRA large": (80_000, over_seeds(92, 90, 88))}
    unsure = read_folder(record(tmp_path / "unsure", level, seeds=(0, 1, 2)))
    with pytest.raises(NothingMeets, match=r"probability of 0.9 .*within 1 point.*the likeliest is LoRA \w+ \(0\.\d"):
        pick("smallest-within:1", unsure.summaries, unsure.sweep.objectives)
    assert pick("smallest-within:20", unsure.summaries, unsure.sweep.objectives).summary.label == "LoRA small"
    single = read_folder(record(tmp_path / "single", {name: (size, {("toy/sentiment", 0): (size / 1e5, 90)})
        for name, (size, _) in level.items()}, seeds=(0,)))  # fmt: skip
    reason = pick("smallest-within:1", single.summaries, single.sweep.objectives).reason
    assert "within 1 point of the best (0.80); with one seed there are no probabilities" in reason


def test_aliases_are_earned(front: PastSweep) -> None:
    earned = {alias: int(configuration, 16) for alias, configuration in titles(front.summaries, front.sweep.objectives).items()}
    assert earned == {"champion": 2, "enough": 1, "knee": 1}


def test_tasks_of_similar_names_get_folders_of_their_own() -> None:
    assert folders_of(["custom/a.b", "custom/a-b", "glue/rte"]) == {
        "custom/a.b": "custom-a-b",
        "custom/a-b": "custom-a-b-2",
        "glue/rte": "glue-rte",
    }
    assert folders_of(["glue/rte", "glue/rte"]) == {"glue/rte": ""}


def test_where_nothing_is_complete_nothing_ranks(tmp_path: Path) -> None:
    cut = read_folder(record(tmp_path / "cut", {"LoRA cut": FRONT["LoRA cut"]}, seeds=(0, 1, 2)))
    for rule in ("best", "knee", "under:100", "smallest-within:1"):
        with pytest.raises(NothingMeets, match="1/3"):
            pick(rule, cut.summaries, cut.sweep.objectives)
    assert titles(cut.summaries, cut.sweep.objectives) == {}


@pytest.mark.parametrize(("protocol", "seed"), [("honest", 2), ("customary", 0)])
def test_the_seed_is_chosen_by_the_search_score_or_by_nothing(tmp_path: Path, protocol: str, seed: int) -> None:
    scores = {("toy/sentiment", number): values for number, values in enumerate([(80, 70), (75, 99), (90, 60)])}
    folder = record(tmp_path / "seeds", {"x": (1, scores)}, seeds=(0, 1, 2), protocol=protocol)
    entries = read_folder(folder).trials("0000000000", "toy/sentiment")
    assert choose_seed(entries, None)[0].trial.seed == seed
    assert choose_seed(entries, 1)[0].trial.seed == 1
    with pytest.raises(NothingMeets, match="finished: 0, 1, 2"):
        choose_seed(entries, 7)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("frnt", "--pick", "best", "--to", "out"), 2, "Did you mean 'front'?"),
        (("front", "--pick", "best"), 2, "--to DIR"),
        (("front", "--pick", "bests", "--to", "out"), 2, "Did you mean 'best'?"),
        (("front", "--pick", "under:many", "--to", "out"), 2, "a number from 0"),
        (("front", "--pick", "lora", "--to", "out"), 2, "several configurations"),
        (("front", "--pick", "under:5", "--to", "out"), 1, "the smallest is LoRA small with 100"),
        (("front", "--pick", "best", "--to", "full"), 2, "not empty"),
        (("front", "--pick", "best", "--to", "file"), 2, "is a file"),
        (("front", "--pick", "best", "--task", "toy/sentimnt", "--to", "out"), 2, "Did you mean 'toy/sentiment'?"),
        (("front", "--pick", "best", "--seed", "9", "--to", "out"), 1, "finished: 0, 1"),
        (("cut", "front", "--pick", "lora cut", "--size", "1", "--to", "out"), 1, "is not complete (1/3)"),
        (("cut", "front", "--pick", "best", "--size", "all,2,2", "--to", "out"), 2, "a rank, such as 4, or parameters:20000"),
        (("cut", "front", "--pick", "best", "--size", "2"), 2, "Missing option '--to'"),
        (("cut", "front", "--pick", "best", "--size", "2", "--to", "full"), 2, "not empty"),
        (("front", "--pick", "best", "--to", "out"), 2, "neither at a noted place nor under"),
    ],
)
def test_mistakes_are_sentences_with_a_status_and_leave_nothing(
    front: PastSweep,
    here: Path,
    arguments: tuple[str, ...],
    status: int,
    said: str,
    cli: Cli,
) -> None:
    (here / "full").mkdir()
    (here / "full" / "kept").write_text("mine")
    (here / "file").write_text("mine")
    verb = () if arguments[0] == "cut" else ("take",)
    assert said in cli(*verb, *arguments, "--storage", str(here), status=status).err
    assert {path.name for path in here.iterdir()} == {"front", "full", "file"}
    assert (here / "full" / "kept").read_text() == "mine"


def logits(sweep: SmallSweep, key: str) -> np.ndarray:
    """The outputs that the sweep scored, as the trial stored them."""
    newest = stored_checkpoints(str(sweep.folder / "ray"), key)[0]
    return load_file(Path(newest.path) / "predictions.safetensors")["outputs"]


@pytest.fixture(scope="module")
def taken(small_sweep: SmallSweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best configuration's adapters, of both tasks, as the command writes them."""
    folder = tmp_path_factory.mktemp("taken") / "best"
    assert main(["take", str(small_sweep.folder), "--pick", "best", "--to", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_the_adapter_gives_the_outputs_that_were_scored(small_sweep: SmallSweep, taken: Path) -> None:
    from craft.spec import RunSpec
    from craft.tasks import find_task
    from craft.tasks.splits import load_splits
    from orchestrator.serving import Answerer

    for name in ("toy-sentiment", "toy-paraphrase"):
        spec = RunSpec.model_validate(json.loads((taken / name / "run.json").read_text())["spec"])
        sizes = {"train_examples": spec.training.train_examples, "eval_examples": spec.training.eval_examples}
        splits = load_splits(find_task(spec.task, spec.data), spec.data, protocol=spec.protocol, **sizes)
        rows = splits.reported[""].to_pandas()
        answers = Answerer(taken / name).predict(rows)
        assert list(answers) == json.loads((taken / name / "run.json").read_text())["labels"]
        np.testing.assert_allclose(answers.to_numpy(), logits(small_sweep, spec.key), atol=1e-5)


@pytest.mark.slow
def test_the_card_says_what_the_ledger_says_and_its_lines_run(
    small_sweep: SmallSweep, taken: Path, hub_cache: dict[str, str]
) -> None:
    record = read_folder(small_sweep.folder)
    best = max(record.summaries, key=lambda one: (one.value("search_score"), -one.value("trainable_parameters")))
    for name, task in (("toy-sentiment", "toy/sentiment"), ("toy-paraphrase", "toy/paraphrase")):
        card = (taken / name / "README.md").read_text()
        key = json.loads((taken / name / "run.json").read_text())["spec"]
        results = {entry.trial.seed: entry.result for entry in record.trials(best.configuration, task)}
        chosen = results[key["seed"]]
        assert chosen.metrics["search_score"] == max(one.metrics["search_score"] for one in results.values() if one)
        assert f"| {chosen.metrics['score']:.2f} |" in card
        assert f"{best.tasks[task].low:.2f} to {best.tasks[task].high:.2f}" in card
        assert chosen.facts["data_fingerprint"] in card
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)  # of the last task
    plain, ours = (asked(f"{code}print(logits.tolist())", taken / name, hub_cache) for code in blocks)
    assert "load_adapter" not in blocks[0]
    assert plain[0] == ours[0]
    assert plain[0] in json.loads((taken / name / "run.json").read_text())["labels"]
    np.testing.assert_allclose(json.loads(plain[1]), json.loads(ours[1]), atol=1e-5)


def asked(code: str, folder: Path, environment: dict[str, str]) -> list[str]:
    """The lines that a new process prints which runs `code` in `folder`."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_an_adapter_is_not_merged_into_a_base_that_was_trained_on_since(
    small_sweep: SmallSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = read_folder(small_sweep.folder)
    chosen = pick("best", record.summaries, record.sweep.objectives)
    monkeypatch.setattr("craft.models.files.model_digest", lambda name, revision=None: "0" * 64)
    with (
        pytest.raises(SweepError, match=r"its weights, configuration or tokenizer are not what .* .SHA-256 000000000000, then"),
        take_adapters(record, chosen, tmp_path / "merged", form="merged"),
    ):
        pass


def answered_without(modules: tuple[str, ...], load: str, texts: tuple[str, ...]) -> tuple[str, list[list[float]]]:
    """The type and the outputs of `model` in a new process that runs `load` and has none of these modules."""
    code = f"import sys\nfor name in {modules!r}: sys.modules[name] = None\n{load}\n"
    code += f"logits = model.eval()(**tokenizer(*{texts!r}, return_tensors='pt')).logits\n"
    code += "print(getattr(model, 'peft_type', type(model).__name__), logits.tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kind, logits = done.stdout.splitlines()[-1].split(" ", 1)
    return kind, json.loads(logits)


HEAVY = ("orchestrator", "ray", "mlflow", "optuna", "datasets", "scipy", "sklearn", "pandas")
FORMS = {
    "as it is": ("best", (), HEAVY, "from craft import load_adapter\nmodel, tokenizer = load_adapter({folder!r}, {base!r})"),
    "lora": (
        "CRAFT",
        ("--as", "lora"),
        ("craft", *HEAVY),
        "from peft import PeftModel\n"
        "from transformers import AutoConfig, AutoModelForSequenceClassification as M, AutoTokenizer as T\n"
        "base = M.from_pretrained({base!r}, config=AutoConfig.from_pretrained({folder!r}))\n"
        "model, tokenizer = PeftModel.from_pretrained(base, {folder!r}), T.from_pretrained({folder!r})",
    ),
    "merged": (
        "best",
        ("--as", "merged"),
        ("craft", "peft", *HEAVY),
        "from transformers import AutoModelForSequenceClassification as M, AutoTokenizer as T\n"
        "model, tokenizer = M.from_pretrained({folder!r}), T.from_pretrained({folder!r})",
    ),
}
"""How an adapter is taken: the rule that picks it, the form, what its loader must not need, and the lines that load it."""


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_outputs_where_only_its_libraries_are(
    form: str, small_sweep: SmallSweep, taken: Path, tmp_path: Path
) -> None:
    rule, flags, missing, load = FORMS[form]
    pick_it = ["take", str(small_sweep.folder), "--pick", rule, "--task", "toy/paraphrase", "--to"]
    own = taken / "toy-paraphrase" if rule == "best" else tmp_path / "own"
    for folder, more in ((own, ()), (tmp_path / "written", flags)):
        assert folder.is_dir() or main([*pick_it, str(folder), *more]) == 0
    load = load.format(folder=str(tmp_path / "written"), base=resolve_model(MINILM))
    kind, logits = answered_without(missing, load, ("a cat sleeps", "a dog runs"))
    model, tokenizer = craft.load_adapter(own)
    wanted = model(**tokenizer("a cat sleeps", "a dog runs", return_tensors="pt")).logits.tolist()
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    card = (tmp_path / "written" / "README.md").read_text()
    if form == "lora":
        assert (kind, model.peft_type.value) == ("PeftType.LORA", "CRAFT")
        count = sum(weight.size for weight in load_file(tmp_path / "written" / "adapter_model.safetensors").values())
        assert f"Written: a LoRA of rank 8 with the same change of weights, {count:,} numbers" in card
    assert ("merged into the weights" in card) == (form == "merged")


@pytest.mark.slow
def test_the_store_gives_what_the_folder_gives(small_sweep: SmallSweep, taken: Path, tmp_path: Path) -> None:
    assert main(["take", "small", "--tracking-uri", small_sweep.uri, "--pick", "best", "--to", str(tmp_path / "out")]) == 0
    files = sorted(path.relative_to(taken) for path in taken.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    for file in files:
        if file.name != "README.md":
            assert (tmp_path / "out" / file).read_bytes() == (taken / file).read_bytes()


@pytest.mark.slow
def test_a_damaged_adapter_is_refused(small_sweep: SmallSweep, tmp_path: Path, cli: Cli) -> None:
    whole = next((small_sweep.folder / "ray").rglob("adapter"))
    broken = tmp_path / "adapter"
    broken.mkdir()
    for file in whole.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = bytearray((broken / "adapter_model.safetensors").read_bytes())
    weights[-1] ^= 1
    (broken / "adapter_model.safetensors").write_bytes(weights)
    folder = record(tmp_path / "sweep", {"x": (1, over_seeds(1, 2))}, adapter=broken)
    assert "damaged" in cli("take", str(folder), "--pick", "best", "--to", str(tmp_path / "out"), status=2).err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_finished_configuration_is_cut_without_training(small_sweep: SmallSweep, tmp_path: Path, cli: Cli) -> None:
    from craft import load_adapter

    trained = next(summary for summary in read_folder(small_sweep.folder).summaries if summary.method == "craft")
    flags = ["cut", str(small_sweep.folder), "--pick", trained.configuration, "--size", "3", "--size", "parameters:70"]
    said = " ".join(cli(*flags, "--to", str(tmp_path / "out")).out.split())
    assert f"{trained.label}, cut to r3" in said
    assert f"{2 * (36 + 2 * 8 * 3 + 2 * 8 * 3):,}" in said, "six layers: a J1 of rank 3 is as large as a whole one"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["3", "parameters-70"]
    model, tokenizer = load_adapter(tmp_path / "out" / "3" / "toy-sentiment" / "seed-1")
    assert np.isfinite(model(**tokenizer("a fine day", return_tensors="pt")).logits.detach().numpy()).all()


def test_a_seed_that_was_added_and_failed_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    folder = record(tmp_path / "sweep", {"LoRA r1": (100, over_seeds(80.0))}, seeds=(0,), adapter=adapter)
    (first,) = read_folder(folder).entries
    added = replace(first.trial, key="added", seed=1)
    failed = Ended(result=TrialResult("added", "failed", error="NaN loss"))
    write_log(folder, Wanted(keys=[first.key, "added"], trials=[added]), failed)
    done = SimpleNamespace(adapter=adapter, counts=SimpleNamespace(trainable_parameters=50))
    monkeypatch.setattr("craft.trainer.cuts.cut_and_score", lambda *_, **__: (None, done))
    sweep = read_folder(folder)
    (cut,) = cut_adapters(sweep, sweep.summaries[0], ["parameters:50"], tmp_path / "out")
    assert cut == ("LoRA r1, cut to 1/2", 50)
    assert (tmp_path / "out" / "parameters-50" / "run.json").is_file()


def test_a_lora_of_a_gguf_base_is_loaded_by_what_reads_gguf(tmp_path: Path, front: PastSweep) -> None:
    folder = write_adapter(tmp_path / "adapter", {"peft_type": "LORA", "r": 8})
    run = json.loads((folder / "run.json").read_text())
    run["spec"]["model"] = "models/x-q4.gguf"
    (folder / "run.json").write_text(json.dumps(run))
    assert (
        how_to_load(Taken("demo", front.summaries[0], front.entries[0], (), folder=folder), "lora")[0]
        == "from craft import load_adapter"
    )


HALF = """\
import signal, sys, time
from orchestrator.adapters import taking
from orchestrator.commands.app import WRONG, main

def write_half(record, adapter, *_):
    adapter.folder.mkdir(parents=True)
    (adapter.folder / "half").write_text("half")
    print("writing", flush=True)
    time.sleep(600)

taking._write_adapter = write_half
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
sys.exit(main(["take", "sweep", "--pick", "best", "--to", "taken"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_killed_take_leaves_nothing(number: signal.Signals, here: Path) -> None:
    record(here / "runs" / "sweep", {"LoRA r1": (100, over_seeds(80.0, 81.0))})
    killed = subprocess.Popen([sys.executable, "-c", HALF], stdout=subprocess.PIPE, encoding="utf-8")
    assert "writing\n" in iter(killed.stdout.readline, "")
    killed.send_signal(number)
    assert killed.wait(60) == (-9 if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:  # the next one tidies up
        assert [path.name for path in here.iterdir()] != ["runs"]
        assert main(["take", "sweep", "--pick", "best", "--to", "taken"]) == WRONG
    assert [path.name for path in here.iterdir()] == ["runs"]


def test_labels_are_shown_as_they_are_written(tmp_path: Path, cli: Cli) -> None:
    label = "LoRA :fire: [red]r8[/red]"
    folder = record(tmp_path / "front", {label: (100, over_seeds(70, 72, 71))}, seeds=(0, 1, 2))
    shown = cli("front", str(folder)).out + cli("status", str(folder)).out
    assert "\N{FIRE}" not in shown
    assert shown.count(label) >= 2
