"""toy: two small tasks in the shape of GLUE, made by code from a seeded grammar. No download, equal on every machine.

    toy/sentiment     negation and contrast (SST-2)
    toy/paraphrase    the same event or its roles exchanged (MRPC)

Each grammar draws a *family* of examples with one vocabulary and different answers: near-identical sentences, so that a word by
itself says (almost) nothing about the label. It depends on the order of the words, on which of two people acts, and on the
reach of a negation. No sentence of dev occurs in train.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from craft.settings import DataSettings
from craft.tasks.files import Rows
from craft.tasks.rows import fingerprint, to_dataset
from craft.tasks.task import RawData, Task

if TYPE_CHECKING:
    from datasets import Dataset


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    "teacher doctor lawyer artist farmer driver banker singer writer sailor tailor painter soldier pilot baker student "
    "tourist neighbor officer manager"
)

# (subject, what may be good or bad about it)
REVIEWED = {
    "film": ("plot", "acting", "music", "ending", "dialogue", "camera work"),
    "hotel": ("room", "breakfast", "staff", "location", "pool", "view"),
    "restaurant": ("soup", "waiter", "dessert", "menu", "wine", "fish"),
    "novel": ("story", "style", "hero", "opening", "translation", "humor"),
    "concert": ("singer", "sound", "choice of songs", "band", "light show", "first half"),
    "course": ("lecturer", "material", "homework", "pace", "textbook", "discussion"),
    "phone": ("screen", "battery", "camera", "design", "keyboard", "software"),
}
GOOD = _words(
    "good great brilliant delightful charming superb excellent pleasant lovely wonderful impressive enjoyable fantastic "
    "splendid remarkable satisfying"
)
BAD = _words(
    "bad terrible dull dreadful boring awful poor disappointing horrible mediocre tedious annoying unpleasant clumsy "
    "miserable ridiculous"
)

# Two ways of saying one deed; the past is also the participle.
DEEDS = (
    ("chased", "pursued"), ("helped", "assisted"), ("hired", "employed"), ("rescued", "saved"), ("followed", "tracked"),
    ("attacked", "assaulted"), ("praised", "commended"), ("phoned", "called"), ("insulted", "offended"),
    ("frightened", "scared"), ("defeated", "overpowered"), ("questioned", "interrogated"), ("annoyed", "irritated"),
    ("deceived", "tricked"), ("watched", "observed"), ("injured", "wounded"),
)  # fmt: skip

TRAITS = _words("small tall young old tired happy hungry clever shy rich noisy friendly nervous foreign")


Example = tuple[str, str | None, int]
"""A sentence, the other one of a pair, and the number of its class."""


def sentiment(draw: Random) -> list[Example]:
    """Draws verdicts: the clause that a contrast puts in front decides, and a negation turns its adjective; 1 is positive."""
    subject = draw.choice(list(REVIEWED))
    major, minor = draw.sample(REVIEWED[subject], 2)
    shape = draw.choice((
        "The {major} was {a}.",
        "The {minor} was {b}, but the {major} was {a}.",
        "Although the {minor} was {b}, the {major} was {a}.",
        "The {major} was {a}, although the {minor} was {b}.",
        "The {major} was {a}, even if the {minor} was {b}.",
        "The {minor} was {b}, yet in the end the {major} was {a}.",
    ))  # fmt: skip
    negated = draw.random() < 0.5, draw.random() < 0.5
    good, bad = (draw.sample(adjectives, 2) for adjectives in (GOOD, BAD))
    no, lead = draw.choice(("not", "hardly", "never", "far from", "anything but")), draw.choice(_LEADS)
    family: list[Example] = []
    for positive in (True, False):
        a, b = (
            f"{no} {(bad if value else good)[place]}" if turned else (good if value else bad)[place]
            for place, (value, turned) in enumerate(zip((positive, not positive), negated, strict=True))
        )
        sentence = shape.format(major=major, minor=minor, a=a, b=b)
        text = lead.format(subject=subject, sentence=sentence[0].lower() + sentence[1:]) if lead else sentence
        family.append((text, None, int(positive)))
    return family


_LEADS = ("", "", "As for the {subject}, {sentence}", "About that {subject}: {sentence}")


def paraphrase(draw: Random) -> list[Example]:
    """Draws two sentences of an event (1), or of two events that differ in a role or exchange the roles (0)."""
    nouns = draw.sample(PEOPLE, 3)
    agent, patient, other = (f"{draw.choice(TRAITS)} {noun}" if draw.random() < 0.5 else noun for noun in nouns)
    verbs = draw.choice(DEEDS)
    when = draw.choice(("yesterday", "last week", "on monday", "at the party", "in the market", "after lunch"))
    first, second = draw.choice(_FORMS), draw.choice(_FORMS)
    event = first.format(a=agent, p=patient, v=draw.choice(verbs), w=when)
    changed = draw.choice(((patient, agent), (patient, agent), (other, patient), (agent, other)))
    verb = draw.choice(verbs)
    return [
        (event, second.format(a=roles[0], p=roles[1], v=verb, w=when), label)
        for roles, label in (((agent, patient), 1), (changed, 0))
    ]


_FORMS = ("The {a} {v} the {p} {w}.", "The {p} was {v} by the {a} {w}.")


_SEED = 20260119

GRAMMARS = {"toy/sentiment": sentiment, "toy/paraphrase": paraphrase}


def load(task: Task, data: DataSettings) -> RawData:
    """Writes 2,000 examples to train on and 500 to report. Every label has its equal share. `data` is not used."""
    draw, barred = Random(f"{_SEED} {task.name}"), set[str | None]()
    splits: list[Dataset] = []
    for count in (2000, 500):
        examples = _examples(task, count, draw, barred)
        columns = {name: [example[at] for example in examples] for at, name in enumerate(task.text)}
        columns[task.label] = [label for _, _, label in examples]
        splits.append(to_dataset(Rows(task.name, columns), task))
        barred |= {sentence for example in examples for sentence in example[:2]} - {None}
    return RawData(splits[0], {"": splits[1]}, fingerprint(splits))


def _examples(task: Task, count: int, draw: Random, barred: set[str | None]) -> list[Example]:
    remaining_counts = dict.fromkeys(range(len(task.labels)), count // len(task.labels))
    chosen: dict[Example, None] = {}
    while len(chosen) < count:
        for example in GRAMMARS[task.name](draw):
            if remaining_counts[example[2]] and example not in chosen and barred.isdisjoint(example[:2]):
                chosen[example] = None
                remaining_counts[example[2]] -= 1
    examples = list(chosen)
    draw.shuffle(examples)
    return examples


TASKS: tuple[Task, ...] = (
    Task(
        "toy/sentiment", "Is the verdict of the sentence positive?", "classification", ("text",), "label",
        ("negative", "positive"), ("accuracy",), "accuracy", load,
    ),
    Task(
        "toy/paraphrase", "Do two sentences tell the same event?", "classification", ("text", "text_pair"), "label",
        ("not_equivalent", "equivalent"), ("accuracy", "f1"), "accuracy", load,
    ),
)  # fmt: skip
