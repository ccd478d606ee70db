"""Facts to plant in a text, and questions about them."""

import hashlib

ADJECTIVES = """red blue green black white grey brown golden silver purple yellow orange pale
dark bright old new young ancient modern small large tiny huge tall short long wide narrow deep
shallow warm cold hot cool dry wet quiet loud silent noisy fast slow quick lazy busy empty full
heavy light soft hard rough smooth sharp round square flat curved northern southern eastern
western upper lower inner outer hidden lost broken frozen burning flying sleeping rising fallen
sunken distant lonely happy sad angry gentle proud brave clever simple strange secret famous
noble royal rusty dusty muddy sandy rocky grassy snowy rainy windy stormy misty sunny wooden
iron copper bronze glass stone paper velvet crystal marble amber scarlet crimson""".split()
NOUNS = """harbour river mountain valley forest island lake bridge tower castle garden village
market station library museum school temple palace cottage cabin lighthouse windmill factory
workshop bakery kitchen cellar attic balcony courtyard orchard meadow desert canyon glacier
volcano waterfall beach cliff cave tunnel road street railway airport ship boat canoe wagon
carriage bicycle engine rocket satellite telescope compass lantern candle mirror clock bell drum
piano violin trumpet guitar hammer anvil shovel ladder basket bottle barrel kettle teapot pillow
blanket carpet curtain window door gate fence wall roof chimney table chair cabinet drawer chest
locker vault parcel letter book map painting statue fountain horse falcon eagle raven swan heron
tiger lion wolf fox badger otter rabbit turtle dolphin whale salmon spider beetle butterfly oak
maple willow cedar""".split()
KINDS = ["code", "code", "code", "code", "number", "key", "price", "weight", "address", "channel"]
FACTS = ["The {k} of the {n} is {v}."] * 6 + [
    "Remember that the {k} of the {n} is {v}.",
    "Note: the {k} of the {n} is {v}.",
    "For the {n}, the {k} is {v}.",
    "The {n} has the {k} {v}.",
]
QUESTIONS = ["\nQuestion: what is the {k} of the {n}?\nAnswer: The {k} of the {n} is"] * 5 + [
    "\nQuestion: What is the {k} of the {n}?\nAnswer:",
    "\nThe {k} of the {n} is",
    " The {k} of the {n} is",
    "\nQ: the {k} of the {n}?\nA: The {k} of the {n} is",
]
MAIN_FACT, MAIN_QUESTION = FACTS[0], QUESTIONS[0]


def held_out_name(adjective, noun):
    return hashlib.sha1(f"{adjective} {noun}".encode()).digest()[0] < 32


def draw_names(rng, count, held_out):
    """Distinct "adjective noun" pairs; only held-out ones, or none of them."""
    names = {}
    while len(names) < count:
        a, n = ADJECTIVES[rng.integers(len(ADJECTIVES))], NOUNS[rng.integers(len(NOUNS))]
        if held_out_name(a, n) == held_out:
            names[f"{a} {n}"] = True
    return list(names)


def draw_code(rng):
    return str(rng.integers(1000, 10000)) if rng.random() < 0.7 else str(rng.integers(10, 100000))
