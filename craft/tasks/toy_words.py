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

NOUNS = _words(
    "dog bird student singer doctor lawyer tourist farmer child artist sailor nurse guest worker pupil dancer horse cat"
)
TRAITS = _words("small tall young old tired happy hungry clever shy rich noisy friendly nervous foreign")
ACTS = _words("sang waited slept ran danced smiled worked shouted ate swam laughed escaped cheered complained jumped wept")
MANNERS = (
    "loudly",
    "in the park",
    "at night",
    "quickly",
    "near the river",
    "alone",
    "with a friend",
    "before noon",
    "in the rain",
)

# Meanings for graded similarity: each row is two ways of saying one thing; rows differ clearly.
AGENTS = (
    ("the doctor", "the physician"), ("the child", "the kid"), ("the lawyer", "the attorney"), ("the thief", "the robber"),
    ("the policeman", "the officer"), ("the teacher", "the instructor"), ("the writer", "the author"),
    ("the sailor", "the seaman"), ("the chef", "the cook"), ("the boss", "the manager"),
)  # fmt: skip
PLACES = (
    ("in the woods", "in the forest"), ("at the shop", "at the store"), ("by the sea", "near the ocean"),
    ("in the city", "in the town"), ("on the street", "on the road"), ("at home", "in the house"),
    ("at the airport", "at the terminal"), ("in the yard", "in the garden"),
)  # fmt: skip
TIMES = (
    ("in the evening", "at dusk"), ("in the morning", "at dawn"), ("last year", "a year ago"), ("in fall", "in autumn"),
    ("at midnight", "at twelve"), ("yesterday", "the day before"), ("on the weekend", "on sunday"), ("before lunch", "at noon"),
)  # fmt: skip
