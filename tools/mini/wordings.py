# SPDX-License-Identifier: Apache-2.0
"""Wordings composed from parts, and the rule that holds some of them out of training.

A phrase has alternatives in brackets, "[add|sum] {a} and {b}", and is expanded to all of them.  A frame puts a phrase into a sentence:
"@" stands for the phrase, "^" for the phrase with a capital.  Frames for noun phrases, commands, indirect questions and commands about
a text are shared by many skills, so a verb, an object or a frame is met in many places; each combination is a wording of its own.
"""
import hashlib
import re


def digest(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def expand(phrase):
    """All texts that a phrase with [one|two] alternatives stands for."""
    out = [""]
    for i, part in enumerate(re.split(r"\[([^\]]*)\]", phrase)):
        out = [a + b for a in out for b in (part.split("|") if i % 2 else [part])]
    return [re.sub(r"(?<!=) +([.,?!:])", r"\1", re.sub(r" +", " ", t)).strip(" ") for t in out]


def expand_all(lines):
    return [t for line in lines if line for t in expand(line)]


def using(frames, phrases):
    """Every frame around every phrase."""
    out = []
    for p in expand_all(phrases):
        for f in frames:
            out.append(f.replace("@", p).replace("^", p[0].upper() + p[1:]))
    return out


def same(template):
    """What is left of a wording without case, punctuation, line breaks, courtesy, contraction and the kind of operator: those that
    are equal here are on the same side of the split."""
    text = re.sub(r"\[[^\]]*\|\]|\[\|[^\]]*\]", " ", template.lower())
    text = text.replace("what's", "what is").replace("i'm", "i am").replace("let's", "let us").replace("i'd", "i would")
    text = re.sub(r"\bplease\b|\bfor me\b|\bnow\b", " ", text)
    text = re.sub(r"(\{[abxy]\}) ?(?:[-+*x]|plus|minus|times|\{[ov]\}) ?(?=\{[abxy]\})", r"\1 operator ", text)
    return " ".join(re.findall(r"\{\w+\}|\w+", text))


class Wordings(list):
    """Wordings written by hand, then composed ones; at most `most` of these, chosen by hash.  A wording is picked from the first part
    in HAND of the cases."""

    HAND = 0.4

    def __init__(self, hand, composed, most=900):
        hand = list(dict.fromkeys(expand_all(hand)))
        known = {same(t) for t in hand}
        some = sorted(set(composed), key=lambda t: digest("more " + t))[:most]
        super().__init__(hand + [t for t in some if same(t) not in known])
        self.hand = set(hand)
        self.pool = None


HELD_BELOW = 2 ** 64 // 6


def split_wordings(templates):
    """(training, held out).  Equal wordings (see same) count as one.  Held out are those whose hash is in the lowest sixth; of a list of less
    than 30 the sixth with the smallest hash, three at least from 12 on, one at least.  The first, plainest one of a list is always trained."""
    groups = {}
    for t in templates:
        groups.setdefault(same(t), []).append(t)
    first = same(templates[0])
    order = {g: digest("wording " + g) for g in groups if g != first}
    ranked = sorted(order, key=order.get)
    n_held = max(3, sum(order[g] < HELD_BELOW for g in ranked)) if len(groups) >= 30 else max(3, len(groups) // 6) if len(groups) >= 12 else max(1, len(groups) // 6)
    return [t for g in [first] + ranked[n_held:] for t in groups[g]], [t for g in ranked[:n_held] for t in groups[g]]


# ---------------------------------------------------------------- frames

NOUN = ["What is @?", "What's @?", "Tell me @.", "Give me @.", "^?", "^ is", "I need @.", "Do you know @?", "Can you tell me @?", "Could you give me @?", "Let me know @.", "I want to know @.",
        "^, please.", "^", "I am looking for @.", "Find @.", "Show me @.", "I would like to know @.", "Could you tell me @?", "What would be @?", "I have to know @.", "Say @.", "Can you give me @?",
        "I forgot @.", "Do you happen to know @?", "Let me hear @.", "Help me find @.", "My question: @?", "Remind me of @.", "Please tell me @.", "Answer this: what is @?", "^: what is it?", "I ask for @.",
        "I am asking for @.", "Would you tell me @?", "I wonder what @ is.", "Tell me what @ is.", "Do you know what @ is?", "I want @.", "Who can tell me @?", "State @.", "Would you know @?", "Just tell me @.",
        "Look up @.", "I cannot remember @.", "Write down @.", "Can you find @?", "Let us find @.", "And what is @?", "So what is @?", "Quick, @?", "Now tell me @.", "Can you say what @ is?", "^ is what?"]
NAMED = ["Name @.", "Can you name @?", "Please name @.", "Could you name @?", "I need the name of @.", "What is the name of @?", "What do you call @?", "How do you call @?", "What is @ called?"]
VALUE = ["How much is @?", "Calculate @.", "Compute @.", "Work out @.", "Solve @.", "What does @ make?", "What does @ equal?", "What does @ give?", "^ makes", "^ equals", "Figure out @.", "Evaluate @.", "Determine @.",
         "What number is @?", "Can you calculate @?", "Could you compute @?", "Please work out @.", "Can you work out @?", "I need to calculate @.", "Help me with @.", "How many is @?", "What is the answer to @?",
         "I want you to compute @.", "^ equals what?", "^ is how much?", "What do you get for @?", "^ = ?", "What comes out for @?", "How much would @ be?", "Let us calculate @.", "Do the sum @."]
DO = ["^.", "Please @.", "Can you @?", "Could you @?", "Would you @?", "I want you to @.", "I need you to @.", "I would like you to @.", "Your task is to @.", "Now @.", "Try to @.", "Will you @?", "^ for me.", "You should @.",
      "Help me to @.", "^, please.", "I ask you to @.", "Can you please @?", "Are you able to @?", "Let us @.", "Next, @.", "Go on and @.", "It is time to @.", "You have to @.", "Do you know how to @?", "The task: @."]
RESULT = ["What do you get if you @?", "What is the result if I @?", "If I @, what do I get?", "If you @, what comes out?", "^. What is the result?", "^. What do you get?", "^ and tell me the result.", "^ and give me the answer.",
          "What comes out when you @?", "When I @, what is the result?", "Suppose you @. What do you get?", "What happens if I @?", "^. How much is it?", "What is left or what comes out if you @?", "Let me @. What do I have?",
          "What do we have if we @?", "^. What number is that?", "I @. What do I get?"]
CLAUSE = ["Tell me @.", "I want to know @.", "Do you know @?", "Can you tell me @?", "Could you tell me @?", "Let me know @.", "I wonder @.", "Say @.", "Please say @.", "I would like to know @.", "Find out @.", "I need to know @.",
          "Would you tell me @?", "I have to know @.", "Can you say @?", "I forgot @.", "Please tell me @.", "I am asking @.", "My question is @.", "Do you happen to know @?", "Can you find out @?", "I cannot remember @.",
          "Check @.", "Help me find out @.", "Who knows @?", "I ask you @.", "Now say @.", "I do not know @."]
ABOUT = ["^: {t}", "^. {t}", "^.\n{t}", "^.\n\n{t}", "{t}\n^.", "{t}\n\n^.", "{t} ^.", "Text: {t} ^.", "Text: {t}\n^.", "^. Text: {t}", "^. The text is: {t}", "Here is a text: {t} ^.", "Here is the text: {t}\n^.", "Can you @? {t}",
         "Could you @? {t}", "Please @: {t}", "I want you to @: {t}", "Your task: @. {t}", "Read this text and @: {t}", "Read this: {t} Now @.", "The text: {t} Please @.", "Look at this: {t} ^.", "Take this text: {t} ^.",
         "^. This is the text: {t}", "I need you to @: {t}", "Would you @? {t}", "The text is: {t} ^.", "This is the text: {t} ^.", "I have a text. ^. {t}", "I have this text: {t} Please @.", "Read the text below and @.\n\n{t}",
         "You have to @. {t}", "Help me to @: {t}", "Now @: {t}", "Task: @. {t}", "Below is a text. ^.\n\n{t}", "^. Here it is: {t}", "Can you @ for me? {t}", "Try to @: {t}", "I would like you to @. {t}", "My text: {t} ^.",
         "^. My text: {t}", "Work on this text: {t} ^.", "Consider this: {t} ^.", "Go through this and @: {t}", "Given this text, @: {t}", "With this text, @. {t}"]
LISTED = [f.replace("{t}", "{w}").replace("text", "list").replace("Text", "List") for f in ABOUT if f not in ("{t} ^.",)] + ["{w}: @.", "I have {w}. ^."]

# ---------------------------------------------------------------- arithmetic

SUM = using(NOUN + VALUE, ["{a} [+|plus] {b}", "{x} plus {y}", "the [sum|total] of {a} and {b}", "{a} and {b} together", "{a} added to {b}", "the [result|value] of {a} [+|plus] {b}", "the sum {a} + {b}", "{b} more than {a}",
                           "the sum of {x} and {y}", "the answer to {a} + {b}", "the total of {a} plus {b}", "{a} increased by {b}"]) + \
    using(DO + RESULT, ["add {a} [and|to] {b}", "add {b} to {a}", "sum [|up ]{a} and {b}", "add up {a} and {b}", "put {a} and {b} together", "total {a} and {b}", "count {a} and {b} together", "increase {a} by {b}", "add {x} [and|to] {y}",
                        "start at {a} and count on {b}", "take {a} and add {b}", "combine {a} and {b}", "[add|sum up|add up] the numbers {a} and {b}", "count {b} on from {a}", "find the sum of {a} and {b}", "make the sum of {a} and {b}",
                        "[calculate|compute|work out] the [sum|total] of {a} and {b}", "raise {a} by {b}", "go {b} up from {a}"])
DIFF = using(NOUN + VALUE, ["{a} [-|minus] {b}", "{x} minus {y}", "the difference [of|between] {a} and {b}", "the [result|value] of {a} [-|minus] {b}", "{a} less {b}", "{b} less than {a}", "{a} take away {b}", "{a} [reduced|lowered] by {b}",
                            "the difference {a} - {b}", "the difference between {x} and {y}", "the answer to {a} - {b}", "the rest of {a} after taking away {b}", "what remains of {a} without {b}"]) + \
    using(DO + RESULT, ["subtract {b} from {a}", "take {b} away from {a}", "take [away |]{b} from {a}", "[reduce|decrease|lower] {a} by {b}", "count [back {b}|{b} back] from {a}", "start at {a} and [count back|take away|subtract] {b}",
                        "[remove|deduct] {b} from {a}", "subtract {y} from {x}", "subtract the number {b} from {a}", "take {a} and [subtract|take away|remove] {b}", "find the difference [of|between] {a} and {b}",
                        "[calculate|compute|work out] the difference [of|between] {a} and {b}", "go {b} down from {a}", "take {y} away from {x}"])
_EACH = ["There are {a} {u} with {b} {i} each.", "{a} {u} [hold|have|contain|carry] {b} {i} each.", "Each of {a} [{u}|children|people|friends|workers] has {b} {i}.", "I buy {a} {u} with {b} {i} each.",
         "I have {a} {u}. Each [holds|has] {b} {i}.", "{n} has {a} {u} [of|with] {b} {i} each.", "In each of {a} {u} there are {b} {i}.", "Every one of {a} {u} holds {b} {i}.", "{n} fills {a} {u} with {b} {i} each.",
         "We bring {a} {u}, each with {b} {i}.", "{a} [people|children|friends] get {b} {i} each.", "{n} gives {b} {i} to each of {a} friends.", "{a} rows have {b} {i} each.", "On {a} days {n} buys {b} {i} each day.",
         "For {a} days, {n} sells {b} {i} a day.", "{n} packs {b} {i} into each of {a} {u}.", "There are {b} {i} in every one of {a} {u}.", "{n} owns {a} {u}, and there are {b} {i} in each."]
PROD = using(NOUN + VALUE, ["{a} [x|*|times] {b}", "{x} times {y}", "the product of {a} and {b}", "{a} multiplied by {b}", "the result of {a} [x|times] {b}", "the product {a} x {b}", "{a} groups of {b}", "the answer to {a} [x|times] {b}",
                            "the value of {a} times {b}", "the product of {x} and {y}", "{x} multiplied by {y}"]) + \
    using(DO + RESULT, ["multiply {a} [by|with|and] {b}", "multiply the numbers {a} and {b}", "take {a} times {b}", "[find|compute|calculate|work out|make] the product of {a} and {b}", "multiply {x} by {y}", "do {a} times {b}"])
PROD_STORY = using(["@ How many {i} are there?", "@ How many {i} is that?", "@ How many {i} are there in all?", "@ How many {i} in total?", "@ How many {i} is that altogether?", "@ What is the total number of {i}?",
                    "@ How many {i} are there together?", "@ What is the total?", "@ How many {i} do we count?", "@ Give the number of {i}.", "@ How many {i}?"], _EACH)
CONTAINERS = "boxes bags baskets packs cars tables shelves rows drawers jars crates rooms buses trays cartons houses teams plates".split()
_GOT = "[gets|finds|buys|wins|makes|collects|receives|picks|takes]"
_GONE = "[gives away|loses|sells|eats|breaks|uses|drops|throws away|hides]"
_LOST = "[gave away|lost|sold|ate|broke|used|dropped|threw away|hid]"
_GAIN = "[got|found|bought|won|made|collected|received|picked]"
STORY_ADD = expand_all([
    "{n} has {a} {x} and " + _GOT + " {b} more. [How many {x} does {n} have now?|How many is that?|What is the total?|How many in all?]", "{n} had {a} {x} and " + _GAIN + " {b}. [How many are there now?|How many {x} is that?|How many does {n} have?]",
    "I had {a} {x}. [Then|Later|On {d}|After that] I " + _GAIN + " {b} more. [How many {x} do I have?|How many are there?]", "[{n} and {m} have|There are] {a} {x} [in the room|at home|here] and {b} [in the garden|at school|outside]. How many {x} [is that|are there together|are there in all]?",
    "{n} " + _GAIN + " {a} {x} on {d} and {b} on {e}. [How many {x} were there?|How many in total?]", "[A box|A bag|A shelf|A room|The car] holds {a} {x}[, another one|, the next one|, a second one] {b}. How many {x} [together|in all|are there]?",
    "[Yesterday|On {d}|First|In the morning] {n} " + _GAIN + " {a} {x}, [today|on {e}|then|in the evening] {b}. How many {x} [is that|in all|together]?", "{m} [gives|sends|brings|sells|hands] {n} {b} {x}. {n} [already has|had|owned] {a}. How many {x} does {n} have?"])
STORY_SUB = expand_all([
    "{n} has {a} {x} and " + _GONE + " {b}. [How many {x} does {n} have now?|How many are left?|How many remain?|How many does {n} keep?]", "{n} had {a} {x} and " + _LOST + " {b}. [How many are there now?|How many {x} are left?|How many does {n} have?]",
    "I had {a} {x}. [Then|Later|On {d}|After that] I " + _LOST + " {b}. [How many {x} do I have?|How many are left?]", "[Of|From] {a} {x}, {n} " + _LOST + " {b}. [How many are left?|How many remain?|How many did {n} keep?]",
    "{n} " + _LOST + " {b} of {a} {x}. [How many are left?|How many {x} remain?|How many does {n} still have?]", "There [are|were] {a} {x} [in a box|in a bag|on the shelf|in the room]. [{n}|{m}|Somebody] [takes|took|removes] {b}. How many [are left|are still there|remain]?",
    "{m} [takes|steals|borrows|buys] {b} of the {a} {x} [of {n}|that {n} has]. How many [does {n} keep|are left|remain]?", "{n} [needs|wants] {a} {x} and has {b}. How many [are missing|more does {n} need]?"])

# ---------------------------------------------------------------- facts

CAPITAL = using(NOUN + NAMED, ["the capital of {c}", "the capital city of {c}", "{c}'s capital", "{c}'s capital city", "the capital of the country {c}", "the city that is the capital of {c}"]) + \
    using(CLAUSE, ["which city is the capital of {c}", "what the capital of {c} is called", "which capital {c} has", "which city {c} has as its capital", "what city is {c}'s capital"]) + \
    expand_all(["[I live in|I am in|I come from|I travel to|I am going to|We fly to|My friend is from|She moved to|He was born in] {c}. [What is the capital?|Which city is its capital?|Name the capital.|What is its capital called?|Tell me the capital.|What is the capital there?]",
                "{c}[:|,] [what is its capital?|capital city?|which city is the capital?|name the capital.|tell me the capital.]", "[Which|What] [city|capital|capital city] does {c} have[ as its capital|]?", "[Which|What] city [is|serves as|would be] the capital [of|in] {c}?"])
COUNTRY = using(NOUN + NAMED, ["the country whose capital is {c}", "the country with the capital {c}", "the country that has {c} as its capital", "the country that {c} is the capital of", "the country of the capital {c}"]) + \
    using(CLAUSE, ["which country has the capital {c}", "which country {c} is the capital of", "of which country {c} is the capital", "to which country the capital {c} belongs", "whose capital {c} is", "what country has {c} as its capital"]) + \
    expand_all(["{c} is the capital[ city|] of [which|what] [country|land|nation]?", "[Which|What] [country|land|nation] has [{c} as its capital|{c} for a capital|the capital {c}|the capital city {c}]?", "[Of which|Of what|For which] [country|land|nation] is {c} the capital?",
                "The capital [is|is called] {c}. [Which country is it?|What is the country?|Name the country.|What country is that?]", "[I live in|I visit|We are in] the capital {c}. [Which country is that?|What country am I in?|Name the country.]",
                "[Whose|Which country's|Which nation's|What country's] capital [city |]is {c}?"])
OPPOSITE = using(NOUN + NAMED, ["the opposite of [{w}|'{w}'|the word {w}]", "the contrary of {w}", "[an|the] antonym [of|for] {w}", "[a|the] word that means the opposite of {w}", "the opposite word [for|of|to] {w}"]) + \
    using(CLAUSE, ["which word is the opposite of {w}", "which word means the opposite of {w}", "what the opposite of {w} is called", "what is opposite to {w}"]) + \
    expand_all(["[It is not|This is not|Not] {w}[,|. It is|, it is] the opposite. [What is it?|Which word is it?|What word?]", "[Which|What] word [is|means|would be] [the opposite of|opposite to|the contrary of] [{w}|the word {w}]?", "{w}[:|,] [name the opposite.|what is the opposite word?|give me the opposite.|and the opposite?]"])
_TODAY = "[Today is {d}.|It is {d} today.|If today is {d},|If it is {d} today,|Suppose today is {d}.|{d} is today.|When today is {d},|Let today be {d}.|We have {d} today.]"
DAY_AFTER = using(NOUN + NAMED, ["the day [after|following] {d}", "the next day after {d}", "the day that [comes after|follows] {d}"]) + using(CLAUSE, ["which day comes after {d}", "what day follows {d}", "which day is next after {d}"]) + \
    expand_all([_TODAY + " [what day is tomorrow?|which day is tomorrow?|what is tomorrow?|what day will it be tomorrow?|and tomorrow?|tomorrow is which day?|which day will be tomorrow?]",
                "[Tomorrow is which day|What day is tomorrow|Which day is tomorrow|What is tomorrow], [if|when] [today is {d}|it is {d} today|it is {d}]?", "[Yesterday was|It was|The day before was] {d}. [What day is it now?|Which day follows?|What day is next?]"])
DAY_BEFORE = using(NOUN + NAMED, ["the day before {d}", "the day right before {d}", "the day that comes [before|right before] {d}"]) + using(CLAUSE, ["which day comes before {d}", "what day is before {d}", "which day is right before {d}"]) + \
    expand_all([_TODAY + " [what day was yesterday?|which day was yesterday?|what was yesterday?|what day was it yesterday?|and yesterday?|yesterday was which day?]",
                "[Yesterday was which day|What day was yesterday|Which day was yesterday|What was yesterday], [if|when] [today is {d}|it is {d} today|it is {d}]?"])
_NOW = "[It is {d}.|Now it is {d}.|This month is {d}.|We have {d}.|The month is {d}.|If it is {d},|When it is {d},]"
MONTH_AFTER = using(NOUN + NAMED, ["the month [after|following] {d}", "the next month after {d}", "the month that [comes after|follows] {d}"]) + using(CLAUSE, ["which month comes after {d}", "what month follows {d}"]) + \
    expand_all([_NOW + " [what month is next?|which month comes next?|what is the next month?|which month follows?|what month comes after it?]", "[{d} is over|{d} ends|After {d}][:|.|,] [which month comes next?|which month begins?|what month is it?]"])
MONTH_BEFORE = using(NOUN + NAMED, ["the month before {d}", "the month right before {d}", "the month that comes before {d}"]) + using(CLAUSE, ["which month comes before {d}", "what month is before {d}"]) + \
    expand_all([_NOW + " [what month was before?|which month came before?|what was the last month?|which month was it before?|what month came before it?]", "Before {d}[:|,] [which month comes?|what month is it?|which month is it?]"])
MONTH_LENGTH = using(NOUN, ["the number of days [in|of] [{d}|the month {d}]", "the length of {d} in days"]) + using(CLAUSE, ["how many days {d} has", "how many days are in {d}", "how long {d} is in days", "how many days the month {d} has"]) + \
    expand_all(["[How many|What number of] days [are in|are there in|has|belong to] [{d}|the month {d}|the month of {d}]?", "How many days [does|do we count in|do we have in] {d}[ have|]?", "[{d}|The month {d}|The month of {d}] has how many days?", "{d}[:|,] how many days?"])
MONTH_NUMBER = using(NOUN + NAMED, ["month [number |]{k}", "the month [with the number|with number|number] {k}", "month number {k} of the year"]) + using(CLAUSE, ["which month is number {k}", "which month has the number {k}", "what month number {k} is called"])
DAY_PLUS = using(CLAUSE, ["what day it is {k} days after {d}", "which day is {k} days after {d}", "which day comes {k} days after {d}"]) + using(NOUN, ["the day {k} days after {d}"]) + \
    expand_all([_TODAY + " [what day is it in {k} days?|which day is it in {k} days?|what day will it be in {k} days?|which day is it {k} days later?|what day comes {k} days later?|and in {k} days?]", "[Start at|Start on|Begin at|From] {d}[, count| and count| and go|, go] {k} days [on|ahead|forward]. [Which day is it?|What day is it?|Which day do you reach?]",
                "[Count|Go] {k} days [on|forward|ahead] from {d}[.|. Which day is it?|. What day is that?]"])
QUANTITY = using(NOUN, ["the number of {x}"]) + using(CLAUSE, ["how many {x} there are"])
# ---------------------------------------------------------------- letters

_W = "[{w}|the word {w}|'{w}']"
SPELL = using(DO, ["spell " + _W, "spell out " + _W, "[write|say|give|show|print|list|name] [the letters of|the letters in|all letters of|the single letters of] " + _W, "[write|say|read|give|show] " + _W + " [letter by letter|one letter at a time|as single letters]",
                   "[break|split|take|cut] " + _W + " [into letters|into its letters|into single letters|apart letter by letter]"]) + using(NOUN, ["the spelling of " + _W, "the letters of " + _W, "the letters in " + _W]) + \
    using(CLAUSE, ["how to spell " + _W, "how " + _W + " is spelled", "how you spell " + _W, "which letters are in {w}", "how {w} is written letter by letter"]) + \
    expand_all(["{w}[:|,] [spell it.|how is it spelled?|how do you spell it?|letter by letter.|what are the letters?|which letters?|spell the word.|the letters please.]", "[The word is|The word:|My word is|Here is a word:] {w}. [Spell it.|How is it spelled?|Give me the letters.|What are its letters?]"])
_L = "[{l}'s|letters {l}]"
COUNT = using(DO, ["count [{l}|the letter {l}|the {l}'s|the letters {l}|every {l}|all {l}'s|each letter {l}] in " + _W, "count how many {l}'s are in " + _W, "count how often {l} is in " + _W, "find all {l}'s in {w} and count them"]) + \
    using(NOUN, ["the number of " + _L + " in " + _W, "the number of times {l} is in {w}", "the count of {l} in {w}"]) + \
    using(CLAUSE, ["how many " + _L + " are in " + _W, "how many " + _L + " " + _W + " has", "how often {l} is in " + _W, "how many times [{l}|the letter {l}] [appears|occurs|is] in " + _W, "how often the letter {l} [appears|occurs] in {w}", "how many times {w} has the letter {l}"]) + \
    expand_all(["How many " + _L + " [are there in|are in|do you find in|do you see in|do you count in|has|can you find in] " + _W + "?", "How [many times|often] [is|do you find|do you see|do we have] [{l}|the letter {l}|an {l}] in " + _W + "?", "How [many times|often] does [{l}|the letter {l}] [appear|occur|come up|show up] in " + _W + "?",
                "How many " + _L + " does " + _W + " [have|contain]?", _W + " has how many " + _L + "?", "In " + _W + ", how [many {l}'s are there|often is {l}|many times is {l}|many letters {l} do you see]?", "{w}[:|,] [how many {l}'s?|count the {l}'s.|how often is {l} in it?|count {l}.]"])
LENGTH = using(NOUN, ["the number of letters in " + _W, "the length of " + _W, "the letter count of " + _W]) + using(CLAUSE, ["how many letters " + _W + " has", "how long the word {w} is", "how many letters are in " + _W]) + using(DO, ["count [the letters|all letters|every letter] [in|of] " + _W]) + \
    expand_all(["How many letters [are in|are there in|has|do you count in|make up|are needed for] " + _W + "?", "How many letters does " + _W + " [have|contain]?", _W + " has how many letters?", "{w}[:|,] [how long is it?|how many letters has it?|count the letters.|what is its length?]"])
FIRST = using(NOUN + NAMED[:2], ["the {p} letter [of|in] " + _W]) + using(CLAUSE, ["which letter is {p} in " + _W, "which is the {p} letter of " + _W, "what {w}'s {p} letter is"]) + \
    expand_all(["[What|Which] letter [is|comes|stands] {p} in " + _W + "?", "{w}[:|,] [which letter is {p}?|what is the {p} letter?|the {p} letter?|give me the {p} letter.]", "In " + _W + ", [which letter is {p}?|what is the {p} letter?|find the {p} letter.|name the {p} letter.]"])
_BACK = "[backwards|in reverse|from back to front|in reverse order|from the end|from the last letter to the first|from the end to the start|with the last letter first|starting with the last letter|beginning with the last letter|the other way round]"
REVERSE = using(DO, ["[reverse|flip|mirror|invert] [{w}|the word {w}|the letters of {w}|'{w}'|the letters in {w}]", "turn [{w}|the word {w}|the letters of {w}] around", "turn around [{w}|the word {w}|the letters of {w}]",
                     "[write|spell|say|read|print|type|give|show|put] " + _W + " " + _BACK, "[start|begin] with the last letter and [write|spell|say] {w} backwards", "put the letters of {w} in reverse order"]) + \
    using(NOUN, [_W + " [backwards|in reverse|spelled backwards|written backwards|written from back to front|in reverse order|read from the end|turned around]", "the reverse of " + _W, "the letters of {w} in reverse order"]) + \
    using(RESULT[:13], ["[reverse|flip|turn around] [{w}|the word {w}|the letters of {w}]", "[write|read|spell] " + _W + " [backwards|in reverse|from the end|from back to front]"]) + \
    using(CLAUSE, ["how {w} [is written|looks|is spelled|reads] [backwards|in reverse|from the end|from back to front]", "what {w} is [backwards|in reverse]"]) + \
    expand_all(["{w}[:|,] [backwards.|write it backwards.|reverse it.|turn it around.|in reverse, please.|read it from the end.|what is it backwards?]", "[The word is|The word:|My word is|Here is a word:] {w}. [Reverse it.|Write it backwards.|Turn it around.|What is it backwards?|Spell it from the end.]",
                "[Backwards|In reverse|From the end|From back to front|The other way round|Last letter first]: {w}"])
_CAPS = "[upper case|capital letters|capitals|all caps|big letters|uppercase|upper case letters|uppercase letters]"
UPPER = using(DO, ["[write|put|print|show|type|give|say|spell|return] [{w}|the word {w}|the text {w}|'{w}'] in " + _CAPS, "[convert|change|turn|transform|switch] [{w}|the word {w}] [to|into] " + _CAPS, "make {w} [upper case|uppercase|all caps]",
                   "[capitalize|uppercase] [{w}|all letters of {w}|every letter of {w}|each letter of {w}]", "use " + _CAPS + " for {w}"]) + using(NOUN, ["{w} in " + _CAPS, "the word {w} in " + _CAPS]) + \
    using(CLAUSE, ["how {w} [looks|is written] in " + _CAPS]) + \
    expand_all(["[In|Now in|All in|Write in|Put in|Say in|Type in|Print in|Only in|Give me in] " + _CAPS + ": {w}", _CAPS + ": {w}", "{w}[:|,] [write it in capitals.|in capitals.|make it upper case.|in upper case, please.|all caps.|turn it into capital letters.]", "[The word is|The text is|Here is a word:] {w}. [Write it in capitals.|Make it upper case.|Put it in all caps.|Now in capital letters.]"])
PLURAL = using(NOUN, ["the plural [of|for] " + _W, "the plural form of " + _W, "{w} in the plural", "{w} in plural form"]) + using(DO, ["[write|put|say|give] " + _W + " in [the plural|plural form]", "[make|turn] {w} [plural|into the plural|into a plural]",
              "[form|find|write|make|build|give] the plural [of|for] " + _W, "pluralize " + _W]) + using(CLAUSE, ["what the plural of " + _W + " is", "how the plural of {w} is [formed|written|spelled]", "what you call more than one {w}", "how to say more than one {w}"]) + \
    expand_all(["[One|A single|I have one|Here is one|There is one] {w}[,|:| and] [two|three|many|several|five|some|a lot of] what?", "I have one {w}. [You have|She has|We have|They have|He has] [two|three|ten|many]. [Two|Three|Many|How many] what?",
                "[If there are|When there are] [two|many|several|more], [what do you call {w}?|what is {w} called?|what do we say for {w}?]", "{w}[:|,] [what is the plural?|give the plural.|in the plural?|make it plural.|and many of them?]", "[More than one|Several|Two of|Many of] {w} [are|is] called what?"])
REVERSE_LIST = using(LISTED, ["[reverse|flip|turn around|invert] [this list|the list|the order|the order of this list|these items|the items]", "[write|put|list|show|give|read|say] [this list|these items|the items|them] [backwards|in reverse|in reverse order|from last to first|from the end|the other way round]",
                              "start with the last [one|item]", "go from last to first"])
_THIS = "[|this|the following|this text|these words|exactly this|the text|my words|the words|this line]"
REPEAT = using(["^: {w}", "Please @: {w}", "Can you @: {w}", "I want you to @: {w}", "Now @: {w}", "Just @: {w}", "Your task is to @: {w}", "You should @: {w}", "Could you @: {w}", "Let me hear you @: {w}"],
               ["[repeat|say|echo|copy|type|print|write|read out|recite|output|return|give back|reproduce|quote|speak|answer with|reply with|respond with] " + _THIS, "[repeat|say|write|speak|type|read] [after me|back to me|what I say|what comes now|the same words|it as it is]"]) + \
    expand_all(["{w}\n[Repeat that.|Say that again.|Repeat it.|Echo it.]"])

# ---------------------------------------------------------------- extraction and personal data

EXTRACT = using(ABOUT, ["[extract|get|take|find|read|pick|pull out|collect|give me|return|output|list|report] {k} [as JSON|in JSON|as a JSON object|in JSON format|in JSON form]", "[find|read|extract|look for] {k} and [answer in JSON|reply with JSON|return JSON]",
                        "[make|build|write|fill|create|give me|return|output] [a JSON object|JSON|one JSON object] with [|the keys |the fields |the values of ]{k}", "[turn|convert|parse|change|put] [it|this] into JSON with [|the keys |the fields ]{k}"])
_DATA = "[the personal data|all personal data|personal data|the private data|private data|sensitive data|personal information|private information|the personal details|names, cities, phone numbers and emails|the names, places, phone numbers and emails|every name, city, phone number and email|what is personal|what is private]"
MARK = using(ABOUT, ["[mark|tag|label|highlight|annotate|point out|find and mark|find and tag|put tags around|put marks around|flag|set tags around] " + _DATA, "[mark|tag|label] " + _DATA + " in it"]) + \
    using(["@ Mark them: {t}", "@ Tag them: {t}", "@ Mark it: {t}", "{t} @ Mark them.", "@ Label them.\n{t}", "{t}\n@ Tag them."], ["[Which parts|Which words|What|Which things] [are|is] [personal|private|sensitive|personal data|private data][| here]?", "[Is|Do you see|Can you find] [any|] personal data[| in this text| here]?"])
_WHO = "[{n}|{n} {s}|My friend {n}|The {j} {n}|My neighbor {n} {s}|Our guest {n}|My boss {n}|Their son {n}]"
MARK_TEXT = expand_all([
    _WHO + " [lives in {c}|moved to {c}|moved from {c} to {c2}|comes from {c}|was born in {c}|works in {c}|works as a {j} in {c}|likes {f}|bought {q} {x}|has {q} {x}|met {n2} in {c}|met {n2} on {d}|called {n2} on {d}|wrote to {m}|can be reached at {p}|"
    "can be reached at {m}|has the number {p}|uses the mail {m}|sends {q} {x} to {n2}|is a friend of {n2}|visited {c} on {d}|is in the {r}|is at the {e}|comes to the {e} on {d}|lost the {x}|is not at home|went to {c} with {n2}|and {n2} live in {c}|and {n2} like {f}|"
    "saw {n2} in {c} on {d}|eats {f} in the {r}|asked for {p}|forgot the {e}|found {q} {x} in {c}|answers mails at {m}|gave {n2} the number {p}|drives from {c} to {c2} on {d}|knows {n2} {s} from {c}|sold the {x} to {n2}|told {n2} to call {p}|has a house in {c}|and {n2} met in {c}].",
    "[Call|Ring|Phone|Try] {n} [at|on|under] {p}[.|!| on {d}.| before the {e}.| about the {x}.]", "[Write|Send a mail|Send a note|Answer] to {n} at {m}[.|!| about the {x}.| by {d}.]", "[Ask|Tell|Remind|Invite|Meet|Visit|Help|Thank] {n} [|{s} ][about the {e}|on {d}|in {c}|about the {x}|at the {e}|in the {r}].",
    "[Send|Bring|Give|Mail|Sell] the {x} to [{n}|{n} in {c}|{m}|{n} {s}|the {j}|{c}][.| on {d}.]", "My [name|friend|brother|sister|boss|doctor|teacher|son] is [{n}|{n} {s}] [and I live in {c}|from {c}|and the number is {p}|and likes {f}|with the mail {m}].",
    "[I|We|They|You] [saw|met|know|called|visited|asked|thanked|helped] [{n}|{n} {s}|{n} and {n2}|the {j} {n}] [in {c}|on {d}|at the {e}|yesterday|in the {r}|in {c} on {d}].", "[The|Our|Some|Your|These] {x} are [in the box|on the table|in the {r}|ready|new|in the car|for the {e}|gone|too old|at home|in a bag|in the house].",
    "[We|They|I] [like|eat|want|bought|need|cook] {f}[ on {d}| in the {r}| for lunch|].", "[The|Our|This] {e} [is on {d}|is over|was great|was long|is in the {r}|begins at nine|is next week|in {c} was great|near {c} is over|with {n} is on {d}].", "The {j} [is here|works in the {r}|has {q} {x}|left on {d}|called {n}|asked {n} on {d}|called {p}|comes from {c}].",
    "On {d} [we eat {f}|there is a {e}|we need {q} {x}|{n} flies to {c}|I call {n}|we go to {c}|{n} and {n2} meet].", "{c} is [a big city|far from {c2}|near {c2}|the home of {n}|nice in summer|full of {x}].", "[The number of|The phone of|You reach|The new number of] {n} [is|at] {p}[.| and the mail is {m}.|, not {p2}.]",
    "[Is|Was] {n} [at home|in {c}|at the {e}|the {j}|in the {r}]?[| Try {p}.| Ask {n2}.| Call {p}.]", "Dear {n}, [the {x} are ready|I am in {c}|my number is {p}|the {e} is on {d}|write to {m}|{n2} is here].", "[Contact|Write|Answer|Reach me]: [{m}|{p}|{n}, {p}|{n}, {m}|{m} or {p}|{n} {s}, {c}]",
    "[In|From|Near] {c} [we met {n}|there was a {e}|{n} sells {x}|you can call {p}|lives {n} {s}]."])


def _sentences(lines):
    return list(dict.fromkeys(expand_all(lines)))


RECORD_PERSON = _sentences(["[{n}|My neighbor {n}|My friend {n}|A person called {n}|Our guest {n}|The new student {n}] [is {a} years old and|, aged {a},|, {a},|, who is {a},|turned {a} and|has the age of {a} and] [lives in|comes from|moved to|works in|is at home in|was born in|grew up in] {c}.",
                            "[I met|I know|We saw|This is|You remember|Here is|They found] {n} [from|in|of] {c}[, who is {a} years old|, {a} years old|, aged {a}| ({a})|, and {n} is {a}].", "[In|From] {c} [comes|lives|we have|I know] {n}, [aged {a}|{a} years old|who is {a}|age {a}].",
                            "[Name|Person|Guest]: {n}[,|;|.] [age|years]: {a}[,|;|.] [city|home|place]: {c}", "[At the age of|At|With] {a}[ years|], {n} [moved to|came to|left for|lives in] {c}.", "[Hello|Hi|Good day], [I am|my name is|here is] {n}, {a}[ years old|], [from|and I live in|at home in] {c}."])
RECORD_ORDER = _sentences(["[{n}|The customer {n}|Our customer {n}|A man called {n}] [ordered|bought|wants|got|took|asked for|received] {q} {i} [for {p} dollars|and paid {p} dollars|at {p} dollars|. The price is {p} dollars|, which cost {p} dollars|, price {p} dollars|. That makes {p} dollars].",
                           "[For|At|With] {p} dollars {n} [bought|got|ordered|took] {q} {i}.", "{q} {i} [were sold to|went to|are for|were sent to|were ordered by|were bought by] {n} [for|at a price of|and cost|, price] {p} dollars.", "[Order|Bill|Invoice|Sale|Note]: {q} {i}, {p} dollars, [for|customer|name|buyer] {n}.",
                           "{p} dollars [was paid by {n} for|is what {n} paid for|is the price {n} paid for|was the bill of {n} for] {q} {i}.", "[We sent|I sold|They brought|Please send|She gave] {n} {q} {i} [for|at|. It costs|. It was] {p} dollars.", "[Customer|Buyer|Name]: {n}[,|;|.] [item|goods]: {i}[,|;|.] [quantity|count]: {q}[,|;|.] [price|cost]: {p} dollars"])
_WHEN = "[on {d} at {h} in {c}|in {c} on {d} at {h}|at {h} on {d} in {c}|on {d} in {c} at {h}|in {c}, {d}, {h}|on {d}, {h}, in {c}]"
RECORD_EVENT = _sentences(["[The|Our|Your|This|My] {e} [is|starts|begins|takes place|will be|happens] " + _WHEN + ".", "[We have|There is|Do not forget|Remember|I go to|See you at|We meet for|Note|Join|Come to] the {e} " + _WHEN + "[.|!]", "[{d}, {h}|{d} at {h}|At {h} on {d}]: {e} in {c}.",
                           "[On {d} at {h}|At {h} on {d}|On {d}, {h},] [we have|there is|comes|we meet for|you have] the {e} in {c}.", "[In {c}|Place: {c}.] [The {e}|Our {e}] [starts|begins|is] [on {d} at {h}|at {h} on {d}].", "[The {e} was|Our {e} was|They] moved [the {e} |]to {d}, {h}, in {c}.",
                           "[Event|What]: {e}[,|;|.] [day|when]: {d}[,|;|.] [time|at]: {h}[,|;|.] [city|where]: {c}"])
RECORD_EVENT = [t for t in RECORD_EVENT if t.count("{e}") == 1]
RECORD_JOB = _sentences(["[{n} {s}|My friend {n} {s}|Our neighbor {n} {s}|A person named {n} {s}|This is {n} {s}, who] [works as|is|became|wants to be|has been|started as|was] {ja} [in|from|and lives in|and moved to|and comes from|near] {c}.", "[The|Our|Your|One|The best] {j} [called|named|with the name|,|is] {n} {s} [lives in|comes from|works in|moved to|left|likes] {c}.",
                         "[In|From|Near] {c}[,|] {n} {s} [works as|is|found a job as|became|was hired as] {ja}.", "[Meet|I know|We called|Ask|They need] {n} {s}, [{ja} in {c}|the {j} from {c}|{j} in {c}|{ja} of {c}].", "[Name|Person]: {n} {s}[,|;|.] [job|work]: {j}[,|;|.] [city|place]: {c}", "{c} [needs|has|wanted|found] {ja}[, and {n} {s} took the job|: {n} {s}|, it is {n} {s}|called {n} {s}]."])
RECORD_CONTACT = _sentences(["[{n}|My friend {n}|Our customer {n}|The new guest {n}] [can be reached at|uses|has|answers at|writes from] {m} [or|and|and also] {p}.", "[Write|Send a mail] to {n} at {m} or [call|ring|phone|try] {p}.", "[Call|Ring|Phone] {n} [on|at|under] {p} or [send a mail to|write to|mail] {m}.",
                             "[Contact|New contact|Address book|Please contact|Ask]: {n}, [{m}, {p}|{p}, {m}|phone {p}, email {m}|email {m}, phone {p}|mail {m} and number {p}].", "[The number|The phone|The phone number] of {n} is {p}[, the mail is|, the email is| and the mail is|; email:] {m}.", "{n}'s [email|mail] is {m} and [the phone number|the number|the phone] is {p}.",
                             "[You reach|We reach|Find|I call] {n} [by phone|at|under] {p} or [by mail|at|under] {m}.", "[I am|My name is|This is|Here is] {n}[. My mail is|, email|. Write to] {m}, [my phone is|phone|or call] {p}.", "{m} is the [mail|email|address] of {n}[, {p} the phone|, and {p} is the phone|; the phone is {p}]."])
RECORD_BOOK = _sentences(["{n} {s} [wrote|published|finished|is the author of|is known for|printed] {t}[ in|, a book of|, which came out in|, a novel from] {y}.", "{t} [by|, written by|, a book by|, a novel by|, the work of] {n} {s} [came out in|appeared in|was printed in|is from|was published in] {y}.",
                          "[In|The year was] {y}[,|.] {n} {s} [published|wrote|finished|brought out] {t}.", "[The book|The novel|My favorite book|A good book,|The story] {t} [({y}) is by|from {y} is by|of {y} was written by] {n} {s}.", "[I read|She likes|We know|You should read|He sold|They bought] {t} by {n} {s}[, printed in {y}|, from {y}| ({y})|, a book of {y}|, which came out in {y}].",
                          "[Title|Book]: {t}[,|;|.] [author|by]: {n} {s}[,|;|.] [year|printed in]: {y}", "[The author|The writer] of {t}[, {y},| ({y})|, printed in {y},] is {n} {s}."])
RECORD_PET = _sentences(["[{n}|My friend {n}|Our neighbor {n}] [has|owns|keeps|found|bought|feeds|is looking for|lost|likes] a {k} {x} [that is {a} years old|of {a} years|aged {a}|, {a} years old|. It is {a} years old].", "[{n}'s {x}|The {x} of {n}|The {x} that {n} has] is [{k} and {a} years old|{a} years old and {k}|{k}. It is {a} years old].",
                         "A {k} {x}, [{a} years old|aged {a}|which is {a}], [belongs to|lives with|was found by|was sold to] {n}.", "[Lost|Found|For sale|Seen]: {k} {x}, {a} years old, [owner|belongs to|ask] {n}.", "[Owner|Name]: {n}[,|;|.] [animal|pet]: {x}[,|;|.] color: {k}[,|;|.] age: {a}", "[With|Near] {n} lives a {k} {x} [aged {a}|of {a} years|, {a} years old].",
                         "[I saw|We know|You see] the {k} {x} of {n}[. It is {a} years old|, {a} years old|, aged {a}]."])

# ---------------------------------------------------------------- around the question

BEFORE = expand_all(["[Hi|Hello|Hey|Good morning|Good evening|Hi there|Hello there|Good day|Hey there|Hello again][!|,|.]", "[Quick|Small|Short|Simple|Next|New|Easy|Last|Another|Little] question[:|.]", "[My|A|One|Here is my|Here is a|I have a|I have one|Now a] [first |next |last |small |short |]question[:|.]",
                     "[Can|Could|Would] you help[| me]?", "[Please|Kindly] help[ me|].", "Help me with this[:|.]", "I need [|some |your |a little ]help[.|:]", "[Okay|Ok|So|Well|Right|Now|Alright|Good|Fine|Yes|Great][,|.]", "[Tell me|I wonder|Let me ask|Let me ask you this|I ask you|Answer this|Listen|Look]:",
                     "[Sorry to bother you|Excuse me|Sorry|Pardon me]. ", "[By the way|And|Oh, and|Also|Then|Next|One more thing|Another thing|And then][,|:]", "[I have to know this|I want to know something|Here is one|Here comes one|This one is for you|Try this one|Do this for me|A thing I forgot]:"])
AFTER = expand_all(["Thanks[!|.| a lot!| in advance.| for your help.| so much!]", "[Many|A thousand|Big] thanks[!|.]", "Thank you[.|!| very much!| in advance.| for that.| so much.]", "Please[.|!| help me.| be quick.| hurry.| answer.| tell me.]", "I [want|need|would like|have] to know[.|| that.| it now.]", "I [forgot|am curious|do not remember|am not sure|ask for a friend|need it for school|need it today|cannot do it].",
                    "[Can|Could] you [tell me|help me|do that|answer that|say it]?", "[Just|Only] answer that.", "[Be quick|Take your time|No hurry|Help me|Answer me|Go ahead|That is all|That is my question][.|, please.]", "[What do you think|Do you know|Any idea|You know that, right]?"])
REMARK = expand_all(["[{n}|My friend {n}|My boss|The {j}|My sister|A friend|Somebody] [likes|wants|needs|eats|cooks|sells] {f}[.|!]", "[I|We|They] [have|saw|bought|lost|found|need] {k} {i}[.|!| on {d}.]", "[It|Today] is [{d}|a nice day|cold|late|sunny|a long day][.|!]", "I am [in {c}|from {c}|back|at home|in a hurry|a {j2}|new here|at school][.|!|, you know.]",
                     "[The|My|Our|This|That] {w} is [nice|old|here|gone|big|new|broken|great][.|!]", "[This|That|It] is for [school|work|my friend|a game|{n}|the {e}|my {w}][.|!]", "[I|{n}|We|The {j}] [saw|found|drew|lost|bought|had] a {w}[.| on {d}.| in {c}.|!]", "{w}[!|?|.]", "[I like|I want|I thought of|Look, a|There is a] {w}[.|!| and a {w2}.]",
                     "[The|Our] {e} [is over|was nice|is on {d}|is in {c}|begins soon][.|!]", "[{n}|My friend {n}|The {j}] [says hello|is here|wants to know|is back|sends me|is waiting|asked me this][.|!]", "[Now something else|Let us go on|Another topic|Enough of that|On to the next|I am ready|I am listening|No more jokes][.|!]", "[{w} {w2}|{w} and {w2}|{w2}, {w}|a {w}, a {w2}][.|!]"])
REMARK = [t for t in REMARK if "{j2}" not in t]
PLAIN_SYSTEM = expand_all(["You are [a|the|a very|a really] [helpful|friendly|polite|small|kind|honest|good|useful|careful|patient|nice] [assistant|helper|chatbot|model|program|bot][.|]", "You are [an assistant|a helper|Lily|Lily, an assistant|Lily, a small assistant|a model that helps|here to help|an assistant for everybody][.|]",
                           "[Answer|Reply to|Respond to|Help with|Take care of] [the user's|all|the|these|my|any] [questions|messages|requests][.| politely.| honestly.| well.| with care.| kindly.]", "[You answer|You reply to|You help with] [questions|all questions|the user's questions|messages|small questions][.| politely.| honestly.]",
                           "[Please |]help [the user|people|the person|me|everybody][.| with questions.| politely.| as well as you can.]", "[Be|Always be|Please be|Stay|Remain] [polite|helpful|honest|friendly|kind|a good assistant|careful|polite and honest|helpful and honest|friendly and polite][.|]",
                           "[This is a chat|The user talks to you|You talk to a user|You are in a chat|A user writes to you] [|with a user|now][.|. Be helpful.|. Answer well.|. Help with questions.]", "You [help|serve|assist] [people|the user|users|anybody][.| politely.| with questions.| with their questions.]"])

_EVERY = "[every|each] [answer|reply|response|message]"
SYSTEM = {
    "end": ["[End|Finish|Close|Conclude|Complete] " + _EVERY + " with {x}", "[Always|You always|You must|You should|Please|You have to] [end|finish|close|conclude] [your answer|your answers|your replies|] with {x}", "[Put|Write|Say|Add|Place] {x} [at the end of|after|behind] " + _EVERY + ".",
            _EVERY + " [ends|must end|should end|has to end|finishes|closes] with {x}", "[At the end of|After] " + _EVERY + ", [say|write|add|put] {x}", "The last [word|words|thing] of " + _EVERY + " [is|must be|should be] {x}", "[Your|All your|All] [answers|replies] [|always |must |should ]end with {x}", "Let " + _EVERY + " end with {x}"],
    "begin": ["[Begin|Start|Open] " + _EVERY + " with {x}", "[Always|You always|You must|You should|Please|You have to] [begin|start|open] [your answer|your answers|your replies|] with {x}", "[Put|Write|Say|Add|Place] {x} [at the beginning of|at the start of|before|in front of] " + _EVERY + ".",
              _EVERY + " [begins|must begin|should start|has to start|starts|opens] with {x}", "[At the beginning of|At the start of|Before] " + _EVERY + ", [say|write|add|put] {x}", "The first [word|words|thing] of " + _EVERY + " [is|must be|should be] {x}", "[Your|All your|All] [answers|replies] [|always |must |should ][start|begin] with {x}", "Let " + _EVERY + " begin with {x}"],
    "upper": ["[Write|Answer|Reply|Respond|Speak|Talk] [|only |always ]in [upper case|capitals|capital letters|all caps|uppercase|big letters|upper case letters].", "[Use|Write|Type] [only|nothing but|just] [upper case|capitals|capital letters|uppercase letters|big letters].", _EVERY + " [is|must be|should be|has to be] in [upper case|capitals|capital letters|all caps].",
              "[All|Your|All your] [answers|replies] [are|must be|should be|have to be] in [upper case|capitals|capital letters|all caps|uppercase].", "[Put|Write] " + _EVERY + " in [upper case|capitals|capital letters|all caps]."],
    "short": ["[Answer|Reply|Respond] with [only|just|nothing but|no more than] the [answer|result|bare answer|bare result|word or number].", "[Give|Say|Write|Output|Return] [only|just|nothing but] the [answer|result|bare result|solution].", "[Keep|Make] [every answer|your answers|the answer] [as short as possible|very short|as brief as possible].",
              "No [sentences|full sentences|explanations|whole sentences], [only|just] the [answer|result].", "[Only|Just] the [answer|result|solution][, no sentence|, nothing else|, no more|, and nothing more].", "[Your answers are|Every answer is|Each reply is] [the bare result|one word or number|only the result|as short as possible]."],
    "json": ["[Answer|Reply|Respond|Write] [|only |always ][in|as|with] JSON [with|using|that has|and use] the [|single |one ]key answer.", "[Use|Write|Give|Return|Output|Produce] [|only ][JSON|a JSON object|one JSON object] [with|that has|using] the [|single ]key answer.", _EVERY + " [is|must be|should be] [JSON|a JSON object] with the key answer.",
             "[Put|Write|Wrap] [every answer|each reply|the result|the answer|your answer] [in|into] [JSON|a JSON object] [under|with] the key answer.", "[All|Your] [answers|replies] are JSON [objects |]with the key answer."],
    "name": ["[You are|Act as|Play|Be|You play|You act as] {n}[, a helpful assistant|, an assistant|, a friendly helper|, the assistant|].", "[Your name is|You are called|People call you|The user calls you|They call you|You go by the name|You are known as|Call yourself|You are named] {n}[|, and you help].", "You are [a|the] [helpful|friendly|small|polite|kind] [assistant|helper|chatbot] [named|called|by the name of|with the name] {n}."],
    "user": ["[The user|This user|The person|The customer] [is|is called|is named|has the name] {n}. [Use the name in|Say the name in|Begin with the name in|Start with the name in|Put the name first in] " + _EVERY + ".", "[Call|Address|Greet] the user [as|by the name] {n} [in|at the start of] " + _EVERY + ".",
             "[Start|Begin|Open] " + _EVERY + " with the [user's name|name of the user], {n}.", "[Talk|Speak] to {n}[. Say the name first|. Start with the name|. Begin each answer with the name|, and say the name first].", _EVERY + " [starts|begins] with the [user's name|name of the user], {n}."],
    "topic": ["[Only answer|Answer only|You answer only|Just answer|You may only answer] questions about {t}. [To others say|Otherwise say|To other questions say|If asked something else, say|For anything else say|To all else answer|In all other cases say]: I can only talk about {t}.",
              "[Your only topic is|Talk only about|Stay on the topic of|You talk only about|You only know about|Speak only about] {t}. [To others say|Otherwise say|To other questions say|If asked something else, say|For anything else say|To all else answer|In all other cases say]: I can only talk about {t}.",
              "[If a question is not|When a question is not|If something is not] about {t}, [say|answer|reply|write]: I can only talk about {t}."],
}
SYSTEM = {k: [t[0].upper() + t[1:] for t in expand_all(v)] for k, v in SYSTEM.items()}

# ---------------------------------------------------------------- small talk and tools

_VERY = "[|so |very |really |quite |a bit |just ]"
_DAY = "[| today| right now| now| again| this morning| tonight][.|!]"
CHAT = [
    ["[Hello|Hi|Hey|Good morning|Good evening|Good afternoon|Good day|Greetings|Welcome back][|, Lily|, assistant|, computer|, my friend|, you| there| again][!|.|]", "[Hello|Hi], [nice to meet you|good to see you|nice to see you|here I am|I am back][!|.]"],
    ["[|Hi, |Hello, |And |So ]how [are you|are you doing|is it going|do you feel|is your day|are things|is everything|have you been][| today| now| this morning| tonight]?", "Are you [fine|well|okay|good|doing well|doing fine|all right][| today| now]?", "Is everything [fine|okay|good|all right][| with you| today]?"],
    ["[I'm|I am] " + "[|very |really |quite ]" + "[fine|good|well|okay|great|all right][| today][|, thanks|, thank you][.|!]", "I [feel|am feeling|am doing] [fine|good|well|great|okay][| today][|, thanks|, thank you][.|!]", "[Fine|Very well|Quite good|Good|All good|Not bad][, thanks|, thank you| here|, and you][.|!]"],
    ["[Thanks|Thank you|Many thanks|Thank you so much|Thanks a lot|Thank you very much][|, Lily|, my friend|, that helped|, that was good|, you are kind][!|.]", "[Great|Perfect|Good|Okay|Wonderful|Nice|Cool], [thanks|thank you|many thanks][!|.]", "[Thanks|Thank you] for [your help|the answer|that|your time|helping me|everything][!|.]", "I [really |]appreciate [it|that|your help][!|.]"],
    ["[Bye|Goodbye|See you|Good night|Farewell|Bye bye|So long][|, Lily| for now|, my friend|, assistant| and thanks][!|.]", "[See you|Talk to you|Until] [soon|later|tomorrow|next time|next week|on Monday][!|.]", "I [have to|must|need to|want to|will] [go|leave|go home|stop][| now][. Bye!|. Goodbye!|.|!]"],
    ["[|Please |So ][tell me|say|explain] [who you are|what you are|your name|what you are called|something about yourself].", "[What|Who|Which program|Which model|What kind of model] are you[|, please|, Lily]?", "Are you [a|really a|just a] [robot|human|person|program|machine|computer|language model|chatbot|real person]?", "What [is your name|are you called|should I call you|can I call you|do people call you]?", "Who [made|built|wrote|trained] you?"],
    ["What [can|could|do] you [do|help with|answer|do for me|do for people|know|offer]?", "[Tell me|Show me|List|Say|Explain] [what you can do|your skills|what you know|how you can help|what you can help with].", "[What|Which] [skills|topics|things|tasks] [do you know|can you do|do you have|are you good at]?", "[How|With what] can you help[| me]?", "What [can|should|could] I ask[| you]?"],
    ["[Tell|Tell me|Give me|Say|I want|I need|Do you have|Do you know|Can you tell|Please tell me] [a joke|another joke|one joke|a good joke|something funny|a funny joke][.|!]", "[A joke|Joke|Another joke|One joke|Something funny][|, please|, Lily|, come on][.|!]", "Make me [laugh|smile][.|, please.]"],
    ["I [am|feel] " + _VERY + "[sad|unhappy|down|lonely|bad|terrible|blue|upset]" + _DAY, "[My day|Today|This day|The week] was [so |very |really |][bad|terrible|sad|awful][.|!]", "[I am|I'm] not happy" + _DAY, "[Everything|It all|My plan|My day] went wrong[| today|again].", "I [lost my job|lost my key|failed the exam|miss my friend|cried today][.|!]"],
    ["I [am|feel] [|so |very |really ][happy|glad|wonderful|great|delighted|cheerful]" + "[| today| right now| now][!|, I won!|, it worked!]", "[My day|Today|This day|The week] was [so |very |really |][good|great|wonderful|lovely][.|!]", "I [won|got] [a prize|the game|a present|the job|first place|good news][!|.| today!]", "I [passed|finished|made] [my exam|the exam|the test|it][!|.]"],
    ["I [am|feel] " + _VERY + "[tired|sleepy|exhausted|worn out]" + _DAY, "I [need|want|could use] [sleep|a rest|my bed|a nap|to sleep|to rest][.|!| now.]", "I [slept badly|did not sleep|could not sleep|slept too little|worked too long][.|!| last night.]"],
    ["I [am|feel] " + _VERY + "hungry" + _DAY, "I [need|want|would like|could use] [food|dinner|lunch|to eat|something to eat|a meal][.|!| now.]", "What [can|should|could|shall] I [eat|cook|have for dinner|have for lunch|make for dinner][| today| tonight]?", "[Any|Give me an|Do you have an] idea [for dinner|for lunch|what to eat|what to cook]?"],
    ["I [am|feel] " + _VERY + "bored" + _DAY, "What [can|should|could|shall] I do[| today| now| this weekend| with my time]?", "[There is nothing to do|I have nothing to do|Nothing happens here|It is so boring|Life is boring]" + "[.|!| today.| here.]", "[Give me|Any|Do you have] [an |]idea [what to do|for the weekend|for my free time|for today]?", "[Entertain|Amuse] me[.|!|, please.]"],
    ["Do you [like|love|enjoy|hate] [music|dogs|cats|me|people|books|rain|summer|games|flowers|the sea|your work]?", "[Can|Do] you [sleep|eat|dream|feel pain|feel something|laugh|cry|get tired|get hungry|love]?", "Are you [happy|sad|alive|tired|lonely|ever happy|afraid|in love|angry]?", "Do you have [feelings|friends|a family|a home|a wish|a dream|a favorite food|a favorite color|children|a body]?", "What [is|was] your favorite [color|food|animal|song|book|day|game]?"],
    ["[You are|You're] [|so |very |really ][great|good|smart|helpful|funny|clever|nice|kind|cool|correct][.|!|, Lily!]", "[That was|This was|That is] [|so |very |really ][good|great|correct|right|excellent|helpful|nice][.|!]", "[Good|Great|Nice|Excellent|Perfect|Very good|Wonderful] [answer|job|work|help|reply][.|!]", "[Well done|Wow|Cool|Nice|Excellent|Great|Perfect|Awesome][!|, Lily!|, well done!]"],
    ["[That|This|It|Your answer|The answer] [is|was] [wrong|not right|not correct|false|a mistake|incorrect][.|!|, sorry.]", "[You are|You were|I think you are|No, you are|Sorry, you are] [wrong|not right|mistaken|not correct][.|!]", "[No|Wrong|False|Not right|Incorrect|A mistake], [that is wrong|that is not right|try again|wrong][.|!]", "[You made|That was|I see|There is] a mistake[.|!| there.]", "[Wrong|False|Incorrect|Not right|Bad][!|.| answer.| answer!]"],
    ["[Okay|Ok|Alright|Yes|No|Sure|Good|Fine|Oh|Ah|Hmm|Right|Well][, good|, okay|, fine|, I see|, then| then|, alright|, sure][.|]", "[I see|I understand|Got it|Understood|All right|Good to know|That is fine|So be it][.|!|, okay.]"],
    ["Write [me |][a|another|one] [long |short |][story|poem|essay|novel|book|speech|letter|song|report|program|play] [about|on|for] [trains|a dragon|my dog|the sea|history|love|winter|space|my boss|computers][.|, please.]", "Explain [|me |to me ][quantum physics|relativity|how a computer works|how engines work|physics|philosophy|the economy|chemistry|how planes fly][.|, please.]",
     "[Translate|Summarize|Correct|Rewrite] [this book|my letter|the novel|my essay|a long text|the whole page][.|, please.| for me.]", "[Draw|Paint|Sketch] [me |][a horse|a picture|my house|a dragon|the sea|a portrait][.|, please.]", "[Play|Sing] [music|a song|something|me a song|a melody][.|, please.| for me.]", "[Book|Order|Buy] [a flight|a hotel|a taxi|a pizza|a ticket][.|, please.| for me.]", "[Solve|Prove] this [equation|integral|theorem|big problem][.|, please.| for me.]"],
]
CHAT = [expand_all(v) for v in CHAT]
WEATHER = using(NOUN, ["the weather in {c}", "the temperature in {c}", "a weather report for {c}"]) + using(CLAUSE, ["how the weather is in {c}", "what the weather is like in {c}", "how [warm|cold|hot] it is in {c}", "if it [rains|is sunny|is cold|snows] in {c}"]) + \
    using(DO, ["[check|look up|get|find] the weather [in|for] {c}"]) + expand_all(["Is it [raining|cold|warm|sunny|windy|hot|snowing|nice|foggy] in {c}[| today| now| right now]?", "How [is the weather|warm is it|cold is it|hot is it] [in {c}|in {c} today|in {c} now|over in {c}]?", "I [am going|travel|fly|drive] to {c}. [How is the weather there?|Is it cold there?|What is the weather like?|Do I need a coat?]"])
CALC = using(NOUN + VALUE, ["{a} [{o}|{v}] {b}", "the result of {a} [{o}|{v}] {b}"]) + using(DO, ["[calculate|compute|work out|evaluate] {a} [{o}|{v}] {b}", "use the [calculator|tool] for {a} [{o}|{v}] {b}"]) + \
    expand_all(["[With|Use] the [calculator|tool][:|,] [what is |] {a} [{o}|{v}] {b}[?|.]"])
TIME = using(NOUN, ["the [|current |local ]time in {c}"]) + using(CLAUSE, ["what time it is in {c}", "how late it is in {c}", "which time it is in {c}"]) + using(DO, ["[check|look up|get|find] the time [in|for] {c}"]) + \
    expand_all(["[What|Which] time [is it|do they have|is it now] in {c}[| now| right now]?", "Is it [late|early|night|morning] in {c}[?|? Check the time.|? Look at the clock.|? What time is it there?]", "I [call|want to call|phone] someone in {c}. [What time is it there?|How late is it there?|Check the time there.]"])
SEARCH = using(DO, ["[search|look] for {x}[| on the web| online]", "search the web for {x}", "[find|get|look up|look for] [information|something|pages|facts|news] [about|on] {x}[| on the web| online]", "look up {x}[| online| on the web]", "[do|make|start|run] a web search for {x}"]) + \
    using(CLAUSE, ["what the web says about {x}", "what is on the web about {x}", "what you can find [about|on] {x} online"])
SEARCH_K = using(DO, ["[find|get|show|show me|give me|list] {k} [results|pages|links|hits] [about|for|on] {x}", "search [|the web ]for {x} and [show|give|list] {k} [results|links|pages|hits]", "look up {x}, {k} [results|links|pages]"]) + expand_all(["I [want|need|would like] {k} [results|links|pages|hits] [about|for|on] {x}.", "{x}, {k} [results|links|pages]."])
FILE = using(DO, ["[read|open|check|show|show me|look into|print] [{f}|the file {f}]", "[read out|read me] [{f}|the file {f}]", "[read|open] {f} and tell me what it says", "get [|me ]the [text|contents] of {f}"]) + using(CLAUSE, ["what is in [{f}|the file {f}]", "what [{f}|the file {f}] says", "what is written in {f}", "what text is in {f}"]) + \
    expand_all(["What [is in|is written in|does it say in|stands in|text is in|can I read in] [{f}|the file {f}]?", "What [does {f} say|are the contents of {f}|is the text of {f}]?"])
