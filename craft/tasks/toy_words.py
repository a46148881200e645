"""The vocabulary of the toy suite's grammars: everyday words, each with the forms and relations the grammars need."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Nouns whose plural is noun + "s".
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
