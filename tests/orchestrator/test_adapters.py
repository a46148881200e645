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
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import craft
from craft.models.files import MINILM, resolve_model
from craft.spec import RunSpec
from craft.trainer.training import train_run
from orchestrator.adapters.merging import write_merged
from orchestrator.adapters.taking import cut_adapters, folders_of
from orchestrator.commands.app import WRONG, main
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Ended, Wanted
from orchestrator.review.past_sweep import PastSweep, read_folder
from orchestrator.review.pick import NothingMeets, choose_seed, pick, titles
from orchestrator.serving import Answerer
from tests.orchestrator.conftest import Cli, SmallSweep
from tests.orchestrator.recorded import over_seeds, record, write_adapter, write_log
from tests.word_pairs import word_pairs

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
    earned = {alias: int(configuration, 16) for alias, configuration in titles(front.summaries, front.sweep.objectives).items()}
    assert earned == {"champion": 2, "enough": 1, "knee": 1}
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


@pytest.mark.parametrize(
    ("tasks", "folders"),
    [(["custom/a.b", "custom/a-b", "glue/rte"], ["custom-a-b", "custom-a-b-2", "glue-rte"]), (["glue/rte", "glue/rte"], [""])],
)
def test_tasks_of_similar_names_get_folders_of_their_own(tasks: list[str], folders: list[str]) -> None:
    assert folders_of(tasks) == dict(zip(dict.fromkeys(tasks), folders, strict=True))


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
    assert [choose_seed(entries, given)[0].trial.seed for given in (None, 1)] == [seed, 1]
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
        (("front", "--pick", "best", "--to", "out"), 2, "neither at a noted place nor under"),
    ],
)
@pytest.mark.usefixtures("front")
def test_mistakes_are_sentences_with_a_status_and_leave_nothing(
    here: Path, arguments: tuple[str, ...], status: int, said: str, cli: Cli
) -> None:
    (here / "full").mkdir()
    (here / "full" / "kept").write_text("mine")
    (here / "file").write_text("mine")
    verb = () if arguments[0] == "cut" else ("take",)
    assert said in cli(*verb, *arguments, "--storage", str(here), status=status).err
    assert {path.name for path in here.iterdir()} == {"front", "full", "file"}
    assert (here / "full" / "kept").read_text() == "mine"


@pytest.fixture(scope="module")
def taken(small_sweep: SmallSweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best configuration's adapters, of both tasks, as the command writes them."""
    folder = tmp_path_factory.mktemp("taken") / "best"
    assert main(["take", str(small_sweep.folder), "--pick", "best", "--to", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_the_card_says_what_the_ledger_says_and_its_lines_run(
    small_sweep: SmallSweep, taken: Path, hub_cache: dict[str, str]
) -> None:
    record = read_folder(small_sweep.folder)
    best = max(record.summaries, key=lambda one: (one.value("search_score"), -one.value("trainable_parameters")))
    for name, task in (("toy-sentiment", "toy/sentiment"), ("toy-paraphrase", "toy/paraphrase")):
        card = (taken / name / "README.md").read_text()
        run = json.loads((taken / name / "run.json").read_text())
        results = {entry.trial.seed: entry.result for entry in record.trials(best.configuration, task)}
        chosen = results[run["spec"]["seed"]]
        assert chosen.metrics["search_score"] == max(one.metrics["search_score"] for one in results.values() if one)
        assert f"| {chosen.metrics['score']:.2f} |" in card
        assert f"{best.tasks[task].low:.2f} to {best.tasks[task].high:.2f}" in card
        assert chosen.facts["data_fingerprint"] in card
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)  # of the last task
    plain, ours = (asked(f"{code}print(logits.tolist())", cwd=taken / name, env=hub_cache) for code in blocks)
    assert "load_adapter" not in blocks[0]
    assert plain[0] == ours[0]
    assert plain[0] in run["labels"]
    np.testing.assert_allclose(json.loads(plain[1]), json.loads(ours[1]), atol=1e-5)


def asked(code: str, **how: Any) -> list[str]:
    """The lines that a new process prints which runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_an_adapter_is_not_merged_into_a_base_that_was_trained_on_since(
    small_sweep: SmallSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr("craft.models.files.model_digest", lambda name, revision=None: "0" * 64)
    call = ["take", str(small_sweep.folder), "--pick", "best", "--as", "merged", "--to", str(tmp_path / "merged")]
    said = r"its weights, configuration or tokenizer are not what .* .SHA-256 000000000000, then"
    assert re.search(said, " ".join(cli(*call, status=WRONG).err.split()))


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
    code = f"import sys\nfor name in {missing!r}: sys.modules[name] = None\n"
    code += load.format(folder=str(tmp_path / "written"), base=resolve_model(MINILM))
    code += "\nlogits = model.eval()(**tokenizer('a cat sleeps', 'a dog runs', return_tensors='pt')).logits\n"
    kind, logits = asked(f"{code}print(getattr(model, 'peft_type', ''))\nprint(logits.tolist())")[-2:]
    model, tokenizer = craft.load_adapter(own)
    wanted = model(**tokenizer("a cat sleeps", "a dog runs", return_tensors="pt")).logits.tolist()
    np.testing.assert_allclose(json.loads(logits), wanted, atol=1e-5)
    card = (tmp_path / "written" / "README.md").read_text()
    if form == "lora":
        assert (kind, model.peft_type.value) == ("PeftType.LORA", "CRAFT")
        count = sum(weight.size for weight in load_file(tmp_path / "written" / "adapter_model.safetensors").values())
        assert f"Written: a LoRA of rank 8 with the same change of weights, {count:,} numbers" in card
    assert ("merged into the weights" in card) == (form == "merged")


@pytest.mark.slow
def test_the_store_gives_what_the_folder_gives(small_sweep: SmallSweep, taken: Path, tmp_path: Path) -> None:
    assert main(["take", "small", "--tracking-uri", small_sweep.uri, "--pick", "best", "--to", str(tmp_path / "out")]) == 0
    ours, stored = (
        {path.relative_to(place): path.name == "README.md" or path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (taken, tmp_path / "out")
    )
    assert ours == stored


def test_a_damaged_adapter_is_refused(tmp_path: Path, cli: Cli) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    whole = (adapter / "run.json").read_bytes()
    (adapter / "run.json").write_bytes(whole.replace(b"sentiment", b"sentimenu"))
    folder = record(tmp_path / "sweep", {"x": (1, over_seeds(1, 2))}, adapter=adapter)
    assert "damaged" in cli("take", str(folder), "--pick", "best", "--to", str(tmp_path / "out"), status=2).err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_finished_configuration_is_cut_without_training(small_sweep: SmallSweep, tmp_path: Path, cli: Cli) -> None:
    trained = next(summary for summary in read_folder(small_sweep.folder).summaries if summary.method == "craft")
    flags = ["cut", str(small_sweep.folder), "--pick", trained.configuration, "--size", "3", "--size", "parameters:70"]
    said = " ".join(cli(*flags, "--to", str(tmp_path / "out")).out.split())
    assert f"{trained.label}, cut to r3" in said
    assert f"{2 * (36 + 2 * 8 * 3 + 2 * 8 * 3):,}" in said, "six layers: a J1 of rank 3 is as large as a whole one"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["3", "parameters-70"]
    model, tokenizer = craft.load_adapter(tmp_path / "out" / "3" / "toy-sentiment" / "seed-1")
    assert np.isfinite(model(**tokenizer("a fine day", return_tensors="pt")).logits.detach().numpy()).all()


def test_a_seed_that_was_added_and_failed_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    folder = record(tmp_path / "sweep", {"LoRA r1": (100, over_seeds(80.0))}, seeds=(0,), adapter=adapter)
    (first,) = read_folder(folder).state.requested
    added = replace(first.trial, key="added", seed=1)
    failed = Ended(result=TrialResult("added", "failed", error="NaN loss"))
    write_log(folder, Wanted(keys=[first.key, "added"], trials=[added]), failed)
    done = SimpleNamespace(adapter=adapter, counts=SimpleNamespace(trainable_parameters=50))
    monkeypatch.setattr("craft.trainer.cuts.cut_and_score", lambda *_, **__: (None, done))
    sweep = read_folder(folder)
    (cut,) = cut_adapters(sweep, sweep.summaries[0], ["parameters:50"], tmp_path / "out")
    assert cut == ("LoRA r1, cut to 1/2", 50)
    assert (tmp_path / "out" / "parameters-50" / "run.json").is_file()


PAIRS = [["the old man waits for the bus", "an old man is waiting for a bus"], ["a girl sings", "the plan was rejected"]]
ASK = """
pairs = {pairs!r}
print(json.dumps([model.eval()(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in pairs]))
"""


def answers(code: str) -> list[float]:
    """What a new process prints that can import nothing of this project."""
    blocked = "import json, sys\nfor name in ('craft', 'orchestrator'): sys.modules[name] = None\n"
    load = "from transformers import AutoModelForSequenceClassification as M, AutoTokenizer as T\n"
    return list(json.loads(asked(blocked + load + code + ASK.format(pairs=PAIRS))[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_regression_answers_in_its_unit_wherever_it_is_loaded(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base = resolve_model(MINILM) if family == "bert" else request.getfixturevalue("stories")
    training = {"train_examples": 120, "eval_examples": 40, "max_steps": 4, "batch_size": 8, "max_length": 64}
    spec = RunSpec(model=base, method="lora", parameters={"rank": 2}, training=training, **word_pairs(tmp_path, "regression"))
    adapter = train_run(spec, tmp_path / "run").adapter
    loaded, tokenizer = craft.load_adapter(adapter)
    wanted = [loaded(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in PAIRS]
    assert all(0 < value < 5 for value in wanted), "numbers from 0 to 5, as the labels are"

    plain = answers(
        "from peft import PeftModel\n"
        f"model = PeftModel.from_pretrained(M.from_pretrained({base!r}, num_labels=1), {str(adapter)!r})\n"
        f"tokenizer = T.from_pretrained({base!r})"
    )
    np.testing.assert_allclose(plain, wanted, atol=1e-4)
    merged = tmp_path / "merged"
    write_merged(adapter, merged)
    np.testing.assert_allclose(
        answers(f"model, tokenizer = M.from_pretrained({str(merged)!r}), T.from_pretrained({str(merged)!r})"), wanted, atol=1e-3
    )
    for folder in (adapter, merged):
        served = Answerer(folder).predict(pd.DataFrame(PAIRS, columns=["text", "text_pair"]))
        assert list(served) == ["value"]
        np.testing.assert_allclose(served["value"], wanted, atol=1e-3)


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


@pytest.mark.slow
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
