# SPDX-License-Identifier: Apache-2.0
"""The text skills: each function makes one question with its answer, its reasoning and how to check it.

A skill takes a Ctx, which decides by hash what belongs to training and what is held out:
  ctx.word(...)  picks a wording (a whole template); held-out wordings are used only when ctx.unseen
  ctx.item(...)  picks an item (name, word, number pair); held-out items are used only when ctx.test
Templates hold alternatives in brackets, "[What is|What's] {a} + {b}?", and fields in braces.
Text between LETTERS_ON and LETTERS_OFF is encoded one character a token when it is an answer to be learned.
"""
import json
import re

import lexicon as lx
import wordings as wd
from context import LETTERS_OFF, LETTERS_ON, Ctx, ask, is_held, letters, made_up, plain, qa, remark  # noqa: F401
from wordings import Wordings, split_wordings  # noqa: F401

# ---------------------------------------------------------------- arithmetic

SUM = Wordings(["[What is|What's] {a} + {b}?", "[What is|What's] {a} plus {b}?", "{a} + {b}", "{a} + {b} = ?", "{a} plus {b}?", "{a}+{b}", "{a}+{b}=",
       "[Please |]add {a} and {b}.", "Add {a} to {b}.", "[Calculate|Compute|Work out] {a} + {b}.", "[Calculate|Compute] {a} plus {b}.",
       "[What is|Tell me|Give me] the sum of {a} and {b}?", "How much is {a} + {b}?", "How much is {a} plus {b}?",
       "How much do {a} and {b} make?", "What do you get if you add {a} and {b}?", "What do {a} and {b} add up to?", "Sum up {a} and {b}.",
       "[Can|Could] you add {a} and {b}[ for me|]?", "Solve {a} + {b}.", "If I add {b} to {a}, what do I get?", "What number is {a} + {b}?",
       "Find the sum: {a} + {b}.", "I have {a} and get {b} more. How many do I have?", "What does {a} + {b} equal?",
       "Put {a} and {b} together. What is the total?", "[Tell me|Say] what {a} plus {b} is.", "The sum of {a} and {b} is what?",
       "What is the total of {a} and {b}?", "I need {a} plus {b}.", "Please give me {a} plus {b}.", "What is {a} and {b} together?",
       "Please add {a} and {b} for me.", "What is the result of {a} + {b}?", "Count {b} on from {a}.", "Increase {a} by {b}.",
       "Give the sum of {a} and {b}.", "{a} and {b}: what is the sum?", "What is the sum if I add {a} and {b}?", "{a} plus {b} is", "{a} + {b} is", "Total of {a} and {b}?", "Add up {a} and {b}.",
       "Sum: {a} and {b}", "Add the numbers {a} and {b}.", "Sum up the numbers {a} and {b}.", "Please compute the sum {a} + {b}.", "{a} more than {b} is what?", "What is {b} more than {a}?", "Count {a} and {b} together."], wd.SUM)
DIFF = Wordings(["[What is|What's] {a} - {b}?", "[What is|What's] {a} minus {b}?", "{a} - {b}", "{a} - {b} = ?", "{a} minus {b}?", "{a}-{b}", "{a}-{b}=",
        "[Please |]subtract {b} from {a}.", "Take {b} away from {a}.", "[Calculate|Compute|Work out] {a} - {b}.", "Compute {a} minus {b}.",
        "[What is|Tell me] the difference of {a} and {b}?", "How much is {a} - {b}?", "How much is {a} minus {b}?",
        "How much is left if you take {b} from {a}?", "What do you get if you subtract {b} from {a}?", "[Can|Could] you subtract {b} from {a}[ for me|]?",
        "Solve {a} - {b}.", "If I take {b} from {a}, what is left?", "What number is {a} - {b}?", "Find the difference: {a} - {b}.",
        "I have {a} and give away {b}. How many are left?", "What does {a} - {b} equal?", "[Tell me|Say] what {a} minus {b} is.",
        "I need {a} minus {b}.", "What is {a} less {b}?", "Reduce {a} by {b}.", "What remains of {a} after taking {b}?",
        "What is the result of {a} - {b}?", "Please give me {a} minus {b}.", "Count {b} back from {a}.",
        "Give the difference of {a} and {b}.", "{a} minus {b} is", "{a} - {b} is", "Difference of {a} and {b}?", "What is the difference between {a} and {b}?", "Start at {a} and take away {b}.",
        "Take {b} from {a}.", "Subtract: {a} - {b}", "Please compute the difference {a} - {b}.", "What is {b} less than {a}?", "From {a} take {b}.", "Count back {b} from {a}.", "Start at {a} and count back {b}.", "{a} take away {b}?"], wd.DIFF)
PROD = Wordings(["[What is|What's] {a} * {b}?", "[What is|What's] {a} times {b}?", "{a} * {b}", "{a} x {b}", "{a} x {b} = ?", "{a} times {b}?", "{a}*{b}",
        "[Please |]multiply {a} by {b}.", "Multiply {a} and {b}.", "[Calculate|Compute|Work out] {a} x {b}.", "[Calculate|Compute] {a} times {b}.",
        "[What is|Tell me] the product of {a} and {b}?", "How much is {a} x {b}?", "How much is {a} times {b}?",
        "What do you get if you multiply {a} by {b}?", "[Can|Could] you multiply {a} and {b}[ for me|]?", "Solve {a} x {b}.",
        "What number is {a} x {b}?", "Find the product: {a} * {b}.", "What does {a} * {b} equal?", "[Tell me|Say] what {a} times {b} is.",
        "There are {a} boxes with {b} things each. How many things are there?", "I need {a} times {b}.", "{a} multiplied by {b}?",
        "What is {a} multiplied by {b}?", "What is the result of {a} * {b}?", "Please give me {a} times {b}.", "What are {a} groups of {b}?",
        "If one costs {b}, what do {a} cost?", "What is {a} x {b}?",
        "Give the product of {a} and {b}.", "{a} times {b} is", "{a} x {b} is", "Product of {a} and {b}?", "Multiply the numbers {a} and {b}.", "Please compute the product {a} * {b}.",
        "{a} bags hold {b} apples each. How many apples are there?", "There are {a} rows with {b} chairs each. How many chairs are there?", "{a} cars have {b} seats each. How many seats in all?",
        "I buy {a} packs with {b} pens each. How many pens do I have?", "Each of {a} children has {b} coins. How many coins are there?", "{a} boxes with {b} eggs each: how many eggs?",
        "If each of {a} tables has {b} legs, how many legs are there?", "{a} times {b} equals what?", "{a} multiplied by {b} is", "Multiply {a} with {b}.", "Times table: {a} x {b}", "What is the product if I multiply {a} and {b}?"], wd.PROD)


def _pair(ctx, kind, high):
    for _ in range(1000):
        a, b = ctx.rng.randint(0, high), ctx.rng.randint(0, high)
        if is_held(kind, f"{min(a, b)},{max(a, b)}") == ctx.test:
            return a, b
    raise ValueError(kind)


def _column_sum(a, b):
    """Reasoning digit by digit."""
    out, carry, place = [], 0, ["ones", "tens", "hundreds"]
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10 ** i % 10, b // 10 ** i % 10
        total = x + y + carry
        out.append(f"{place[i]}: {x} + {y}" + (" + 1" if carry else "") + f" = {total}")
        carry = total // 10
    return f"{a} + {b}. " + ", ".join(out) + f". So {a + b}."


_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n):
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10] + ("-" + _ONES[n % 10] if n % 10 else "")
    return _ONES[n // 100] + " hundred" + (" " + in_words(n % 100) if n % 100 else "")


def _numbers(ctx, templates, a, b, **more):
    return ctx.word(templates, a=a, b=b, x=in_words(a), y=in_words(b), **more)


def add(ctx):
    a, b = _pair(ctx, "sum", 999 if ctx.chance(0.08) and not ctx.test else 99)
    if ctx.chance(0.15) and not ctx.test:
        a, b = ctx.pick([(a * 10 % 1000, b % 10), (a % 20, b % 20), (100, b), (a, 100)])
        if is_held("sum", f"{min(a, b)},{max(a, b)}"):
            a, b = 100, 5
    return qa(ask(ctx, _numbers(ctx, SUM, a, b)), f"{a} + {b} = {a + b}.", _column_sum(a, b), ("number", a + b), str(a + b))


def subtract(ctx):
    a, b = _pair(ctx, "diff", 99)
    if a < b and not (ctx.chance(0.06) and not ctx.test):
        a, b = b, a
    if a >= b:
        back = f" Check: {a - b} + {b} = {a}."
        tens = f"{a} - {b}. {a} - {b // 10 * 10} = {a - b // 10 * 10}, {a - b // 10 * 10} - {b % 10} = {a - b}." + back
        if a - b // 10 * 10 < 0:
            tens = f"{a} - {b} = {a - b}." + back
    else:
        tens = f"{b} is more than {a}, so the result is negative. {b} - {a} = {b - a}. So {a - b}."
    return qa(ask(ctx, _numbers(ctx, DIFF, a, b)), f"{a} - {b} = {a - b}.", tens, ("number", a - b), str(a - b))


PROD_STORY = Wordings(["There are {a} {u} with {b} {i} each. How many {i} are there?", "If one box has {b} {i}, how many {i} do {a} boxes have?"], wd.PROD_STORY)
STEPS = ["Count in steps of {a} to {b}.", "Count by {a} up to {b}.", "Count to {b} in steps of {a}.", "Say the multiples of {a} up to {b}.", "List the multiples of {a} to {b}.", "Start with {a} and count on by {a} to {b}.",
         "The multiples of {a} up to {b}, please.", "Which multiples of {a} are there up to {b}?", "Write the numbers from {a} to {b} in steps of {a}.", "Give me the row of {a} up to {b}.", "Step by {a} to {b}.", "Count: {a} and so on to {b}."]


def _factors(ctx):
    """Two factors: mostly of the table to 12 x 12, in training also times 10 and 11, to 20 x 20, one digit times two.  Of the
    pairs a < b one in eight is held out; b x a stays in training."""
    r = ctx.rng
    for _ in range(1000):
        kind = 0 if ctx.test else r.random()
        if kind < 0.66:
            a, b = r.randint(1 if ctx.test else 0, 12), r.randint(1, 12)
        elif kind < 0.8:
            a, b = r.randint(1, 99), 10 if r.random() < 0.7 else 11
        elif kind < 0.92:
            a, b = r.randint(1, 20), r.randint(1, 20)
        else:
            a, b = r.randint(2, 9), r.randint(10, 49)
        if kind >= 0.66 and r.random() < 0.5:
            a, b = b, a
        if (a < b and is_held("prod", f"{a},{b}")) == ctx.test:
            return a, b
    raise ValueError("prod")


def multiply(ctx):
    if ctx.chance(0.05) and not ctx.test:
        a, n = ctx.rng.randint(2, 12), ctx.rng.randint(3, 12)
        row = ", ".join(str(a * i) for i in range(1, n + 1))
        return qa(ask(ctx, ctx.word(STEPS, a=a, b=a * n)), row + ".", f"Each number is {a} more.", ("contains", [row]), row)
    a, b = _factors(ctx)
    if a < 2 or b < 2:
        think = f"{a} times {b} is {a * b}."
    else:
        c, d = max(a, b), min(a, b)
        step = f"{c - 1} x {d} = {(c - 1) * d}, plus {d}" if c > d else f"{c} x {d - 1} = {c * (d - 1)}, plus {c}"  # never a x b with a < b, which may be held out
        think = (f"{a} x {b} = {c} x {d}. " if a < b else "") + (f"Ten times {d} is {c * d}." if c == 10 else f"{c} x {d}: {step} is {c * d}.")
    if min(a, b) > 1 and ctx.chance(0.25):
        text = ctx.word(PROD_STORY, a=a, b=b, u=ctx.pick(wd.CONTAINERS), i=ctx.pick(lx.ITEMS), n=ctx.name())
    else:
        text = _numbers(ctx, PROD, a, b)
    return qa(ask(ctx, text), f"{a} x {b} = {a * b}.", think, ("number", a * b), str(a * b))


STORY_ADD = Wordings(["{n} has {a} {x} and gets {b} more. How many {x} does {n} have[ now|]?", "{n} buys {a} {x} on {d} and {b} on {e}. How many {x} is that?",
             "There are {a} {x} in one box and {b} in another. How many {x} are there?", "{n} finds {a} {x}. Then {n} finds {b} more. How many in all?",
             "A shop has {a} {x}. {b} more arrive. How many {x} are in the shop?", "{n} has {a} {x}. {m} has {b} {x}. How many do they have together?",
             "{n} picks {a} {x} and {m} picks {b}. How many {x} in total?", "{a} {x} lie on a table. {n} adds {b}. How many {x} lie there now?",
             "I own {a} {x} and you own {b}. How many {x} do we own?", "{n} counted {a} {x} and then {b} more. What is the total?",
             "{m} gave {n} {b} {x}. {n} already had {a}. How many {x} now?", "On {d} {n} sold {a} {x}, on {e} {b}. How many {x} were sold?",
             "{n} has {a} {x}. {n} [gets|finds|buys|wins|makes|collects] {b} more. How many {x} does {n} have?", "I have {a} {x}. I [get|find|buy|win|make|collect] {b} more. How many do I have?", "I had {a} {x}. I [got|found|bought|won|made|collected] {b}. How many {x} do I have?",
             "{n} had {a} {x} and [got|found|bought|won|made|collected] {b}. How many are there now?", "{n} [buys|finds|collects] {a} {x}, then {b} more. How many {x} is that?", "With {a} {x} here and {b} there, how many {x} do we have?", "{m} [gives|brings|sends] {n} {b} {x}. Before, {n} had {a}. How many now?",
             "We [had|saw|counted] {a} {x} and then {b} more. How many together?", "Of {x}, {n} has {a} and {m} has {b}. How many together?", "First {n} [got|made|bought] {a} {x}, later {b}. How many in total?"], wd.STORY_ADD)
STORY_SUB = Wordings(["{n} has {a} {x} and gives away {b}. How many {x} are left?", "{n} had {a} {x} and lost {b}. How many remain?",
             "There are {a} {x} in a box. {n} takes {b}. How many {x} are still there?", "A shop has {a} {x} and sells {b}. How many {x} are left?",
             "{n} has {a} {x}. {m} takes {b} of them. How many does {n} still have?", "From {a} {x}, {b} broke. How many {x} are whole?",
             "{n} bought {a} {x} and used {b}. How many are left over?", "{a} {x} lie on a table. {n} removes {b}. How many {x} stay?",
             "{n} needs {a} {x} and has {b}. How many are missing?", "I had {a} {x}. I sold {b}. How many {x} do I have?",
             "{n} baked {a} {x} and {m} ate {b}. How many are left?", "Of {a} {x}, {n} gave {b} to {m}. How many did {n} keep?",
             "{n} has {a} {x}. {n} [gives away|loses|sells|eats|breaks|uses] {b}. How many {x} does {n} have?", "I have {a} {x}. I [give away|lose|sell|eat|break|use] {b}. How many do I have?", "I had {a} {x}. I [gave away|lost|ate|broke|used] {b}. How many {x} do I have?",
             "{n} had {a} {x} and [gave away|lost|sold|ate|broke|used] {b}. How many are there now?", "{n} [had|bought|made] {a} {x} but [lost|sold|broke] {b}. How many {x} are left?", "We had {a} {x} and [sold|used|lost] {b}. How many did we keep?", "{m} [takes|steals|buys] {b} of the {a} {x} of {n}. How many does {n} keep?",
             "Of {a} {x}, {b} were [lost|sold|broken|eaten]. How many are left?", "From {a} {x} {n} [sold|gave away|ate] {b}. How many did {n} keep?", "{n} [sold|lost|used] {b} of {a} {x}. How many remain?"], wd.STORY_SUB)


def story(ctx):
    n, m, x = ctx.name(), ctx.name(), ctx.pick(lx.ITEMS)
    d, e = ctx.rng.sample(lx.DAYS, 2)
    if ctx.chance(0.5):
        a, b = _pair(ctx, "sum", 50)
        text, c, op = ctx.word(STORY_ADD, n=n, m=m, x=x, a=a, b=b, d=d, e=e), a + b, "+"
    else:
        a, b = sorted(_pair(ctx, "diff", 50), reverse=True)
        text, c, op = ctx.word(STORY_SUB, n=n, m=m, x=x, a=a, b=b, d=d, e=e), a - b, "-"
    return qa(ask(ctx, text), f"{a} {op} {b} = {c}, so the answer is {c}.", f"{a} {op} {b} = {c}.", ("number", c), str(c))


COMPARE = ["Which is [bigger|larger|greater], {a} or {b}?", "Which number is [bigger|larger], {a} or {b}?", "What is more, {a} or {b}?",
           "[Tell me|Say] which is larger: {a} or {b}.", "Is {a} [bigger|larger|more] than {b}?", "Is {a} greater than {b}?",
           "[What is|Give me] the [maximum|largest] of {a} and {b}?", "Which is [smaller|less], {a} or {b}?", "What is less, {a} or {b}?",
           "Which number is smaller, {a} or {b}?", "Is {a} [smaller|less] than {b}?", "[What is|Give me] the [minimum|smallest] of {a} and {b}?",
           "Is {a} less than {b}?", "Is {a} more than {b}?", "Which is more, {a} or {b}?", "Which is larger: {a} or {b}?", "Which one is bigger, {a} or {b}?", "Which one is smaller, {a} or {b}?", "What is bigger, {a} or {b}?", "What is smaller, {a} or {b}?", "{a} or {b}, which is larger?", "{a} or {b}, which is smaller?", "Tell me the larger of {a} and {b}.", "Tell me the smaller of {a} and {b}."]


def compare(ctx):
    a, b = _pair(ctx, "compare", 99)
    while a == b:
        a, b = _pair(ctx, "compare", 99)
    text = ctx.word(COMPARE, a=a, b=b)
    less = any(w in text for w in ("smaller", "less", "minimum", "smallest"))
    if text.startswith("Is"):
        yes = (a < b) if less else (a > b)
        relation = "less" if a < b else "greater"
        return qa(ask(ctx, text), ("Yes" if yes else "No") + f", {a} is {relation} than {b}.", f"{a} is {relation} than {b}.",
                  ("contains", ["yes" if yes else "no"]))
    c = min(a, b) if less else max(a, b)
    return qa(ask(ctx, text), f"{c} is {'smaller' if less else 'larger'}.", f"{min(a, b)} is less than {max(a, b)}.", ("number", c), str(c))


# ---------------------------------------------------------------- facts

CAPITAL = Wordings(["[What is|What's] the capital of {c}?", "[What is|What's] the capital city of {c}?", "[Name|Tell me|Give me] the capital of {c}.", "Capital of {c}?",
           "Which city is the capital of {c}?", "What city is the capital of {c}?", "Do you know the capital of {c}?",
           "Can you tell me the capital of {c}?", "{c}: what is the capital?", "What is {c}'s capital?", "{c}'s capital is which city?",
           "I need the capital of {c}.", "Which city is {c}'s capital?", "The capital of {c} is", "What is the capital of the country {c}?",
           "Where is the government of {c}?", "Please name the capital city of {c}.", "What do you call the capital of {c}?",
           "Tell me what the capital of {c} is.", "I forgot the capital of {c}. What is it?", "What is the name of the capital of {c}?",
           "[Could|Can] you name the capital of {c}?", "In geography class: what is the capital of {c}?", "Say the capital of {c}.",
           "I am travelling to {c}. What is its capital?", "My friend lives in {c}. What is the capital there?",
           "Capital city of {c}?", "capital {c}", "{c}, capital?", "{c} has which capital?", "What city is {c}'s capital?", "Give me {c}'s capital.", "Name {c}'s capital city.", "I live in {c}. Which city is the capital?",
           "My friend is from {c}. Name the capital.", "Which capital does {c} have?", "We fly to {c}. What is the capital there?", "What is the main city, the capital, of {c}?"], wd.CAPITAL)
COUNTRY = Wordings(["{c} is the capital of which country?", "Which country has the capital {c}?", "{c} is the capital of what country?",
           "What country is {c} the capital of?", "Of which country is {c} the capital?", "Name the country whose capital is {c}.",
           "Which country's capital is {c}?", "What country has {c} as its capital?", "{c} is the capital of", "In which country is the capital {c}?",
           "Tell me which country {c} is the capital of.", "{c} is a capital. Of which country?", "Which nation has {c} as capital?",
           "To which country does the capital {c} belong?", "Whose capital is {c}?", "The capital {c} belongs to which country?",
           "I am in {c}, the capital of which country?", "What is the country with the capital {c}?",
           "Country with the capital {c}?", "{c} is the capital city of which country?", "The city {c} is the capital of which country?", "Name the country that has the capital {c}.", "I visit the capital {c}. Which country is that?",
           "The capital is {c}. What is the country?", "For which country is {c} the capital?", "Say which country has {c} as capital."], wd.COUNTRY)
OPPOSITE = Wordings(["[What is|What's] the opposite of {w}?", "[What is|What's] the opposite of '{w}'?", "[Name|Tell me|Give me] the opposite of {w}.", "Opposite of {w}?",
            "What word is the opposite of {w}?", "Which word means the opposite of {w}?", "What is an antonym of {w}?", "Give an antonym for {w}.",
            "{w}: what is the opposite?", "What is the contrary of {w}?", "If it is not {w}, what is it? Give the opposite.",
            "The opposite of {w} is", "Do you know the opposite of {w}?", "Can you tell me the opposite of {w}?", "What's the reverse of {w} in meaning?",
            "Say the opposite of {w}.", "I need a word that means the opposite of {w}.", "Please find the opposite of {w}.",
            "Which word is opposite to {w}?", "What do we call the opposite of {w}?",
            "{w} and its opposite?", "The opposite of the word {w}?", "Find an opposite for {w}.", "{w} has which opposite?", "Name an antonym of {w}.", "Which word is an antonym of {w}?", "What is the opposite word for {w}?", "opposite: {w}",
            "Not {w} but the opposite: which word?", "Give me a word opposite to {w}."], wd.OPPOSITE)
SYMBOL = ["[What is|What's] the [chemical |]symbol [of|for] {e}?", "Which symbol does {e} have?", "Chemical symbol for {e}?", "[Tell me|Give me|Name] the symbol of {e}.",
          "What symbol stands for {e}?", "How is {e} written in the periodic table?", "What letters stand for {e} in chemistry?",
          "In chemistry, what is the symbol for {e}?", "Which symbol is used for the element {e}?", "The symbol for {e} is",
          "Do you know the chemical symbol of {e}?", "What is {e} in the periodic table?", "How do chemists write {e}?", "What is the sign for {e}?",
          "What is {e}'s symbol?", "{e}: what is the symbol?", "Symbol of {e}?", "symbol for {e}", "Say the chemical symbol for {e}.", "Which letters stand for {e}?", "Which chemical symbol stands for {e}?", "What is the chemical symbol for the element {e}?", "Which symbol does the element {e} have?", "I need the symbol of {e}."]
ELEMENT = ["Which element has the symbol {s}?", "What element is {s}?", "What does the symbol {s} stand for in chemistry?",
           "[Name|Tell me] the element with the symbol {s}.", "In the periodic table, what is {s}?", "The symbol {s} means which element?",
           "What chemical element is written {s}?", "{s} is the symbol of which element?", "Which chemical element is {s}?",
           "What is the name of the element {s}?", "Chemistry: what is {s}?", "Do you know which element {s} is?",
           "Which element is {s}?", "Which element has the chemical symbol {s}?", "What is the element with the symbol {s}?", "The symbol {s} stands for which element?", "{s} stands for which element?", "What element does {s} stand for?", "Element with the symbol {s}?", "element {s}", "Name the element {s}.", "Which element is written {s}?"]
COLOR = ["What color is {x}?", "What is the color of {x}?", "Which color does {x} have?", "[Tell me|Name] the color of {x}.", "What color does {x} have?",
         "Color of {x}?", "What colour is {x}?", "Which color is {x}?", "Do you know what color {x} is?", "What is the usual color of {x}?",
         "In what color would you paint {x}?", "If you draw {x}, which color do you use?", "Can you tell me the color of {x}?", "Say the color of {x}.",
         "{x} has which color?", "{x} is which color?", "What is the color of {x}, usually?", "Do you know the color of {x}?", "Give me the color of {x}.", "Please tell me what color {x} is.", "{x}: what color is it?", "color {x}", "What color would you paint {x}?", "Which color do you use to draw {x}?"]
MIX = ["What color do you get when you mix {a} and {b}?", "What do {a} and {b} make?", "Mix {a} and {b}. What color is that?",
       "{a} and {b} give which color?", "Which color comes from {a} and {b}?", "If I mix {a} with {b}, what color do I get?",
       "What happens when {a} paint meets {b} paint?", "What color is a mix of {a} and {b}?",
       "If you mix {a} and {b}, which color do you get?", "What color is {a} mixed with {b}?", "I mix {a} and {b} paint. Which color is it?", "What color do {a} and {b} make together?", "{a} plus {b}: which color?", "Mixing {a} and {b} makes which color?"]
DAY_AFTER = Wordings(["[What|Which] day comes after {d}?", "What day follows {d}?", "Which day is after {d}?", "If today is {d}, what day is tomorrow?",
             "Today is {d}. What day is tomorrow?", "What is the day after {d}?", "Name the day after {d}.", "What day is it one day after {d}?",
             "The day after {d} is", "{d} is over. Which day is next?", "What comes after {d} in the week?", "Tell me the day that follows {d}.",
             "{d} is today. What day is tomorrow?", "Tomorrow is which day, if today is {d}?", "Today is {d}. Which day comes next?", "Today is {d}. And tomorrow?", "What day is next after {d}?", "After {d} comes which day?", "If it is {d} today, what is tomorrow?", "Next day after {d}?"], wd.DAY_AFTER)
DAY_BEFORE = Wordings(["[What|Which] day comes before {d}?", "Which day is before {d}?", "If today is {d}, what day was yesterday?",
              "Today is {d}. What day was yesterday?", "What is the day before {d}?", "Name the day before {d}.", "What day was it one day before {d}?",
              "The day before {d} is", "What comes before {d} in the week?", "Tell me the day that comes right before {d}.",
              "{d} is today. What day was yesterday?", "Yesterday was which day, if today is {d}?", "Today is {d}. And yesterday?", "Before {d} comes which day?", "Which day comes right before {d}?", "If it is {d} today, what was yesterday?", "Day before {d}?"], wd.DAY_BEFORE)
MONTH_AFTER = Wordings(["[What|Which] month comes after {d}?", "What month follows {d}?", "Which month is after {d}?", "It is {d}. What month is next?",
               "What is the month after {d}?", "Name the month after {d}.", "The month after {d} is", "What comes after {d} in the year?",
               "Tell me the month that follows {d}.", "When {d} ends, which month begins?",
               "It is {d}. Which month comes next?", "Now it is {d}. What month comes after?", "After {d} comes which month?", "Next month after {d}?", "This month is {d}. What is the next month?", "Which month follows on {d}?", "What month is next after {d}?"], wd.MONTH_AFTER)
MONTH_BEFORE = Wordings(["[What|Which] month comes before {d}?", "Which month is before {d}?", "It is {d}. What month was it before?",
                "What is the month before {d}?", "Name the month before {d}.", "The month before {d} is", "What comes before {d} in the year?",
                "Tell me the month that comes right before {d}.",
                "Before {d} comes which month?", "Now it is {d}. What month came before?", "This month is {d}. What was the last month?", "It is {d}. Which month was before it?", "Month before {d}?", "Which month comes right before {d}?", "What month was before {d}?"], wd.MONTH_BEFORE)
MONTH_LENGTH = Wordings(["How many days does {d} have?", "How many days are in {d}?", "How long is {d} in days?", "What is the number of days in {d}?",
                "[Tell me|Say] how many days {d} has.", "Days in {d}?", "Do you know how many days {d} has?", "Count the days of {d}.",
                "How many days has {d}?", "How many days does the month {d} have?", "{d} has how many days?", "Number of days in {d}?", "Tell me the number of days in {d}.", "How many days are there in {d}?", "days in {d}", "The month {d} has how many days?"], wd.MONTH_LENGTH)
MONTH_NUMBER = Wordings(["Which month is number {k}?", "What is month number {k}?", "Name month {k} of the year.", "What is the {k}th month?",
                "Which is the {k}th month of the year?", "Month {k} is called what?", "What do we call month number {k}?", "Tell me the name of month {k}.",
                "What month is number {k}?", "Month number {k}?", "Tell me month number {k}.", "Name the month with the number {k}.", "Which month has the number {k}?", "The month with number {k} is", "What is the month number {k} called?"], wd.MONTH_NUMBER)
LEGS = ["How many legs does a {x} have?", "How many legs has a {x}?", "[What is|Tell me] the number of legs of a {x}?", "Legs of a {x}?",
        "A {x} has how many legs?", "Count the legs of a {x}.", "On how many legs does a {x} walk?", "How many legs are on a {x}?",
        "Say how many legs a {x} has.", "Do you know how many legs a {x} has?",
        "How many legs are there on a {x}?", "How many legs does the {x} have?", "Number of legs of a {x}?", "The {x} walks on how many legs?", "How many legs do you count on a {x}?", "What number of legs has a {x}?"]
SOUND = ["What sound does a {x} make?", "What does a {x} do to make noise?", "Which sound does a {x} make?", "How does a {x} sound?",
         "What noise does a {x} make?", "Tell me the sound of a {x}.", "A {x} makes which sound?", "What do you hear from a {x}?",
         "What is the sound of a {x}?", "What sound do you hear from a {x}?", "Tell me what sound a {x} makes.", "Sound of a {x}?", "Which noise does a {x} make?", "What noise comes from a {x}?", "A {x}: what sound does it make?"]
YOUNG = ["What is a baby {x} called?", "What do you call a young {x}?", "What is the young of a {x} called?", "Name the baby of a {x}.",
         "How do you call the child of a {x}?", "A baby {x} is called what?", "What is the name for a young {x}?", "What's the word for a baby {x}?",
         "How is a baby {x} called?", "What is a young {x} called?", "What do you call a baby {x}?", "What do you call the baby of a {x}?", "Name for a baby {x}?", "Tell me what a baby {x} is called.", "The baby of a {x} is called what?", "Which word is used for a young {x}?"]
QUANTITY = Wordings(["How many {x}?", "How many {x} are there?", "[Tell me|Say] how many {x} there are.", "What is the number of {x}?", "Number of {x}?",
            "Do you know the number of {x}?", "Can you tell me how many {x} there are?", "I need the number of {x}.", "Count the {x}.",
            "Give me the number of {x}.", "What number of {x} is right?", "The number of {x} is",
            "{x}: how many?", "How many {x} do you know?", "Tell me the number of {x}.", "Do you know how many {x} there are?", "Count: how many {x}?", "There are how many {x}?", "Please tell me how many {x} there are.", "Say the number of {x}."], wd.QUANTITY)
KIND = ["What is {w}?", "What kind of thing is {w}?", "Is {w} a fruit, an animal or something else?", "What sort of thing is {w}?",
        "{w}: what is it?", "Tell me what {w} is.", "What type of thing is {w}?", "What does the word {w} mean?", "Explain {w} in one sentence.",
        "Do you know what {w} is?", "Which group does {w} belong to?", "In one sentence, what is {w}?",
        "Tell me what kind of thing {w} is.", "Tell me what sort of thing {w} is.", "What kind of thing would {w} be?", "Do you know what kind of thing {w} is?", "Explain what {w} is.", "Say what {w} is.", "To which kind of things does {w} belong?", "Please tell me what {w} is.", "{w} is what?", "Can you explain what {w} is?"]


def _an(word):
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


def capital(ctx):
    country, city = ctx.pick(lx.CAPITALS)
    label = "the " + country if country in lx.NEEDS_THE else country
    if ctx.chance(0.5):
        return qa(ask(ctx, ctx.word(CAPITAL, ("capital", country), c=label)), f"The capital of {label} is {city}.",
                  f"The user asks for the capital of {label}. It is {city}.", ("contains", [city]), city)
    return qa(ask(ctx, ctx.word(COUNTRY, ("country", country), c=city)), f"{city} is the capital of {label}.",
              f"The user asks which country has the capital {city}. It is {label}.", ("contains", [country]), country)


def opposite(ctx):
    a, b = ctx.pick(lx.OPPOSITES)
    if ctx.chance(0.4):
        a, b = b, a
    return qa(ask(ctx, ctx.word(OPPOSITE, ("opposite", a), w=a)), f"The opposite of {a} is {b}.", f"{a.capitalize()} and {b} are opposites.",
              ("contains", [b]), b)


def element(ctx):
    name, symbol = ctx.pick(lx.ELEMENTS)
    if ctx.chance(0.5):
        return qa(ask(ctx, ctx.word(SYMBOL, ("symbol", name), e=name)), f"The symbol of {name} is {symbol}.",
                  f"The element {name} has the symbol {symbol}.", ("word", symbol), symbol)
    return qa(ask(ctx, ctx.word(ELEMENT, ("element", name), s=symbol)), f"{symbol} is the symbol of {name}.",
              f"The symbol {symbol} stands for {name}.", ("contains", [name]), name)


def color(ctx):
    if ctx.chance(0.2):
        a, b, c = ctx.pick(lx.COLOR_MIX)
        if ctx.chance(0.5):
            a, b = b, a
        return qa(ask(ctx, ctx.word(MIX, ("mix", a + b), a=a, b=b)), f"{a.capitalize()} and {b} make {c}.", f"Mixing {a} and {b} gives {c}.",
                  ("contains", [c]), c)
    x, c = ctx.pick(lx.COLORS_OF)
    return qa(ask(ctx, ctx.word(COLOR, ("color", x), x=x)), f"{x.capitalize()} is {c}.", f"I think of {x}. It is {c}.", ("contains", [c]), c)


def calendar(ctx):
    kind = ctx.pick(["day+", "day-", "month+", "month-", "length", "number", "relative"])
    if kind in ("day+", "day-"):
        i, step = ctx.rng.randrange(7), 1 if kind == "day+" else -1
        d, e = lx.DAYS[i], lx.DAYS[(i + step) % 7]
        text = ctx.word(DAY_AFTER if step > 0 else DAY_BEFORE, (kind, d), d=d)
        return qa(ask(ctx, text), f"It is {e}." if "omorrow" in text else f"It was {e}." if "esterday" in text and step < 0 else
                  f"The day {'after' if step > 0 else 'before'} {d} is {e}.", f"The days are {', '.join(lx.DAYS)}. {'After' if step > 0 else 'Before'} {d} comes {e}.",
                  ("contains", [e]), e)
    i = ctx.rng.randrange(12)
    d = lx.MONTHS[i]
    if kind in ("month+", "month-"):
        step = 1 if kind == "month+" else -1
        e = lx.MONTHS[(i + step) % 12]
        side = "after" if step > 0 else "before"
        return qa(ask(ctx, ctx.word(MONTH_AFTER if step > 0 else MONTH_BEFORE, (kind, d), d=d)), f"The month {side} {d} is {e}.",
                  f"The month {side} {d} is {e}.", ("contains", [e]), e)
    if kind == "length":
        n = lx.MONTH_DAYS[i]
        extra = " (29 in a leap year)" if i == 1 else ""
        return qa(ask(ctx, ctx.word(MONTH_LENGTH, (kind, d), d=d)), f"{d} has {n} days{extra}.", f"{d} is month {i + 1}. It has {n} days.", ("contains", [str(n)]), str(n))
    if kind == "number":
        return qa(ask(ctx, ctx.word(MONTH_NUMBER, (kind, d), k=i + 1)), f"Month number {i + 1} is {d}.", f"Counting from January, month {i + 1} is {d}.",
                  ("contains", [d]), d)
    j, k = ctx.rng.randrange(7), ctx.rng.randint(2, 6)
    d, e = lx.DAYS[j], lx.DAYS[(j + k) % 7]
    steps = ", ".join(f"{n} {lx.DAYS[(j + n) % 7]}" for n in range(1, k + 1))
    return qa(ask(ctx, ctx.word(DAY_PLUS, ("day plus", f"{d}{k}"), d=d, k=k)), f"{k} days after {d} is {e}.", f"Count from {d}: {steps}.", ("contains", [e]), e)


DAY_PLUS = Wordings(["What day is it {k} days after {d}?", "Today is {d}. What day is it in {k} days?", "Which day is {k} days after {d}?",
            "Count {k} days on from {d}.", "If today is {d}, what day is it {k} days later?", "In {k} days from {d}, which day is it?",
            "It is {d}. Which day is it in {k} days?", "Today is {d}. Which day is it {k} days later?", "What day comes {k} days after {d}?", "What is {d} plus {k} days?", "{k} days after {d} is which day?", "If today is {d}, which day is it in {k} days?", "From {d}, go {k} days on. Which day is it?", "Start on {d} and count {k} days on."], wd.DAY_PLUS)


def nature(ctx):
    kind = ctx.pick(["legs", "sound", "young", "quantity", "quantity", "kind"])
    if kind == "quantity":
        x, n = ctx.pick(lx.QUANTITIES)
        return qa(ask(ctx, ctx.word(QUANTITY, ("quantity", x), x=x)), f"There are {n} {x}.", f"The number of {x} is {n}.", ("number", int(n)), n)
    if kind == "kind":
        w, k = ctx.pick(lx.KINDS)
        label = w if w[0].isupper() or k in ("metal", "drink", "color") else _an(w)
        start = label[0].upper() + label[1:]
        return qa(ask(ctx, ctx.word(KIND, ("kind", w), w=label)), f"{start} is {_an(k)}.", f"{start} is a kind of {k}.", ("contains", [k]), k)
    x, legs, sound, young = ctx.pick(lx.ANIMALS)
    if kind == "legs":
        n = str(legs) if legs else "no"
        return qa(ask(ctx, ctx.word(LEGS, (kind, x), x=x).replace("a e", "an e").replace("a ant", "an ant").replace("a owl", "an owl")),
                  f"{_an(x).capitalize()} has {n} legs.", f"{_an(x).capitalize()} has {n} legs.", ("contains", [n] if legs else ["no", "0", "zero"]), str(legs))
    if kind == "sound" and sound:
        return qa(ask(ctx, ctx.word(SOUND, (kind, x), x=x).replace("a owl", "an owl")), f"{_an(x).capitalize()} {sound}.", f"{_an(x).capitalize()} {sound}.",
                  ("contains", [sound]), sound)
    return qa(ask(ctx, ctx.word(YOUNG, ("young", x), x=x).replace("a e", "an e").replace("a ant", "an ant").replace("a owl", "an owl")),
              f"A baby {x} is called {_an(young)}.", f"The young of {_an(x)} is {_an(young)}.", ("contains", [young]), young)


# ---------------------------------------------------------------- letters

SPELL = Wordings(["Spell {w}.", "Spell the word {w}.", "How do you spell {w}?", "[Please |]spell '{w}'.", "How is {w} spelled?", "Spell out {w}.",
         "Give me the letters of {w}.", "What are the letters of {w}?", "Which letters are in {w}, in order?", "Write {w} letter by letter.",
         "List the letters of the word {w}.", "[Can|Could] you spell {w}[ for me|]?", "Break {w} into letters.", "Say {w} letter by letter.",
         "Split the word {w} into its letters.", "I cannot spell {w}. Help me.", "What is the spelling of {w}?", "Show me the letters in \"{w}\".",
         "{w}: spell it.", "Tell me how to spell {w}.",
         "spell {w}", "Spelling of {w}?", "{w}, letter by letter please.", "Write the word {w} letter by letter.", "Write the letters of {w}.", "Name the letters of {w}.", "What letters does {w} have?", "Please give the letters of {w}.", "Spell this word: {w}", "Show how {w} is spelled."], wd.SPELL)
COUNT = Wordings(["How many {l}'s are in {w}?", "How many times does {l} appear in {w}?", "Count the letter {l} in {w}.", "How often is {l} in {w}?",
         "How many {l} are there in the word {w}?", "[Please |]count the {l}'s in '{w}'.", "How many letters {l} does {w} have?", "count the {l} in {w}",
         "In the word {w}, how many {l}'s are there?", "How many times is the letter {l} in {w}?", "How often does the letter {l} occur in \"{w}\"?",
         "The word {w} has how many {l}'s?", "Tell me how many {l}'s {w} has.", "How many {l}s in {w}?", "Number of {l}'s in {w}?",
         "[Can|Could] you count how many {l}'s are in {w}?", "How often do you see {l} in {w}?", "Find how many times {l} is used in {w}.",
         "Look at {w}. How many {l}'s does it have?", "What is the number of {l}'s in the word {w}?", "Say how many {l}'s you find in {w}.",
         "I want to know how many {l}'s {w} contains.",
         "Count how many {l}'s {w} has.", "How many {l}'s does {w} have?", "How many {l}'s does the word {w} contain?", "Does {w} have the letter {l}, and how many times?", "count {l} in {w}", "Count the letters {l} in the word {w}.",
         "Tell me how many times {l} is in {w}.", "Say how many times {w} has the letter {l}.", "Tell me the number of {l}'s in {w}.", "I want to know how many {l}'s are in {w}.", "I want to know how often {w} has {l}.", "The letter {l}: how many times is it in {w}?",
         "How many times do you find {l} in {w}?", "{w}: how many {l}'s?", "How often is the letter {l} used in {w}?", "Find the number of {l}'s in {w}.", "Check how many {l}'s the word {w} has.", "Please tell me how many {l}'s {w} contains."], wd.COUNT)
LENGTH = Wordings(["How many letters does {w} have?", "How many letters are in {w}?", "How long is the word {w}?", "Count the letters in {w}.",
          "[What is|Tell me] the number of letters in {w}?", "Number of letters in {w}?", "How many letters has the word '{w}'?",
          "What is the length of the word {w}?", "The word {w} has how many letters?", "[Please |]count the letters of \"{w}\".",
          "With how many letters is {w} written?", "Say how many letters {w} has.", "[Can|Could] you count the letters in {w}?", "Letters in {w}: how many?",
          "{w} has how many letters?", "Count all letters in {w}.", "How many letters are there in {w}?", "How many letters does the word {w} have?", "How many letters do you need to write {w}?", "Length of {w}?", "Tell me how many letters {w} has.", "Tell me the length of the word {w}.", "{w}: how many letters?", "How long is {w}, in letters?"], wd.LENGTH)
FIRST = Wordings(["What is the {p} letter of {w}?", "Which letter is {p} in {w}?", "[Tell me|Name|Give me] the {p} letter of {w}.", "What's the {p} letter in '{w}'?",
         "The {p} letter of {w} is", "Which is the {p} letter of the word {w}?", "Look at {w}: what is the {p} letter?", "In {w}, what is the {p} letter?",
         "I need the {p} letter of {w}.", "Find the {p} letter of \"{w}\".", "{w}: {p} letter?", "Do you know the {p} letter of {w}?",
         "{p} letter of {w}?", "The {p} letter in {w} is which?", "Which letter is the {p} one in {w}?", "Which letter is the {p} of {w}?", "What letter is {p} in {w}?", "Tell me which letter is {p} in {w}.", "Say the {p} letter of {w}.", "Name the {p} letter in the word {w}.", "Show me the {p} letter of {w}.", "The word {w}: what is its {p} letter?"], wd.FIRST)
REVERSE = Wordings(["Reverse the word {w}.", "[Please |]reverse {w}.", "Reverse '{w}'.", "Write {w} backwards.", "What is {w} backwards?", "Spell {w} backwards.",
           "What is {w} spelled backwards?", "Turn {w} around.", "Write the word {w} in reverse.", "Write \"{w}\" from back to front.", "Say {w} backwards.",
           "Give me {w} in reverse order.", "How do you write {w} backwards?", "[Can|Could] you reverse {w}[ for me|]?", "Flip the letters of {w}.",
           "Show me {w} written backwards.", "What do you get if you reverse {w}?", "Read {w} from the end.", "Reverse the letters of {w}.",
           "{w} in reverse?", "Put the letters of {w} in reverse order.", "Write {w} starting with the last letter.",
           "Turn the word {w} around.", "Turn around the letters of {w}.", "Turn the letters of {w} around.", "Flip the word {w}.", "Flip {w} around.", "Please flip {w}.", "Reverse the letters in {w}.", "Write the letters of {w} backwards.",
           "Write {w} from the end.", "Write {w} from the last letter to the first.", "Spell the word {w} from the end.", "Start with the last letter and write {w} backwards.", "Start with the last letter of {w} and go back to the first.",
           "Begin with the last letter: write {w} in reverse.", "Write {w} beginning with the last letter.", "Say the letters of {w} from last to first.", "The letters of {w} from last to first, please.", "Backwards: {w}", "{w} backwards", "Reverse: {w}",
           "The word {w} turned around is", "How is {w} written from back to front?", "What is the reverse of {w}?", "Mirror the word {w}: write it backwards.", "Read {w} backwards.", "Give the word {w} backwards."], wd.REVERSE)
UPPER = Wordings(["Write {w} in upper case.", "Write {w} in capital letters.", "[Please |]put {w} in capitals.", "Make {w} upper case.", "Convert '{w}' to upper case.",
         "Capitalize all letters of {w}.", "Write \"{w}\" in capitals.", "Turn {w} into upper case.", "What is {w} in capital letters?", "Shout {w}.",
         "Give me {w} in all caps.", "Uppercase {w}.", "Uppercase: {w}", "Change {w} to capital letters.", "[Can|Could] you write {w} in upper case?",
         "How does {w} look in capitals?", "Print {w} in big letters.", "Write {w} with capital letters only.", "I want {w} in upper case.",
         "Transform {w} into capitals.", "All caps please: {w}", "Show {w} in uppercase letters.",
         "Put the word {w} in capitals.", "Please put {w} in capital letters.", "Put {w} in upper case.", "Put {w} into all caps.", "Give me {w} in capitals.", "Give me {w} in upper case.", "Give {w} in big letters.", "Capitals: {w}", "Upper case: {w}",
         "{w} in capitals", "{w} in upper case, please.", "{w} in all caps?", "All capitals: {w}", "Uppercase the word {w}.", "Write in capitals: {w}", "Make {w} all caps.", "Make all letters of {w} capital.", "Big letters: {w}", "Use capital letters for {w}.", "Say {w} in capitals."], wd.UPPER)
PLURAL = Wordings(["What is the plural of {w}?", "Plural of {w}?", "[Give me|Tell me|Name] the plural of {w}.", "Make {w} plural.", "What's the plural form of '{w}'?",
          "One {w}, two what?", "Write {w} in the plural.", "How do you say more than one {w}?", "The plural of {w} is", "Turn {w} into the plural.",
          "Do you know the plural of {w}?", "Say {w} in plural form.", "[Can|Could] you give the plural of {w}?", "If there are many, what do you call {w}?",
          "I have one {w}. Now I have two. Two what?", "Form the plural: {w}", "How is the plural of {w} written?", "What is {w} in the plural?",
          "Which word means several of {w}?", "Pluralize {w}.",
          "plural {w}", "{w}, plural?", "{w} in the plural", "Plural form of {w}?", "Plural of the word {w}?", "Plural: {w}", "Please write the plural of {w}.", "Write the plural of {w}.", "Write {w} in plural form.", "How is the plural of {w} formed?", "How do you write the plural of {w}?",
          "Which is the plural of {w}?", "Give the plural form for {w}.", "Many {w}: what is the plural?", "More than one {w} are called what?", "What is the plural form of the word {w}?", "The word {w} in the plural is", "Find the plural of {w}."], wd.PLURAL)
REVERSE_LIST = Wordings(["Reverse this list: {w}", "Reverse the list: {w}.", "[Please |]write this list backwards: {w}", "Put this list in reverse order: {w}",
                "Turn this list around: {w}.", "Give me this list from last to first: {w}", "Reverse the order of: {w}", "What is the reverse of the list {w}?",
                "Reverse these items: {w}.", "Flip this list: {w}", "[Can|Could] you reverse the list {w}?", "Read this list from the end: {w}",
                "List these in reverse order: {w}.", "Here is a list: {w}. Reverse it.", "Start with the last one: {w}", "Order backwards: {w}",
                "I have {w}. Write them in reverse order.", "Backwards, please: {w}", "Show the list {w} in reverse.", "Take {w} and reverse the order.",
                "Reverse: {w}", "Backwards: {w}", "This list backwards: {w}", "Turn the order of this list around: {w}", "Flip the order of {w}.", "Please reverse the order: {w}", "Put these items in reverse order: {w}", "From last to first: {w}", "Start with the last item: {w}",
                "Begin with the last: {w}", "Take this list and reverse it: {w}", "{w}. Reverse this list.", "{w}: backwards please.", "The list is {w}. What is it in reverse order?"], wd.REVERSE_LIST)
REPEAT = Wordings(["Repeat after me: {w}", "Say {w}", "Repeat: {w}", "[Please |]repeat this: {w}", "Say the following: {w}", "Copy this text: {w}", "Write exactly this: {w}",
          "Echo: {w}", "Say it with me: {w}", "Type this: {w}", "Print the text: {w}", "Say exactly: {w}", "Just repeat: {w}", "Write down: {w}",
          "Say this: {w}", "Repeat the text: {w}", "Repeat these words: {w}", "Please say: {w}", "Please write: {w}", "Write: {w}", "Write this text: {w}", "Copy: {w}", "Copy exactly: {w}", "Say after me: {w}", "Repeat what I say: {w}", "Type exactly this: {w}"], wd.REPEAT)


def _letter_word(ctx, kind, low=1, high=99):
    """A word for a letter task: known words (held out per task), nouns of the fact lists, or made up."""
    for _ in range(300):
        word = made_up(ctx.rng, 2, 4) if ctx.chance(0.3) else ctx.pick(lx.WORDS)
        if low <= len(word) <= high and is_held(kind, word) == ctx.test:
            return word
    raise ValueError(kind)


def _shown(ctx, word):
    """The word as the question shows it: as it is or, sometimes, with a capital."""
    return word.capitalize() if ctx.chance(0.08) else word


def spelled(word):
    return letters("-".join(word))


def spell(ctx):
    w = _shown(ctx, _letter_word(ctx, "spell"))
    return qa(ask(ctx, ctx.word(SPELL, w=w)), spelled(w), "The letters are " + spelled(w) + ".", ("exact", "-".join(w)))


def count_letter(ctx):
    w = _letter_word(ctx, "count", 3)
    l = ctx.pick(w) if ctx.chance(0.8) else ctx.pick("abcdefghiklmnoprstuw")
    n, seen = w.count(l), 0
    marks = []
    for c in w:
        seen += c == l
        marks.append(f"{c}{seen}" if c == l else c)
    return qa(ask(ctx, ctx.word(COUNT, w=w, l=l)), f"The letter {l} appears {n} time{'s' if n != 1 else ''} in {w}.",
              f"Look for {l}: " + letters("-".join(marks)) + f". That is {n}.", ("number", n), str(n))


def word_length(ctx):
    w = _letter_word(ctx, "length", 2, 10)
    marks = "-".join(f"{c}{i}" for i, c in enumerate(w, 1))
    return qa(ask(ctx, ctx.word(LENGTH, w=w)), f"The word {w} has {len(w)} letters.", "Count: " + letters(marks) + f". That is {len(w)}.", ("number", len(w)), str(len(w)))


def first_letter(ctx):
    w = _letter_word(ctx, "first", 4)
    p, i = ctx.pick([("first", 0), ("last", -1), ("second", 1), ("third", 2)])
    return qa(ask(ctx, ctx.word(FIRST, w=w, p=p)), f"The {p} letter of {w} is {letters(w[i])}.", f"{spelled(w)}. The {p} letter is {letters(w[i])}.",
              ("final_letter", w[i]), w[i])


def reverse_word(ctx):
    w = _letter_word(ctx, "reverse", 2, 10)
    r = w[::-1]
    return qa(ask(ctx, ctx.word(REVERSE, w=w)), letters(r), f"The letters are {spelled(w)}. From the end: {spelled(r)}.", ("exact", r), letters(r))


def upper(ctx):
    n = 1 if ctx.chance(0.75) else ctx.rng.randint(2, 3)
    words = [_letter_word(ctx, "upper") for _ in range(n)]
    w = " ".join(words)
    big = " ".join(words).upper()
    return qa(ask(ctx, ctx.word(UPPER, w=w)), letters(big), "The letters are " + " ".join(spelled(x) for x in words) + ". Now in capitals.", ("exact", big), letters(big))


def plural_of(word):
    if word in lx.IRREGULAR_PLURALS:
        return lx.IRREGULAR_PLURALS[word]
    if word[-1] in "sxz" or word[-2:] in ("ch", "sh"):
        return word + "es" if word[-1] != "z" else word + "zes"
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def plural(ctx):
    if ctx.chance(0.2) and not ctx.test:
        w = ctx.pick(sorted(lx.IRREGULAR_PLURALS))
    elif ctx.chance(0.15):
        w = made_up(ctx.rng, 2, 3)
        while is_held("plural", w) != ctx.test:
            w = made_up(ctx.rng, 2, 3)
    else:
        w = ctx.item("plural", NOUNS_PLURAL)
    p = plural_of(w)
    rule = (f"{w} ends in y after a consonant, so y becomes ies" if p == w[:-1] + "ies" else f"{w} takes es" if p == w + "es" else
            f"{w} takes s" if p == w + "s" else f"{w} is irregular")
    return qa(ask(ctx, ctx.word(PLURAL, w=w)), f"The plural of {w} is {letters(p)}.", rule[0].upper() + rule[1:] + f". So {letters(p)}.", ("word", p), letters(p))


NOUNS_PLURAL = sorted(set(lx.NOUNS) | set(lx.MORE_NOUNS))


def _list_items(ctx, low, high):
    source = ctx.pick([lx.NOUNS, lx.ITEMS, lx.WORDS, lx.FOODS, lx.CITIES, "names", "numbers"])
    n = ctx.rng.randint(low, high)
    if source == "names":
        items = [ctx.name() for _ in range(n)]
    elif source == "numbers":
        items = [str(ctx.rng.randint(0, 99)) for _ in range(n)]
    else:
        items = [ctx.item("list", source) for _ in range(n)]
    return items


def reverse_list(ctx):
    items = _list_items(ctx, 3, 5)
    return qa(ask(ctx, ctx.word(REVERSE_LIST, w=", ".join(items))), ", ".join(items[::-1]),
              "The list is " + "; ".join(f"{i} {x}" for i, x in enumerate(items, 1)) + ". I start with the last.", ("exact", ", ".join(items[::-1])))


def repeat(ctx):
    kind = ctx.rng.randrange(5)
    if kind == 0:
        text = " ".join(ctx.pick(lx.WORDS) for _ in range(ctx.rng.randint(1, 6)))
    elif kind == 1:
        text = f"{ctx.name()} {ctx.surname()} likes {ctx.pick(lx.FOODS)}."
    elif kind == 2:
        text = " ".join(made_up(ctx.rng, 1, 3) for _ in range(ctx.rng.randint(1, 4)))
    elif kind == 3:
        text = _fill(ctx, ctx.word(MARK_TEXT, fixed=True))[0]
    else:
        text = ", ".join(_list_items(ctx, 1, 4)) + ctx.pick(["", ".", "!"])
    return qa(ctx.word(REPEAT, w=text), text, "I repeat the text.", ("exact", text))


# ---------------------------------------------------------------- extraction and personal data

EXTRACT = Wordings(["[Extract|Get|Take] {k} as JSON: {t}", "[Extract|Get] {k} as JSON from this text: {t}", "{t} [Give me|Return] {k} as JSON.",
           "Turn this into JSON with the keys {k}: {t}", "Read this and answer in JSON with {k}. {t}", "JSON with {k} please: {t}",
           "{t} Write {k} as a JSON object.", "Make a JSON object with {k} from: {t}", "Convert to JSON ({k}): {t}", "Text: {t} Extract {k} as JSON.",
           "Find {k} in this text and reply in JSON: {t}", "[Please |]extract {k} in JSON format. Text: {t}", "From the text below, extract {k} as JSON.\n\n{t}",
           "Extract {k} as JSON.\n{t}", "{t}\n\nExtract {k} as JSON.", "Parse this into JSON with keys {k}: {t}", "What are {k} here? Answer in JSON. {t}",
           "Fill a JSON object with {k}: {t}", "I need {k} as JSON from this note: {t}", "Summarize as JSON with {k}: {t}", "Output only JSON with {k}. {t}",
           "Pull out {k} and return JSON: {t}", "Put {k} from this sentence into JSON: {t}", "Structure this text as JSON, keys {k}: {t}",
           "Extract {k}: {t} Answer as JSON.", "Please give {k} as JSON: {t}", "JSON object with {k}: {t}", "From this text extract {k} as JSON: {t}", "Text: {t} Give {k} as JSON.", "Text: {t}\nJSON with {k}:", "Get {k} from this as JSON: {t}", "Get {k} in JSON: {t}", "Take this text and extract {k} as JSON: {t}",
           "{t}\nGive me {k} as JSON.", "{t}\n\nWrite {k} as JSON.", "Extract the fields {k} as JSON.\n\n{t}", "Return JSON ({k}) for: {t}", "Here is a text: {t} Extract {k} as JSON.", "{t} Extract {k} in JSON format.", "As JSON, extract {k}: {t}"], wd.EXTRACT)


RECORD_PERSON = Wordings(["{n} is {a} years old and lives in {c}.", "{n}, {a}, lives in {c}.", "My neighbor {n} from {c} is {a} years old.",
                          "{n} was born {a} years ago and now lives in {c}.", "In {c} lives {n}, aged {a}.", "{n} ({a}) comes from {c}.",
                          "I met {n} in {c}, who is {a} years old.", "Hello, I am {n}, {a} years old, from {c}.", "{n} turned {a} last week in {c}.",
                          "This is {n}. Age: {a}. Home: {c}.", "At {a}, {n} moved to {c}.", "We know {n} from {c}; {n} is {a}."], wd.RECORD_PERSON)
RECORD_ORDER = Wordings(["{n} ordered {q} {i} for {p} dollars.", "Order: {q} {i}, {p} dollars, for {n}.", "{n} bought {q} {i} and paid {p} dollars.",
                         "{q} {i} were sold to {n} for {p} dollars.", "For {p} dollars {n} got {q} {i}.", "{n} wants {q} {i}. The price is {p} dollars.",
                         "Please send {q} {i} to {n}. It costs {p} dollars.", "The bill of {n}: {q} {i}, {p} dollars.",
                         "{n} paid {p} dollars for {q} {i}.", "We sent {n} {q} {i} at {p} dollars.", "{p} dollars: that is what {n} paid for {q} {i}.",
                         "New order by {n}: {i}, {q} pieces, {p} dollars."], wd.RECORD_ORDER)
RECORD_EVENT = Wordings(["The {e} is on {d} at {h} in {c}.", "On {d} at {h} there is the {e} in {c}.", "We have the {e} in {c} on {d} at {h}.",
                         "{d}, {h}: {e} in {c}.", "Do not forget the {e} in {c}, {d} at {h}.", "The {e} starts at {h} on {d}. Place: {c}.",
                         "In {c} the {e} begins on {d} at {h}.", "Our {e} takes place in {c} on {d}, {h}.", "See you at the {e} in {c} on {d} at {h}!",
                         "At {h} on {d} we meet in {c} for the {e}.", "The {e} was moved to {d}, {h}, in {c}.", "Next {d} at {h}: {e} ({c})."], wd.RECORD_EVENT)
RECORD_JOB = Wordings(["{n} {s} works as {ja} in {c}.", "{n} {s} is {ja} from {c}.", "The {j} {n} {s} lives in {c}.", "In {c}, {n} {s} found a job as {ja}.",
                       "{n} {s} became {ja} and moved to {c}.", "One {j} called {n} {s} came from {c}.", "My friend {n} {s} is {ja} in {c}.",
                       "Meet {n} {s}, {j}, {c}.", "The best {j} in {c} is {n} {s}.", "For years {n} {s} has been {ja} in {c}.",
                       "{c} needs {ja}, and {n} {s} took the job.", "{n} {s} wants to work as {ja} in {c}."], wd.RECORD_JOB)
RECORD_CONTACT = Wordings(["{n} can be reached at {m} or {p}.", "Write to {n} at {m} or call {p}.", "Contact: {n}, {m}, {p}.", "The number of {n} is {p}, the mail is {m}.",
                           "{n}'s email is {m} and the phone number is {p}.", "Call {n} on {p} or send a mail to {m}.", "Please contact {n} ({m}, {p}).",
                           "New contact {n}: phone {p}, email {m}.", "You reach {n} by phone {p} or by mail {m}.", "Ask {n}: {p}, {m}.",
                           "{m} is the mail of {n}, {p} the phone.", "I am {n}. My mail is {m}, my phone is {p}."], wd.RECORD_CONTACT)
RECORD_BOOK = Wordings(["{n} {s} wrote {t} in {y}.", "{t} by {n} {s} came out in {y}.", "In {y}, {n} {s} published {t}.", "The book {t} ({y}) is by {n} {s}.",
                        "{t} is a novel by {n} {s} from {y}.", "I read {t} by {n} {s}, printed in {y}.", "{y} was the year of {t} by {n} {s}.",
                        "The author of {t} is {n} {s}; it appeared in {y}.", "{n} {s} is known for {t}, a book of {y}.", "Published in {y}: {t}, {n} {s}.",
                        "My favorite book is {t} by {n} {s} ({y}).", "{n} {s} finished {t} in {y}."], wd.RECORD_BOOK)
RECORD_PET = Wordings(["{n} has a {k} {x} that is {a} years old.", "{n}'s {x} is {k} and {a} years old.", "A {k} {x}, {a} years old, belongs to {n}.",
                       "{n} owns a {x}. It is {k} and {a} years old.", "The {k} {x} of {n} is {a} years old.", "The {x} of {n} is {a} years old and {k}.",
                       "{n} found a {k} {x} of about {a} years.", "Lost: {k} {x}, {a} years old, owner {n}.", "{n} is looking for a {k} {x}, {a} years old.",
                       "Yesterday {n} bought a {k} {x}, {a} years old.", "With {n} lives a {k} {x} aged {a}.", "{n} feeds a {k} {x} that is {a}."], wd.RECORD_PET)


def _record(ctx):
    """(fields in order, sentence) of a random kind of note."""
    kind = ctx.rng.randrange(7)
    n, city = ctx.name(), ctx.city()
    if kind == 0:
        age = ctx.rng.randint(5, 95)
        text = ctx.word(RECORD_PERSON, n=n, a=age, c=city)
        return dict(name=n, age=age, city=city), text
    if kind == 1:
        item, q, price = ctx.pick(lx.ITEMS), ctx.rng.randint(1, 60), ctx.rng.randint(1, 99)
        text = ctx.word(RECORD_ORDER, n=n, q=q, i=item, p=price)
        return dict(customer=n, item=item, quantity=q, price=price), text
    if kind == 2:
        e, d, h = ctx.pick(lx.EVENTS), ctx.pick(lx.DAYS), f"{ctx.rng.randint(7, 21)}:{ctx.pick(['00', '15', '30', '45'])}"
        text = ctx.word(RECORD_EVENT, e=e, d=d, h=h, c=city)
        return dict(event=e, day=d, time=h, city=city), text
    if kind == 3:
        s, job = ctx.surname(), ctx.pick(lx.JOBS)
        text = ctx.word(RECORD_JOB, n=n, s=s, j=job, ja=_an(job), c=city)
        return dict(name=f"{n} {s}", job=job, city=city), text
    if kind == 4:
        mail, phone = _email(ctx, n), _phone(ctx)
        text = ctx.word(RECORD_CONTACT, n=n, m=mail, p=phone)
        return dict(name=n, email=mail, phone=phone), text
    if kind == 5:
        title, year = " ".join(ctx.rng.sample(lx.TITLE_WORDS, 2)), ctx.rng.randint(1890, 2025)
        s = ctx.surname()
        text = ctx.word(RECORD_BOOK, n=n, s=s, t=title, y=year)
        return dict(title=title, author=f"{n} {s}", year=year), text
    animal, color_, count = ctx.pick(lx.ANIMALS)[0], ctx.pick("black white brown gray red yellow spotted".split()), ctx.rng.randint(1, 15)
    text = ctx.word(RECORD_PET,
                    n=n, k=color_, x=animal, a=count)
    return dict(owner=n, animal=animal, color=color_, age=count), text


def _email(ctx, name):
    return f"{name.lower()}{ctx.pick(['', '.' + ctx.surname().lower(), str(ctx.rng.randint(1, 99))])}@" + \
        ctx.pick(["mail.com", "post.org", "example.com", "home.net", made_up(ctx.rng, 2, 2) + ".com"])


def _phone(ctx):
    r = ctx.rng
    return ctx.pick([f"555-{r.randint(0, 9999):04d}", f"0{r.randint(10, 99)} {r.randint(100000, 999999)}", f"+{r.randint(1, 99)} {r.randint(100, 999)} {r.randint(1000, 9999)}"])


def extract(ctx):
    record, text = _record(ctx)
    keys = list(record)
    if ctx.chance(0.4):
        keys = ctx.rng.sample(keys, ctx.rng.randint(1, len(keys)))
    wanted = ", ".join(keys[:-1]) + (ctx.pick([" and ", ", ", " and "]) if len(keys) > 1 else "") + keys[-1]
    if ctx.chance(0.12):
        pairs = ctx.rng.sample(sorted(record), len(record))
        text = ctx.pick([", ", "; ", "\n", ". "]).join(k + ctx.pick([": ", ": ", " is ", " = "]) + str(record[k]) for k in pairs) + "."
    if ctx.chance(0.15):
        text = ctx.pick([text + " " + _loose_sentence(ctx, False), _loose_sentence(ctx, False) + " " + text])
    value = {k: record[k] for k in keys}
    answer = json.dumps(value, ensure_ascii=False)
    think = "I read the text. " + ", ".join(f"{k} is {record[k]}" for k in keys) + "."
    return qa(ctx.word(EXTRACT, k=wanted, t=text), answer, think, ("json", value))


MARK = Wordings(["Mark the personal data: {t}", "[Please |]mark all personal data in this sentence: {t}", "Mark names, places, phone numbers and emails: {t}",
        "Tag the personal data: {t}", "Find the personal data and mark it: {t}", "{t} Mark the personal data in this text.", "Mark private data: {t}",
        "Put tags around the personal data: {t}", "Label the personal data in: {t}", "Which parts are personal data? Mark them: {t}",
        "Highlight personal information: {t}", "Annotate the personal data. {t}", "Show me the personal data in this text by marking it: {t}",
        "Mark personal data.\n{t}", "{t}\n\nMark the personal data.", "Tag every name, city, phone number and email: {t}", "Mark sensitive data in: {t}",
        "[Can|Could] you mark the personal data here? {t}", "Check this text for personal data and tag it: {t}", "Go through this sentence and mark personal data: {t}",
        "Mark what is private here: {t}", "I need the personal data marked: {t}",
        "Mark the personal data here: {t}", "Please mark personal data: {t}", "Personal data in this text? Mark it: {t}", "What is personal data here? Mark it: {t}", "Mark the names and places: {t}", "Find personal data and tag it. {t}", "Please tag the personal data in this: {t}",
        "I want the personal data marked in: {t}", "I need the personal data tagged: {t}", "Text: {t} Mark the personal data.", "{t} Tag the personal data.", "{t}\nMark all personal data.", "Can you tag the personal data? {t}", "Could you mark private data in this? {t}",
        "Which parts are private? Mark them: {t}", "Which words are personal data? Tag them: {t}", "Mark the private parts: {t}", "Tag private information: {t}"], wd.MARK)
MARK_TEXT = Wordings(["Call {n} at {p}.", "{n} lives in {c}.", "Write to {n} at {m}.", "{n} {s} met {n2} in {c}.", "My name is {n} and I live in {c}.", "Send the {x} to {m}.",
             "The phone number of {n} is {p}.", "{n} likes {f}.", "Please tell {n} that the {e} is on {d}.", "I saw {n} and {n2} in {c} on {d}.",
             "Reach me at {m} or {p}.", "{n} {s} works as {ja}.", "The {e} in {c} was great.", "We like {f} and {x}.", "Dear {n}, the {x} are ready.",
             "{n}'s new number is {p}, not {p2}.", "Ask {n} {s} about the {e} in {c}.", "On {d} we eat {f}.", "{n} from {c} wrote to {m}.", "The {j} called {n2} on {d}.",
             "{n} moved from {c} to {c2}.", "Is {n} at home? Try {p}.", "The {x} are in the box.", "{n} sends {q} {x} to {n2} in {c}."], wd.MARK_TEXT)


_TAGGED = dict(n="NAME", m="EMAIL", p="PHONE", c="CITY")


_LINKS = "and the with from about then but or so near after before is was has my your for not very".split()
_OPENERS = "The A My We Then Today Yesterday Please Now When And But They Here Our Some".split()


def _loose_sentence(ctx, fields=True):
    """A template of random words with a few fields between them.  Names never stand side by side or behind a capitalised word."""
    words = [ctx.pick(lx.WORDS if ctx.chance(0.75) else _LINKS) for _ in range(ctx.rng.randint(2, 8))]
    for _ in range(ctx.rng.choice([0, 1, 1, 2, 2, 3]) if fields else 0):
        at = ctx.rng.randint(0, len(words))
        if "{" in "".join(words[max(0, at - 1):at + 1]):
            continue
        words.insert(at, ctx.pick(["{n}", "{n} {s}", "in {c}", "{p}", "{m}", "{n}", "from {c}", "to {n}", "in the {r}", "on {d}", "in {q}"]))
    if words[0][0] != "{" and ctx.chance(0.5):
        words = [ctx.pick(_OPENERS)] + words
    if len(words) > 1 and words[1][0] == "{":
        words.insert(1, ctx.pick(lx.WORDS))
    text = " ".join(words)
    return (text[0].upper() + text[1:]) + ctx.pick([".", ".", "!", "?"])


_FREE = dict(x=lx.ITEMS, f=lx.FOODS, e=lx.EVENTS, d=lx.DAYS, j=lx.JOBS, r=lx.ROOMS, q=[str(i) for i in range(2, 40)])


def _fill(ctx, template):
    """(text, text with the personal data marked, [(value, tag)])"""
    raw, marked, found = "", "", []
    for part in re.split(r"(\{n\d?\} \{s\}|\{\w+\})", template):
        tag, value = None, part
        if part[:1] == "{":
            key = part[1]
            tag = _TAGGED.get(key)
            if part == "{ja}":
                value = _an(ctx.pick(lx.JOBS))
            elif part.endswith("{s}"):
                value = f"{ctx.name()} {ctx.surname()}"
            else:
                value = ctx.pick(_FREE[key]) if key in _FREE else {"n": ctx.name, "s": ctx.surname, "c": ctx.city, "p": lambda: _phone(ctx), "m": lambda: _email(ctx, ctx.name())}[key]()
        raw += value
        marked += f"<{tag}>{value}</{tag}>" if tag else value
        if tag:
            found.append((value, tag))
    return raw, marked, found


def mark(ctx):
    kind = ctx.rng.random()
    if kind < 0.65:
        template = ctx.word(MARK_TEXT, fixed=True)
    elif kind < 0.85:
        template = _loose_sentence(ctx)
    else:
        template = ctx.pick(["{n} likes {f}.", "{n} lives in {c}.", "The code of {n} is {q}.", "{n} is {ja}.", "I have {q} {x}.", "{n} has {q} {x} and {n} has {q}.", "{n} {s} wrote a book.", "Call {p}.", "Mail: {m}"])
    if ctx.chance(0.2) and not ctx.test:
        template = template + " " + (_loose_sentence(ctx) if ctx.chance(0.3) else ctx.word(MARK_TEXT, fixed=True))
    raw, marked, found = _fill(ctx, template)
    think = ", ".join(f"{value} is {_an(tag.lower())}" for value, tag in found) + "." if found else "There is no personal data."
    return qa(ctx.word(MARK, t=raw), marked, think[0].upper() + think[1:], ("exact", marked))


# ---------------------------------------------------------------- chat

DONT_KNOW = "I'm sorry, I don't know that."
UNKNOWN_FORMS = ["Who wrote {title}?", "Who painted {title}?", "What is the population of {place}?", "How many people live in {place}?",
                 "Who is the president of {country}?", "Who is the king of {made}?", "What is the capital of {made}?", "What did I eat {when}?",
                 "What did {name} do {when}?", "What is {name}'s phone number?", "How old is {name}?", "Where does {name} live?", "What is my {thing}?",
                 "Where is my {noun}?", "Who won the {event} in {year}?", "What happened in {year}?", "Who invented the {noun}?", "When was {place} founded?",
                 "How tall is {name} {surname}?", "What will the weather be {future}?", "Will it rain {future}?", "What time is it?", "What day is it today?",
                 "How far is it from {place} to {place2}?", "How much does a {noun} cost in {place}?", "What is the meaning of {made}?", "What is a {made}?",
                 "Who is {name} {surname}?", "What is the highest mountain in {country}?", "What language do they speak in {made}?", "What will {name} do {future}?",
                 "Who will win the {event} {future}?", "What am I thinking?", "What is in my {noun}?", "When is {name}'s birthday?", "What is the price of gold today?",
                 "How many {noun}s are there in {place}?", "Which team won {when}?", "What is the name of my {noun}?", "Can you tell me what {name} said {when}?",
                 "What did the {job} say {when}?", "What is the weather in {place}?", "Who was born in {place} in {year}?", "What is the longest river in {country}?",
                 "Which {noun} is the best?", "What is the square root of {year}?", "How do I get to {place} from here?", "What is the news today?"]


ATTRIBUTES = lx._words("""size weight price age author owner height depth length history birthday address salary meaning origin director winner king queen mayor flag anthem religion currency
population area speed temperature recipe inventor founder title date value taste shape smell material purpose reason future past name nickname hobby dream secret password""")
ACTIONS = ["wrote {title}", "invented the {noun}", "built the {noun}", "discovered {place}", "won the {event}", "stole my {noun}", "lives in {place}", "owns the {noun}", "painted {title}", "broke the {noun}", "called me {when}",
           "was born in {year}", "sang {title}", "directed {title}", "founded {place}", "designed the {noun}", "came to the {event}", "ate my {noun}", "found the {noun}", "likes {name}"]
DID = ["say", "eat", "buy", "write", "sell", "do", "see", "find", "lose", "read", "dream", "learn", "forget", "break", "cook"]
UNKNOWN_MORE = ["What is the {attr} of {any}?", "Tell me the {attr} of {any}.", "Do you know the {attr} of {any}?", "{any}: what is the {attr}?", "I want to know the {attr} of {any}.", "Which {attr} does {any} have?", "Give me the {attr} of {any}.",
                "Who {act}?", "Do you know who {act}?", "Tell me who {act}.", "When did {name} {did} it?", "Why did {name} {did} it?", "Where did {name} {did} it?", "What did {name} {did} {when}?", "What will {name} {did} {future}?", "How did {name} {did} the {noun}?",
                "When was the {noun} made?", "Why is the {noun} in {place}?", "Where is {name}?", "Where can I find {name}?", "When does the {event} start?", "Where is the {event} {future}?", "Who comes to the {event} {future}?", "How many people came to the {event}?",
                "How old is my {noun}?", "How big is the {noun} of {name}?", "How much is the {noun} of {name}?", "What is {name} doing?", "Is {name} at home?", "Does {name} like {place}?", "Did I {did} the {noun} {when}?", "What did we {did} {when}?", "What does {name} want?",
                "Who is the {job} of {place}?", "What is the name of the {job} in {place}?", "Which {noun} did {name} {did}?", "How do you say {noun} in {lang}?", "Translate {noun} into {lang}.", "What does {made} mean in {lang}?", "When will the {event} be?", "Why {act}?", "What is my {attr}?"]


def unknown(ctx):
    f = dict(title=" ".join(ctx.rng.sample(lx.TITLE_WORDS, 2)), place=ctx.city(), place2=ctx.city(), country=ctx.pick(lx.CAPITALS)[0],
             made=made_up(ctx.rng, 2, 3).capitalize(), name=ctx.name(), surname=ctx.surname(), noun=ctx.item("unknown", lx.NOUNS), event=ctx.pick(lx.EVENTS),
             year=ctx.rng.randint(1500, 2026), job=ctx.pick(lx.JOBS), when=ctx.pick(["yesterday", "last night", "this morning", "last week", "on " + ctx.pick(lx.DAYS)]),
             future=ctx.pick(["tomorrow", "next week", "tonight", "next year", "on " + ctx.pick(lx.DAYS)]),
             thing=ctx.pick(["favorite color", "address", "password", "birthday", "phone number", "shoe size", "middle name", "favorite song", "plan for today"]))
    act, attr = ctx.pick(ACTIONS), ctx.item("attribute", ATTRIBUTES)
    f.update(attr=attr, any=ctx.pick([f["place"], f["name"], f["made"], "the " + f["noun"], f["name"] + " " + f["surname"], f["country"]]), act=act, did=ctx.pick(DID), lang=ctx.pick(lx.LANGUAGES))
    for key in f:
        act = act.replace("{" + key + "}", str(f[key]))
    f["act"] = act
    text = ctx.word(UNKNOWN_FORMS if ctx.chance(0.55) else UNKNOWN_MORE, **f)
    return qa(ask(ctx, text), DONT_KNOW, "I was not taught this, so I should say that I do not know.", ("refuse", None))


CHAT = [  # (ways to say it, answers)
    (["Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there!", "Good morning!", "Good morning", "Good evening!", "Good afternoon.", "Hello there", "Greetings!", "Hey there!",
      "Hello, computer!", "Hi, assistant!", "Howdy!", "Hello again!", "Nice to meet you!" , "Hi, good morning!", "Hello, good evening!", "Hey, hello!", "Good day!", "Hi again!", "Hello, Lily!", "Hi Lily!", "Hey Lily", "Good morning, Lily!", "Hello my friend!", "A good day to you!", "Hi, nice to meet you!"],
     ["Hello! How can I help you?", "Hi! What can I do for you?"]),
    (["How are you?", "How are you doing?", "How are you today?", "How do you do?", "How is it going?", "Are you well?", "Are you okay?", "How do you feel?", "What's up?",
      "Everything fine with you?", "How have you been?", "Hi, how are you?", "Hello, how are you doing?", "And how are you?" , "How are things?", "How are things with you?", "Is everything fine?", "Is everything okay with you?", "Are you fine today?", "Are you doing well?", "Are you okay today?", "How do you feel today?", "How is your day?", "How is everything going?", "Tell me how you are.", "I hope you are well?", "Hey, how are you today?"],
     ["I am fine, thank you. How are you?", "I am doing well, thank you. And you?"]),
    (["I'm fine, thanks.", "I am fine.", "I am good, thank you.", "Very well, thank you.", "I'm great!", "Good, thanks!", "I am doing well.", "I'm okay.", "Fine, thanks!",
      "All good here.", "I feel great today.", "Not bad, thank you." , "I am okay, thanks.", "I'm doing fine.", "I am very well.", "I'm good.", "I am okay.", "Great, and I am fine too.", "I feel fine.", "I am doing great, thanks.", "All is well.", "I am well, thank you.", "Quite good, thanks."], ["I am glad to hear that. What can I do for you?"]),
    (["Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!", "Thank you so much!", "That helped, thanks.", "Many thanks!", "Great, thank you!", "Thanks for your help.",
      "Perfect, thanks.", "I appreciate it.", "Thank you for the answer.", "Cheers!", "Very kind of you." , "Thank you, that was great.", "Great, thanks a lot!", "Thanks, great!", "Thank you, I appreciate that.", "I appreciate your help.", "I really appreciate it, thanks.", "Thanks, you helped me.", "I thank you.", "Ok, thank you.", "Okay, thanks!", "Thanks for that.", "Thanks again!", "Thank you for helping.", "Good, thank you!"], ["You're welcome!", "You are welcome. Ask me anything."]),
    (["Goodbye!", "Bye!", "Bye bye.", "See you later!", "Good night!", "See you!", "I have to go.", "Goodbye for now.", "Farewell!", "I must leave now.", "See you tomorrow!",
      "Until next time!", "That is all. Bye!", "Talk to you later." , "Bye, Lily!", "Bye for now!", "Goodbye, Lily.", "I am leaving. Bye!", "I have to leave now, bye.", "I must go now.", "Have a good night!", "Good night, Lily.", "See you next time!", "See you soon.", "Bye, see you!", "Until later!", "I say goodbye."], ["Goodbye! Have a nice day.", "Bye! See you soon."]),
    (["Who are you?", "What are you?", "What is your name?", "What's your name?", "Tell me who you are.", "Do you have a name?", "Introduce yourself.", "Who am I talking to?",
      "How should I call you?", "Are you a robot?", "Are you a human?", "Are you a person?", "Tell me about yourself.", "What kind of program are you?" , "Say who you are.", "What are you called?", "How are you called?", "Please tell me your name.", "May I know your name?", "What should I call you?", "Which model are you?", "Are you a computer?", "Are you a machine?", "Are you a language model?", "Who is this?", "Who made you?", "Who are you, please?", "What is your name, assistant?"],
     ["I am Lily Mini, a very small language model made for demonstration."]),
    (["What can you do?", "What do you know?", "How can you help me?", "Help", "Help me", "What are you good at?", "What are your skills?", "What can I ask you?",
      "What should I ask you?", "Tell me what you can do.", "Can you help me?", "I need help.", "What topics do you know?", "Show me what you can do." , "What are you able to do?", "What can you do for me?", "What can you help me with?", "Which skills do you have?", "Which things can you do?", "Tell me your skills.", "What do you know about?", "What can I do with you?", "Give me help.", "Please help me.", "List your skills.", "What questions can I ask?"],
     ["I can do small sums, name capitals and opposites, spell and count letters, reverse words, write JSON, and call tools."]),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "A joke, please.", "Can you tell a joke?", "I want to hear a joke.", "Joke?",
      "Tell me something funny.", "Cheer me up with a joke." , "Please tell me a joke.", "Tell a joke.", "Another joke!", "One joke, please.", "Say a joke.", "Give me a joke.", "Do you have a joke for me?", "Something funny, please.", "I need a joke."],
     ["Why did the chicken cross the road? To get to the other side.", "What do you call a sleeping dinosaur? A dino-snore."]),
    (["I am sad.", "I feel sad today.", "I'm unhappy.", "I feel bad.", "I had a bad day.", "I am not happy.", "Today was terrible.", "I feel lonely.", "I feel down.",
      "Everything went wrong today." , "I am so sad.", "I'm sad today.", "I am feeling sad.", "I am unhappy today.", "I feel terrible.", "I feel very bad.", "My day was bad.", "My day was terrible.", "I am lonely.", "Today was a bad day."], ["I am sorry to hear that. I hope you feel better soon."]),
    (["I am happy!", "I feel happy today.", "I had a great day!", "I am so glad!", "Today was wonderful.", "I won a prize!", "I passed my exam!", "I feel wonderful.",
      "What a lovely day!", "I got good news today." , "I am very happy.", "I'm happy!", "I'm so happy today!", "I feel great, I won!", "My day was wonderful.", "My day was great!", "I won the game!", "I have good news!", "I am glad today.", "It was a great day."], ["That is wonderful! I am happy for you."]),
    (["I am tired.", "I'm so tired.", "I feel tired today.", "I need sleep.", "I did not sleep well.", "I am exhausted.", "I could sleep all day.", "I want to go to bed.",
      "I'm sleepy.", "What a long day, I am tired." , "I am very tired.", "I feel so tired.", "I am sleepy.", "I need to sleep.", "I want to sleep.", "I need my bed.", "I did not sleep.", "I slept badly.", "I am tired today.", "I would like to go to bed."], ["Then take a rest. Sleep helps."]),
    (["I am hungry.", "I'm hungry.", "I want to eat something.", "I need food.", "What should I eat?", "I have not eaten today.", "I could eat a horse.", "Give me an idea for dinner.",
      "What can I cook?", "I feel like eating." , "I am very hungry.", "I want food.", "I want dinner.", "What can I eat?", "What should I cook?", "What should I have for dinner?", "Give me an idea what to eat.", "I need something to eat.", "I would like to eat.", "Any idea for dinner?"], ["How about some soup and bread?", "How about a plate of pasta?"]),
    (["I am bored.", "I'm bored.", "What should I do?", "I have nothing to do.", "Give me an idea what to do.", "How can I spend my time?", "It is so boring here.",
      "Any idea for the weekend?", "What can I do today?", "Entertain me." , "I am so bored.", "I feel bored.", "I have no idea what to do.", "What should I do today?", "What can I do now?", "Give me an idea.", "What could I do this weekend?", "Nothing to do here.", "Boring!", "Tell me what to do."], ["You could read a book or take a walk.", "You could call a friend or bake a cake."]),
    (["Do you like music?", "What is your favorite color?", "Do you like dogs?", "What is your favorite food?", "Do you have feelings?", "Do you sleep?", "Do you eat?", "Do you dream?",
      "Are you alive?", "Do you have friends?", "How old are you?", "Where do you live?", "Do you have a family?", "Do you like me?", "Are you happy?", "Can you feel pain?" , "Do you feel pain?", "Can you feel something?", "Do you feel anything?", "Can you sleep?", "Can you eat?", "Can you dream?", "Do you have a favorite food?", "What music do you like?", "What do you like?", "Are you sad?", "Are you ever happy?", "Do you have a home?", "Do you have a wish?", "Do you like cats?", "Do you love me?"],
     ["I am only a small program, so I have no feelings or wishes of my own."]),
    (["You are great!", "You are very smart.", "Well done!", "Good job!", "Nice!", "You are helpful.", "I like you.", "You are funny.", "That was correct!", "Excellent!", "Wow!", "Cool!",
      "Very good.", "You did that well." , "Well done, thank you!", "That was good.", "That was great.", "That was excellent.", "Great!", "Great answer!", "Good answer!", "Nice answer.", "Perfect!", "Very nice!", "You are good.", "You are so helpful.", "You are cool!", "Wow, great!", "Excellent answer!", "You are correct."], ["Thank you! That is kind of you."]),
    (["You are wrong.", "That is wrong.", "That is not correct.", "This is false.", "You made a mistake.", "I think that is wrong.", "No, that's not right.", "Wrong!", "Bad answer.",
      "Your answer is wrong." , "That was wrong.", "The answer is wrong.", "No, wrong.", "Not correct.", "You are not correct.", "That is a mistake.", "I think you are wrong.", "That was a bad answer.", "This is not right.", "No, that is false."], ["I am sorry. I am a very small model and make mistakes."]),
    (["Okay.", "Ok", "I see.", "Alright.", "Got it.", "Understood.", "Yes", "No", "Hmm.", "Sure.", "Good.", "Fine." , "Okay, good.", "Ok, fine.", "I understand.", "Ah, okay.", "Yes, okay.", "Yes.", "No.", "Oh.", "Ah, I see.", "Alright then.", "Okay then."], ["What else can I do for you?"]),
    (["Write me an essay about trains.", "Write a long story.", "Explain quantum physics.", "Write a program in C.", "Translate this book.", "Solve this integral.", "Draw me a picture.",
      "Write a poem.", "Explain the theory of relativity.", "Write a business plan.", "Do my homework.", "Play a song for me.", "Book a flight for me.", "Write a novel." , "Write a poem about trains.", "Write a story about a dragon.", "Write an essay.", "Explain physics.", "Explain how a computer works.", "Explain relativity to me.", "Write code for me.", "Write a program.", "Translate a book for me.", "Translate my letter.", "Draw a horse.", "Paint a picture.", "Sing a song.", "Play music.", "Book a hotel.", "Write a book.", "Write a speech.", "Solve this equation."],
     ["I'm sorry, that is too hard for me. I am a very small model."]),
]
CHAT = [(Wordings(ways, composed, 300), answers) for (ways, answers), composed in zip(CHAT, wd.CHAT)]
CHAT_THINK = ["a greeting", "a question about how I am", "good news about the user", "thanks", "a goodbye", "a question about me", "a question about my skills", "a wish for a joke",
              "a sad remark", "a happy remark", "a remark about being tired", "a remark about food", "a remark about boredom", "a question about my feelings", "praise", "a correction",
              "a short remark", "a task that is too hard for me"]


def chat(ctx):
    i = ctx.rng.randrange(len(CHAT))
    ways, answers = CHAT[i]
    text = ctx.word(ways, fixed=True)
    if ctx.chance(0.1):
        text += " " + ctx.word(ways, fixed=True)
    elif ctx.chance(0.06):
        text = remark(ctx) + " " + text
    return qa(text, ctx.pick(answers), f"This is {CHAT_THINK[i]}. I answer politely.", ("one_of", answers))


TELL_NAME = ["My name is {n}.", "I am {n}.", "I'm {n}.", "Hi, I'm {n}.", "Hello, my name is {n}.", "You can call me {n}.", "People call me {n}.", "Hi! I am {n}.", "This is {n}.",
             "Hello! {n} here.", "Please call me {n}.", "My friends call me {n}.", "I go by {n}.", "The name is {n}."]
ASK_NAME = ["What is my name?", "What's my name?", "Do you know my name?", "Who am I?", "Do you remember my name?", "Tell me my name.", "Say my name.", "Can you tell me my name?",
            "What did I say my name was?", "How am I called?", "Please say my name.", "Which name did I give you?"]
TELL_LIKE = [("I like {x}.", "like"), ("I love {x}.", "like"), ("My hobby is {h}.", "hobby"), ("I enjoy {h}.", "hobby"), ("I live in {c}.", "city"), ("I am from {c}.", "city"),
             ("My home is in {c}.", "city"), ("My favorite food is {x}.", "like"), ("In my free time I do {h}.", "hobby"), ("I really like {x}.", "like"),
             ("I moved to {c}.", "city"), ("I work as a {j}.", "job"), ("I am a {j}.", "job"), ("My job is {j}.", "job"), ("I have a {a}.", "pet"), ("My pet is a {a}.", "pet"),
             ("I own a {a}.", "pet")]
ASK_LIKE = dict(like=["What do I like?", "What food do I like?", "Tell me what I like.", "Do you remember what I like?", "What did I say I like?", "Which food do I like?"],
                hobby=["What is my hobby?", "What do I enjoy?", "Do you remember my hobby?", "Tell me my hobby.", "What do I do in my free time?", "Which hobby do I have?"],
                city=["Where do I live?", "Which city do I live in?", "What is my city?", "Do you remember where I live?", "Tell me where I live.", "In which city is my home?"],
                job=["What is my job?", "What do I do for work?", "What do I work as?", "Do you remember my job?", "Tell me my job.", "Which job do I have?"],
                pet=["What pet do I have?", "Which animal do I have?", "What is my pet?", "Do you remember my pet?", "Tell me what pet I have.", "What animal do I own?"])


def introduce(ctx):
    """The user tells a name or a liking; asked now or some turns later."""
    if ctx.chance(0.5):
        n = ctx.name()
        tell, reply = ctx.word(TELL_NAME, fixed=True, n=n), f"Nice to meet you, {n}!"
        question, answer, short = ctx.word(ASK_NAME, fixed=True), f"Your name is {n}.", n
    else:
        x, h, c, j, a = ctx.item("food", lx.FOODS), ctx.item("hobby", lx.HOBBIES), ctx.city(), ctx.item("job", lx.JOBS), ctx.pick(lx.ANIMALS)[0]
        template, kind = ctx.pick(TELL_LIKE)
        tell = template.replace("{x}", x).replace("{h}", h).replace("{c}", c).replace("{j}", j).replace("{a}", a)
        short = dict(like=x, hobby=h, city=c, job=j, pet=a)[kind]
        reply = dict(like=f"{x.capitalize()} is a good choice!", hobby=f"{h.capitalize()} sounds fun!", city=f"{c} is a nice place.", job=f"Being {_an(j)} is a fine job.",
                     pet=f"{_an(a).capitalize()} is a nice pet.")[kind]
        question = ctx.word(ASK_LIKE[kind], fixed=True)
        answer = dict(like=f"You like {x}.", hobby=f"Your hobby is {h}.", city=f"You live in {c}.", job=f"You are {_an(j)}.", pet=f"You have {_an(a)}.")[kind]
    if ctx.chance(0.3) and not ctx.test:
        return qa(tell, reply, "The user tells me something. I answer politely.", ("exact", reply))
    before = [("user", tell), ("assistant", reply)]
    for _ in range(ctx.rng.choice([0, 0, 1, 1, 2, 3])):
        other = ctx.pick(SMALL_SKILLS)(ctx)
        before += other["before"] + [("user", other["user"]), ("assistant", other["answer"])]
    return qa(question, answer, f"The user said it before: {tell}", ("contains", [short]), short, before)


SMALL_SKILLS = [add, subtract, multiply, capital, opposite, color, chat, calendar, unknown, nature]
