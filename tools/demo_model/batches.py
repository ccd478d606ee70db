"""Training sequences: text, copies and lookups, every batch drawn from (seed, step)."""

import math
import re

import numpy as np
import torch

from demo_model.corpus import EOT
from demo_model.facts import (
    FACTS,
    KINDS,
    MAIN_FACT,
    MAIN_QUESTION,
    QUESTIONS,
    draw_code,
    draw_names,
    held_out_name,
)

# Weights of the loss in lookups; plain text and copies weigh 1. However few the answers, together
# they weigh at least ANSWERS times as much as so many tokens of plain text as the sequence has.
TEXT, NOTHING, ANSWER, ANSWERS = 0.2, 0.0, 8.0, 0.75


class Batches:
    def __init__(self, tokenizer, train, seed, few=0.4):
        self.tok, self.seed, self.vocab = tokenizer, seed, tokenizer.get_vocab_size()
        self.few = few  # share of lookup sequences that have one to four facts
        self.texts = train
        self.weights = {
            k: w
            for k, w in {"licence": 0.2, "man": 0.35, "python": 0.1, "doc": 0.35}.items()
            if k in train
        }
        # Long files are drawn more often than short ones, and never one huge one all the time.
        self.by_size = {k: np.cumsum([min(len(t), 60000) for t in v]) for k, v in train.items()}
        words = " ".join(t[:3000] for v in train.values() for t in v[:400])
        self.words = sorted(set(re.findall(r"[A-Za-z]{2,10}", words)))

    def passage(self, rng, chars, licence=None):
        """Running text of at least `chars` characters, from a random place in a random file."""
        kinds = list(self.weights)
        p = np.array([self.weights[k] for k in kinds])
        if licence is not None:
            p[kinds.index("licence")] = licence
        out = ""
        while len(out) < chars:
            kind = kinds[rng.choice(len(kinds), p=p / p.sum())]
            sums = self.by_size[kind]
            text = self.texts[kind][np.searchsorted(sums, rng.integers(sums[-1]), side="right")]
            start = int(rng.integers(max(1, len(text) - chars // 2)))
            start = text.find("\n", start) + 1 if rng.random() < 0.7 else 0
            out += (EOT if out and rng.random() < 0.3 else "\n\n" if out else "") + text[
                start : start + chars - len(out)
            ]
        return out

    def noise(self, rng, chars):
        """Sentences of random words."""
        out = []
        while sum(map(len, out)) < chars:
            words = [self.words[i] for i in rng.integers(len(self.words), size=rng.integers(4, 16))]
            out.append(" ".join(words).capitalize() + ".")
        return " ".join(out)

    def encode(self, pieces, length):
        """Tokens and loss weights of [(text, weight)]: a token has its last character's weight."""
        enc = self.tok.encode("".join(t for t, _ in pieces))
        ids = np.array(enc.ids[:length])
        ends = np.array([e for _, e in enc.offsets[:length]])
        starts = np.cumsum([len(t) for t, _ in pieces])
        weights = np.array([w for _, w in pieces], np.float32)
        return ids, weights[np.minimum(np.searchsorted(starts, ends), len(weights) - 1)]

    def text_sequence(self, rng, length):
        ids, w = self.encode([(self.passage(rng, length * 5, licence=0.05), 1.0)], length)
        return (ids, w) if len(ids) == length else self.text_sequence(rng, length)

    def copy_sequence(self, rng, length, ids=None):
        """Random tokens over and over, the period drawn anew for every sequence."""
        period = int(math.exp(rng.uniform(math.log(8), math.log(length * 0.75))))
        few = int(math.exp(rng.uniform(math.log(6), math.log(200))))
        if (
            ids is None and rng.random() < 0.6
        ):  # of few ids: what followed depends on several tokens, as with names
            out = rng.integers(1, self.vocab, size=few)[rng.integers(few, size=period)]
        else:
            out = rng.integers(1, 1 + (ids or self.vocab - 1), size=period)
        out = np.resize(out, length)
        w = np.zeros(length, np.float32)
        w[period + 1 :] = 1.0
        return out, w

    def lookup_facts(self, rng, length):
        """[(kind, name, value)] for a sequence, and how many of the first ones nobody asks for."""
        most = min(48, max(3, length // 42))
        if rng.random() < self.few:
            count = int(rng.integers(1, 5))
        elif rng.random() < 0.4:
            count = most
        else:
            count = int(math.exp(rng.uniform(math.log(3), math.log(most + 1))))
        unasked = int(rng.integers(0, 3))
        names = draw_names(rng, count + unasked, held_out=False)
        if rng.random() < 0.5:  # near misses: many names share a word
            few = [n.split() for n in names[: max(2, len(names) // 3)]]
            names = list(
                {
                    f"{few[rng.integers(len(few))][0]} {few[rng.integers(len(few))][1]}": True
                    for _ in range(3 * len(names))
                }
            )[: len(names)]
            names = [n for n in names if not held_out_name(*n.split())]
        one_kind = KINDS[rng.integers(len(KINDS))] if rng.random() < 0.7 else None
        facts = [(one_kind or KINDS[rng.integers(len(KINDS))], n, draw_code(rng)) for n in names]
        return facts, unasked

    def plant(self, rng, facts, unasked):
        """Facts and questions as [(place, order, pieces)]: places are shares of the text."""
        at_end = rng.random() < 0.4
        plain = rng.random() < 0.6
        events = []
        for i, (kind, name, value) in enumerate(facts):
            place = rng.random() * (1.0 if at_end else 0.95)
            asked = 1.0 if at_end else rng.uniform(place, 1.0)
            fact = MAIN_FACT if plain else FACTS[rng.integers(len(FACTS))]
            question = MAIN_QUESTION if plain else QUESTIONS[rng.integers(len(QUESTIONS))]
            gap = " \n"[int(rng.random() < 0.3)]
            before, after = fact.format(k=kind, n=name, v="\0").split("\0")
            pieces = [(before, TEXT), (value, NOTHING), (after + gap, TEXT)]
            events.append((place, rng.random(), pieces))
            if i < unasked:
                continue
            order = 1 + rng.random()
            asking = [
                (question.format(k=kind, n=name), TEXT),
                (f" {value}.", ANSWER),
                ("\n" if rng.random() < 0.8 else " ", TEXT),
            ]
            events.append((asked, order, asking))
        return sorted(events, key=lambda e: e[:2])

    def lookup_sequence(self, rng, length):
        """Text with facts between its sentences and questions about them further on."""
        facts, unasked = self.lookup_facts(rng, length)
        chars = max(20, int(length * 3.1) - 125 * len(facts))
        random_words = rng.random() < 0.2
        text = self.noise(rng, chars) if random_words else self.passage(rng, chars, licence=0.4)
        text = text[:chars]
        # Where a sentence or a paragraph ends; and some line ends, for text that has no sentences.
        cuts = [m.end() for m in re.finditer(r"[.;:]\s+|\n\n+", text)]
        cuts += [m.end() for m in re.finditer(r"\n", text)][::5]
        cuts = np.array(sorted(set(cuts)) or [0])
        pieces, done = [], 0
        for place, _, more in self.plant(rng, facts, unasked):
            cut = (
                len(text) if place == 1.0 else int(cuts[min(len(cuts) - 1, int(place * len(cuts)))])
            )
            if cut > done:
                pieces.append((text[done:cut], TEXT))
                done = cut
            pieces += more
        pieces.append((text[done:] + EOT + self.passage(rng, length * 3), TEXT))
        ids, w = self.encode(pieces, length)
        if len(ids) < length:
            return self.lookup_sequence(rng, length)
        answers = w == ANSWER
        w[answers] = max(ANSWER, ANSWERS * length / max(1, answers.sum()))
        return ids, w

    def positions(self, rng, w, length, span):
        """Positions; in most sequences they jump at places of plain text, to `span` in all."""
        pos = np.arange(length)
        span = (
            int(math.exp(rng.uniform(math.log(length), math.log(span))))
            if rng.random() < 0.8
            else span
        )
        places = np.flatnonzero(w[1:] <= TEXT) + 1
        if span > length and len(places) and rng.random() < 0.6:
            jumps = int(rng.integers(1, 5))
            for share in rng.dirichlet(np.ones(jumps)):
                pos[places[rng.integers(len(places))] :] += int((span - length) * share)
        return pos

    def batch(self, step, count, length, span, copies, copy_ids=None):
        """Tokens, positions and weights [count, length]; `copies` is the share of copying."""
        rng = np.random.default_rng((self.seed, step))
        rows = []
        for _ in range(count):
            if rng.random() < copies:
                ids, w = self.copy_sequence(rng, length, copy_ids)
            elif rng.random() < 0.8:
                ids, w = self.lookup_sequence(rng, length)
            else:
                ids, w = self.text_sequence(rng, length)
            rows.append((ids, self.positions(rng, w, length, max(span, length)), w))
        ids, pos, w = (np.stack(x) for x in zip(*rows))
        return torch.from_numpy(ids).long(), torch.from_numpy(pos).long(), torch.from_numpy(w)
