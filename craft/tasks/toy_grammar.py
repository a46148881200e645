"""The four grammars of the toy suite: each draws a *family* of examples with one vocabulary and different answers.

A family is made of near-identical sentences, so that a word by itself says (almost) nothing about the label. The label depends
on the order of the words, on who does what to whom, and on the reach of a negation or a quantifier. All randomness comes from
`random.Random`, whose sequence is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from random import Random
from typing import Any, NamedTuple

from craft.tasks import toy_words as vocabulary


class Example(NamedTuple):
    """One sentence or pair with its label: a class number, or a score."""

    text: str
    text_pair: str | None
    label: float


Grammar = Callable[[Random], list[Example]]


def sentiment(draw: Random) -> list[Example]:
    """Draws verdicts: the clause that a contrast puts in front decides, and a negation turns its adjective; 1 is positive."""
    subject = draw.choice(list(vocabulary.REVIEWED))
    major, minor = draw.sample(vocabulary.REVIEWED[subject], 2)
    shape = draw.choice((
        "The {major} was {a}.",
        "The {minor} was {b}, but the {major} was {a}.",
        "Although the {minor} was {b}, the {major} was {a}.",
        "The {major} was {a}, although the {minor} was {b}.",
        "The {major} was {a}, even if the {minor} was {b}.",
        "The {minor} was {b}, yet in the end the {major} was {a}.",
    ))  # fmt: skip
    negated = draw.random() < 0.5, draw.random() < 0.5
    good, bad = (draw.sample(adjectives, 2) for adjectives in (vocabulary.GOOD, vocabulary.BAD))
    no, lead = draw.choice(("not", "hardly", "never", "far from", "anything but")), draw.choice(_LEADS)
    family = []
    for positive in (True, False):
        a, b = (
            f"{no} {(bad if value else good)[place]}" if turned else (good if value else bad)[place]
            for place, (value, turned) in enumerate(zip((positive, not positive), negated, strict=True))
        )
        sentence = shape.format(major=major, minor=minor, a=a, b=b)
        text = lead.format(subject=subject, sentence=sentence[0].lower() + sentence[1:]) if lead else sentence
        family.append(Example(text, None, float(positive)))
    return family


_LEADS = ("", "", "As for the {subject}, {sentence}", "About that {subject}: {sentence}")


def paraphrase(draw: Random) -> list[Example]:
    """Draws two sentences of an event (1), or of two events that differ in a role or exchange the roles (0)."""
    agent, patient, other = (_person(draw, noun) for noun in draw.sample(vocabulary.PEOPLE, 3))
    verbs = draw.choice(vocabulary.DEEDS)
    when = draw.choice(("yesterday", "last week", "on monday", "at the party", "in the market", "after lunch"))
    first, second = draw.choice(_FORMS), draw.choice(_FORMS)
    event = first.format(a=agent, p=patient, v=draw.choice(verbs), w=when)
    changed = draw.choice(((patient, agent), (patient, agent), (other, patient), (agent, other)))
    verb = draw.choice(verbs)
    return [
        Example(event, second.format(a=roles[0], p=roles[1], v=verb, w=when), label)
        for roles, label in (((agent, patient), 1.0), (changed, 0.0))
    ]


_FORMS = ("The {a} {v} the {p} {w}.", "The {p} was {v} by the {a} {w}.")


def _person(draw: Random, noun: str) -> str:
    return f"{draw.choice(vocabulary.TRAITS)} {noun}" if draw.random() < 0.5 else noun


QUANTIFIERS = {
    "every": ("Every {one}", "All {many}"),
    "some": ("Some {many}", "{a_one}"),
    "no": ("No {one}", "No {many}"),
    "not every": ("Not every {one}", "Not all {many}"),
}
Statement = tuple[str, bool, bool]  # quantifier, narrow noun?, narrow act?


def entailment(draw: Random) -> list[Example]:
    """Draws premises that entail (0), leave open (1) or contradict (2) a hypothesis about a wider or narrower class or act."""
    noun, act, manner = draw.choice(vocabulary.NOUNS), draw.choice(vocabulary.ACTS), draw.choice(vocabulary.MANNERS)
    trait = draw.choice(vocabulary.TRAITS)
    family = []
    for label in range(3):
        statements = draw.choice(statement_pairs()[label])
        sides = []
        for quantifier, narrow, narrow_act in statements:
            phrase = f"{trait} {noun}" if narrow else noun
            subject = draw.choice(QUANTIFIERS[quantifier]).format(one=phrase, many=_plural(phrase), a_one=_a(phrase))
            sides.append(f"{subject} {act}{' ' + manner if narrow_act else ''}.")
        family.append(Example(sides[0], sides[1], float(label)))
    return family


def _plural(noun: str) -> str:
    return noun.removesuffix("child") + "children" if noun.endswith("child") else noun + "s"


def _a(noun: str) -> str:
    return f"{'An' if noun[0] in 'aeiou' else 'A'} {noun}"


@cache
def statement_pairs() -> tuple[tuple[tuple[Statement, Statement], ...], ...]:
    """Lists pairs of statements by label, found by checking them in every small world.

    A world says which of the nine sorts of individuals exist: narrow noun, wide noun only or neither, times narrow act, wide
    act only or neither. Worlds without the narrow noun are left out, as speakers presuppose what they quantify over.
    """
    sorts = [(noun, act) for noun in (2, 1, 0) for act in (2, 1, 0)]
    every_world = (
        [sort for sort, exists in zip(sorts, bits, strict=True) if exists] for bits in product((0, 1), repeat=len(sorts))
    )
    worlds = [world for world in every_world if any(noun == 2 for noun, _ in world)]
    statements = list(product(QUANTIFIERS, (True, False), (True, False)))
    truth = {statement: [_holds(statement, world) for world in worlds] for statement in statements}
    by_label: tuple[list[Any], ...] = ([], [], [])
    for premise, hypothesis in product(statements, repeat=2):
        if premise == hypothesis:
            continue
        seen = {then for premise_holds, then in zip(truth[premise], truth[hypothesis], strict=True) if premise_holds}
        by_label[0 if seen == {True} else 2 if seen == {False} else 1].append((premise, hypothesis))
    return tuple(tuple(pairs) for pairs in by_label)


def _holds(statement: Statement, world: list[tuple[int, int]]) -> bool:
    quantifier, narrow, narrow_act = statement
    acting = [act >= 1 + narrow_act for noun, act in world if noun >= 1 + narrow]
    return {"every": all(acting), "some": any(acting), "no": not any(acting), "not every": not all(acting)}[quantifier]


def similarity(draw: Random) -> list[Example]:
    """Draws two events, scored 5 less the number of parts that differ (agent, deed, patient, place, time) in any wording.

    Two people who exchange their roles are two parts that differ, although every word stays.
    """
    parts = (vocabulary.AGENTS, vocabulary.DEEDS, vocabulary.AGENTS, vocabulary.PLACES, vocabulary.TIMES)
    agent, patient, *bystanders = draw.sample(range(len(vocabulary.AGENTS)), 4)
    meanings = [draw.sample(range(len(part)), 2) for part in parts]
    meanings[0], meanings[2] = [agent, bystanders[0]], [patient, bystanders[1]]
    differing = set(draw.sample(range(len(parts)), draw.randrange(len(parts) + 1)))
    if len(differing) > 1 and draw.random() < 0.6:
        # The same number of differences, two of them the exchanged people.
        differing = {0, 2, *draw.sample((1, 3, 4), len(differing) - 2)}
        meanings[0], meanings[2] = [agent, patient], [patient, agent]
    first, second = (
        [
            part[meaning[side and at in differing]][draw.randrange(2)]
            for at, (part, meaning) in enumerate(zip(parts, meanings, strict=True))
        ]
        for side in (0, 1)
    )
    return [Example(_event(first, draw), _event(second, draw), 5.0 - len(differing))]


def _event(parts: list[str], draw: Random) -> str:
    agent, deed, patient, place, time = parts
    form = draw.choice(("{t}, {a} {d} {o} {p}.", "{a} {d} {o} {p} {t}.", "{p}, {a} {d} {o} {t}."))
    text = form.format(t=time, a=agent, d=deed, o=patient, p=place)
    return text[0].upper() + text[1:]
