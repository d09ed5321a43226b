# SPDX-License-Identifier: Apache-2.0
"""What every skill draws from: a Ctx that keeps training and held-out parts apart, courtesy around a question, made-up words."""
import re

import lexicon as lx
import wordings as wd
from wordings import Wordings, digest, split_wordings

LETTERS_ON, LETTERS_OFF = "\ue000", "\ue001"
HELD_ONE_IN = 8  # share of items and of fact-wording pairs that training never sees


def is_held(kind, value):
    return digest(f"{kind}|{value}") % HELD_ONE_IN == 0


_POOLS = {}


def _pool(templates):
    """((by hand, composed) of training, (by hand, composed) held out)"""
    key = (templates[0], len(templates))
    if key not in _POOLS:
        hand = getattr(templates, "hand", templates)
        _POOLS[key] = [([t for t in side if t in hand], [t for t in side if t not in hand]) for side in split_wordings(templates)]
    return _POOLS[key]


# Words that a training wording may lose, so that no single phrase carries the meaning alone.
_LIGHT = set("what what's which is the of please can could you tell me give a an in do does for i need to say that it this my by with at are there want just now".split())


class Ctx:
    """tokenizer: only made-up names, so that real names stay in pieces and are copied as well as any other."""

    def __init__(self, rng, test=False, unseen=False, think=False, tokenizer=False):
        self.rng, self.test, self.unseen, self.think, self.tokenizer = rng, test, unseen, think, tokenizer

    def jitter(self, template):
        """A training wording with some light words missing, sometimes."""
        words = template.split(" ")
        if self.test or len(words) < 4 or "[" in template or not self.chance(0.15):
            return template
        kept = [w for i, w in enumerate(words) if w.lower() not in _LIGHT or self.rng.random() > 0.4]
        if len(kept) < 2 or 2 * len(kept) < len(words):
            return template
        text = " ".join(kept)
        return text[0].upper() + text[1:] if template[0].isupper() else text

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, seq):
        return seq[int(self.rng.random() * len(seq))]

    def word(self, templates, fact=None, fixed=False, **fields):
        """A filled template.  fact: (kind, key): pairs of fact and template are held out too.  fixed: no word is left out."""
        groups = _pool(templates)[self.unseen]
        if self.unseen:
            template = self.pick(self.part(groups))
        else:
            for _ in range(50):
                template = self.pick(self.part(groups))
                if fact is None or is_held(fact[0], f"{fact[1]}|{template}") == self.test:
                    break
        text = re.sub(r"\[([^\]]*)\]", lambda m: self.pick(m.group(1).split("|")), template)
        text = text if fixed else self.jitter(text)
        for key, value in fields.items():
            text = text.replace("{" + key + "}", str(value))
        return text

    def part(self, groups):
        """The wordings written by hand, or else the composed ones."""
        return groups[0] if groups[0] and (not groups[1] or self.rng.random() < Wordings.HAND) else groups[1]

    def item(self, kind, seq, key=str):
        for _ in range(300):
            value = self.pick(seq)
            if is_held(kind, key(value)) == self.test:
                return value
        raise ValueError(f"no item of {kind}")

    def invented(self, kind):
        """A capitalised word that is no name: syllables, or the beginning of a word and other letters ("The" + "o")."""
        for _ in range(300):
            if self.chance(0.5):
                name = made_up(self.rng, 2, 3)
            else:
                head, tail = self.pick(lx.WORDS), self.pick(lx.WORDS)
                name = head[:self.rng.randint(1, 4)] + tail[self.rng.randint(0, max(0, len(tail) - 3)):][:self.rng.randint(1, 4)]
            if is_held(kind, name) == self.test and len(name) > 2:
                return name.capitalize()
        raise ValueError(kind)

    def name(self):
        """A first name; half are invented, so that names are copied and not recognised."""
        return self.invented("name") if self.tokenizer or self.chance(0.5) else self.item("name", lx.NAMES)

    def surname(self):
        return self.invented("surname") if self.tokenizer or self.chance(0.5) else self.item("surname", lx.SURNAMES)

    def city(self):
        return self.invented("city") if self.tokenizer or self.chance(0.35) else self.item("city", lx.CITIES)


_ONSETS = "b c d f g h j k l m n p r s t v w z br cr dr fl gr pl st tr sh ch".split()
_VOWELS = "a e i o u a e i o ai ea oo".split()
_CODAS = " , , , ,n,r,l,s,t,m,k,nd,st".replace(" ", "").split(",")


def made_up(rng, low, high):
    n = rng.randint(low, high)
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if i == n - 1 else "") for i in range(n))


def letters(text):
    return LETTERS_ON + text + LETTERS_OFF


def plain(text):
    return text.replace(LETTERS_ON, "").replace(LETTERS_OFF, "")


_BEFORE = Wordings(["Hi! ", "Hello! ", "Hello, ", "Hey, ", "Quick question: ", "Tell me: ", "Can you help me? ", "One more thing: ", "Okay, ",
           "So, ", "I have a question. ", "Now tell me: ", "Good morning. ", "I wonder: ", "Help me with this: ", "Next: ", "Well, ",
           "I need your help. ", "A small question: ", "Excuse me, ", "Let me ask you this. ", "Hey there! ", "Right. ", "Here is one: ",
           "Sorry to bother you. ", "Could you help? ", "Oh, and ", "Good evening! ", "By the way, ", "My next question: "], wd.BEFORE)
_AFTER = Wordings([" Thanks!", " Thank you.", " Please.", " Thanks in advance.", " I would like to know.", " Can you tell me?", " Thank you very much!",
          " I am curious.", " Please help me.", " I forgot.", " Just answer that.", " Many thanks.", " I need to know.", " Be quick, please."], wd.AFTER)


REMARK = Wordings(["{n} likes {f}.", "It is {d}.", "I am in {c}.", "We are in the {j} class.", "My friend {n} is here.", "I have {k} {i}.", "The {e} is over.", "{w}!", "I like {f}.", "{n} says hello.",
                   "The {w} is nice.", "I am back.", "{w}, {w2}, {w}.", "This is for school.", "Now something else.", "I saw a {w} on {d}.", "Let us go on.", "The {j} wants to know.", "You know {n}."], wd.REMARK)
_STARTERS = set("What What's Which Who Whose How Tell Give Name Say Do Can Could Would Please Is Are Find Show Write Spell Count Add Calculate Compute Subtract Multiply Reverse Turn Put Make Take In If Let".split())


def remark(ctx):
    """A sentence that has nothing to do with the question."""
    return ctx.word(REMARK, fixed=True, n=ctx.name(), f=ctx.pick(lx.FOODS), d=ctx.pick(lx.DAYS), c=ctx.city(), j=ctx.pick(lx.JOBS), k=ctx.rng.randint(2, 50), i=ctx.pick(lx.ITEMS), e=ctx.pick(lx.EVENTS),
                    w=ctx.pick(lx.WORDS), w2=ctx.pick(lx.WORDS))


def ask(ctx, text):
    """Random courtesy around a question, a lower-case beginning, a missing full stop."""
    if ctx.chance(0.08) and text[:1].isalpha() and not text.startswith("I "):
        text = text[0].lower() + text[1:]
    if ctx.chance(0.1) and text[-1] in ".?":
        text = text[:-1]
    if ctx.chance(0.17):
        before = ctx.word(_BEFORE, fixed=True).strip()
        if before[-1] == "," and text.split(" ", 1)[0] in _STARTERS:
            text = text[0].lower() + text[1:]
        text = before + " " + text
    elif ctx.chance(0.06):
        text = remark(ctx) + " " + text
    if ctx.chance(0.1) and text[-1] in ".?!":
        text += " " + ctx.word(_AFTER, fixed=True).strip()
    return text


def qa(user, answer, think, check, short=None, messages=None):
    """messages: turns before the question.  check: (kind, value), see score.py."""
    return dict(user=user, answer=answer, think=think, check=check, short=short, before=messages or [])
