# SPDX-License-Identifier: Apache-2.0
"""Skills around the single question: calling tools and answering from their results, system rules, long contexts.

A tool family makes one request: (wording, tool definition, arguments, result text, answer).  Names of tools and parameters vary,
so that the definition has to be read."""
import json

import lexicon as lx
import skills as sk
import wordings as wd
from skills import ask, qa
from wordings import Wordings


def tool(name, description, params, required=None):
    """params: {name: schema}; the OpenAI form, as the chat template expects it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": params, "required": list(params) if required is None else required}}}


def kind(type_, description=None, **more):
    return {"type": type_, **({"description": description} if description else {}), **more}


WEATHER = Wordings(["[What is|What's|How is] the weather in {c}?", "How is the weather in {c}[ today| now|]?", "Is it raining in {c}?", "What is the weather like in {c}?",
                    "Weather in {c}?", "Tell me the weather in {c}.", "Do I need an umbrella in {c}?", "How warm is it in {c}?", "Is it cold in {c}[ today|]?",
                    "Check the weather in {c}.", "What is the temperature in {c}?", "I am going to {c}. How is the weather there?", "Is it sunny in {c} right now?",
                    "Give me a weather report for {c}.", "Can you look up the weather in {c}?", "How hot is it in {c}?", "What's it like outside in {c}?", "Will I freeze in {c}?", "Check if it is cold in {c}.", "Is it warm in {c}?", "Is it windy in {c}?", "Is it snowing in {c}?", "Tell me if it rains in {c}.", "Look up the weather in {c}.", "How is it outside in {c}?", "How cold is it in {c}?", "I fly to {c}. What is the weather like?", "What is the weather report for {c}?", "weather {c}", "Do I need a coat in {c}?", "What is the weather in the city of {c}?", "Temperature in {c}?"], wd.WEATHER, 400)


def weather(ctx, city=None):
    city = city or ctx.city()
    p = ctx.pick(["city", "location", "place"])
    t = tool(ctx.pick(["get_weather", "weather", "current_weather"]), ctx.pick(["Current weather of a city", "Get the weather", "Weather report for a place"]),
             {p: kind("string", ctx.pick([None, "Name of the city"]))})
    text = ctx.word(WEATHER, c=city)
    degrees, state = ctx.rng.randint(-15, 40), ctx.pick(lx.CONDITIONS)
    result = ctx.pick([json.dumps({p: city, "temperature": degrees, "condition": state}), json.dumps({"temp_c": degrees, "sky": state}), f"{degrees} degrees, {state}",
                       f"{city}: {state}, {degrees} C"])
    return text, t, {p: city}, result, f"It is {degrees} degrees and {state} in {city}.", [str(degrees), state]


CALC = Wordings(["[What is|What's] {a} {o} {b}?", "[Calculate|Compute|Work out] {a} {o} {b}.", "{a} {o} {b}", "How much is {a} {o} {b}?", "[What is|What's] {a} {v} {b}?",
                 "Please compute {a} {v} {b}.", "Use the calculator for {a} {o} {b}.", "Can you calculate {a} {o} {b}?", "I need the result of {a} {o} {b}.", "How much is {a} {v} {b}?",
                 "Solve {a} {o} {b}.", "Tell me what {a} {v} {b} is.", "What does {a} {o} {b} equal?", "Find {a} {o} {b} with the tool.", "Find the result of {a} {o} {b}.", "Use the tool for {a} {o} {b}.", "Use a tool: {a} {o} {b}", "With the calculator: {a} {o} {b}", "What is {a} {o} {b}? Use the tool.", "{a} {v} {b}", "Give me {a} {v} {b}.", "Calculate {a} {v} {b} for me.", "Please work out {a} {o} {b}.", "What is the result of {a} {v} {b}?", "Tell me {a} {o} {b}.", "{a} {o} {b} is"], wd.CALC, 400)


def calculator(ctx):
    p = ctx.pick(["expression", "formula", "input"])
    t = tool(ctx.pick(["calculate", "calculator", "compute"]), ctx.pick(["Evaluate an arithmetic expression", "A calculator", "Compute a formula"]), {p: kind("string")})
    a, b = ctx.rng.randint(1, ctx.pick([99, 999, 9999])), ctx.rng.randint(1, ctx.pick([99, 999]))
    op = ctx.pick("+-*")
    if not ctx.test:  # pairs that are held out of the arithmetic skills are not shown here either
        while sk.is_held(dict(zip("+-*", ["sum", "diff", "prod"]))[op], f"{min(a, b)},{max(a, b)}"):
            a, b = a + 1, b + ctx.rng.randint(0, 9)
    word = {"+": "plus", "-": "minus", "*": "times"}[op]
    text = ctx.word(CALC, a=a, b=b, o=op, v=word)
    value = a + b if op == "+" else a - b if op == "-" else a * b
    expression = f"{a} {op} {b}"
    result = ctx.pick([str(value), json.dumps({"result": value}), f"{expression} = {value}"])
    return text, t, {p: expression}, result, f"{expression} = {value}.", [str(value)]


TIME = Wordings(["What time is it in {c}?", "What's the time in {c}?", "Tell me the time in {c}.", "How late is it in {c}?", "What is the local time in {c}?", "Time in {c}?",
                 "I want to call someone in {c}. What time is it there?", "Do you know the time in {c}?", "What does the clock say in {c}?", "Please get the time for {c}.",
                 "Which time is it now in {c}?", "Is it late in {c}? Check the time.", "Check the time in {c}.", "Is it late in {c}?", "Is it early in {c}? Look at the clock.", "Look up the time in {c}.", "Tell me what time it is in {c}.", "time in {c}", "What time do they have in {c}?", "What is the current time in {c}?", "Please check the clock in {c}.", "My friend is in {c}. What time is it there?"], wd.TIME, 400)


def clock(ctx, city=None):
    h = f"{ctx.rng.randint(0, 23):02d}:{ctx.rng.randint(0, 59):02d}"
    name, about = ctx.pick(["get_time", "current_time", "clock"]), ctx.pick(["Get the current time", "Tells the time", "Current time"])
    if city is None and ctx.chance(0.4):
        text = ctx.word(["What time is it?", "What's the time?", "Tell me the time.", "Can you tell me the time?", "How late is it?", "What is the time now?", "Time, please.",
                         "Do you have the time?", "Please check the clock.", "What time is it right now?", "I need to know the time.", "What does the clock say?", "Check the time.", "Is it late?", "Is it late? Check the clock.", "Look at the clock.", "Tell me what time it is.", "Please tell me the time.", "time now?", "What is the current time?"])
        return text, tool(name, about, {}), {}, ctx.pick([h, json.dumps({"time": h})]), f"It is {h}.", [h]
    city = city or ctx.city()
    p = ctx.pick(["city", "place", "location"])
    text = ctx.word(TIME, c=city)
    return text, tool(name, about + " in a city", {p: kind("string")}), {p: city}, ctx.pick([h, json.dumps({"time": h}), f"{city} {h}"]), f"It is {h} in {city}.", [h]


FILE_STEMS = "notes todo report letter recipe config log plan diary shopping budget readme names draft".split()


FILE = Wordings(["What is in {f}?", "Read {f}.", "What does {f} say?", "Show me the file {f}.", "Open {f}[ please|].", "Tell me what {f} says.", "Please read the file {f}.",
                 "What is written in {f}?", "Read the file {f} for me.", "Look into {f}.", "Can you open {f} and tell me what it says?", "I want to know what is in {f}.",
                 "What are the contents of {f}?", "Check {f}.", "Check what is in {f}.", "Tell me what is in {f}.", "Show me {f}.", "Please open {f}.", "What text is in {f}?", "Read out {f}.", "Can you read {f}?", "The file {f}: what does it say?", "What does the file {f} contain?", "Get me the text of {f}."], wd.FILE, 400)


def read_file(ctx, n_lines=None):
    p = ctx.pick(["path", "filename", "file"])
    t = tool(ctx.pick(["read_file", "open_file", "file_read"]), ctx.pick(["Read a text file", "Read a file and return its text", "Returns the content of a file"]), {p: kind("string")})
    stem = ctx.pick(FILE_STEMS) if ctx.chance(0.6) else sk.made_up(ctx.rng, 2, 3)
    path = ctx.pick(["", "", "docs/", "/home/" + ctx.name().lower() + "/", "data/"]) + stem + ctx.pick([".txt", ".md", ".csv", ".json"])
    if n_lines is None and ctx.chance(0.5):
        line = ctx.pick([f"The {ctx.pick(lx.EVENTS)} is on {ctx.pick(lx.DAYS)}.", f"Buy {ctx.rng.randint(2, 40)} {ctx.pick(lx.ITEMS)}.", f"{ctx.name()} likes {ctx.pick(lx.FOODS)}.",
                         f"Call {ctx.name()} on {ctx.pick(lx.DAYS)}.", f"{ctx.name()} lives in {ctx.city()}.", " ".join(ctx.pick(lx.WORDS) for _ in range(ctx.rng.randint(2, 6))) + "."])
        text = ctx.word(FILE, f=path)
        return text, t, {p: path}, line, f"The file says: {line}", [line.rstrip(".")]
    names, rows = [], []
    for _ in range(n_lines or ctx.rng.randint(2, 5)):
        n = ctx.name()
        if n not in names:
            names.append(n)
            rows.append((n, ctx.rng.randint(10, 9999)))
    form = ctx.pick(["{n}: {v}", "{n} {v}", "{n},{v}", "The code of {n} is {v}.", "{n} has the number {v}."])
    content = "\n".join(form.replace("{n}", n).replace("{v}", str(v)) for n, v in rows)
    n, v = ctx.pick(rows)
    text = ctx.word(["What is the number of {n} in {f}?", "Read {f} and tell me the number of {n}.", "Look into {f}: which number belongs to {n}?", "Which number has {n} in {f}?",
                     "Find the number of {n} in the file {f}.", "In {f}, what is {n}'s number?", "Open {f} and find {n}'s number.", "I need {n}'s number from {f}.",
                     "Check {f} for the number of {n}.", "What does {f} give as number for {n}?", "Use {f} to find the number of {n}.", "Please get {n}'s number out of {f}.", "Find {n}'s number in {f}.", "Get the number of {n} from {f}.", "Tell me {n}'s number from {f}.", "The number of {n} is in {f}. What is it?", "Check in {f} which number {n} has.", "Read {f}: which number has {n}?", "What number does {f} have for {n}?", "From {f} I need the number of {n}."], n=n, f=path)
    return text, t, {p: path}, content, f"The number of {n} is {v}.", [str(v)]


SEARCH_K = Wordings(["Find {k} results about {x}.", "Search for {x} and show {k} results.", "Give me {k} pages about {x}.", "Search the web for {x}, {k} results.", "Look for {x}, at most {k} results.",
                     "I want {k} links about {x}.", "Show {k} results for {x}.", "Get {k} hits for {x}.", "Search {x} and give me {k} results.", "I want {k} results about {x}.", "Find {k} pages about {x}.", "Please search for {x}, {k} results.", "Look up {x}, {k} results.", "{k} results for {x}, please.", "Show me {k} pages about {x}."], wd.SEARCH_K, 400)


SEARCH = Wordings(["Search for {x}.", "Search the web for {x}.", "Look up {x}[ online|].", "Find something about {x}.", "What does the web say about {x}?", "Find pages about {x}.",
                   "Please search {x}.", "Google {x}.", "Can you look up {x}?", "I want to read about {x}. Search the web.", "Search online for {x}.", "Do a web search for {x}.",
                   "Find information on {x}.", "What can you find about {x}?", "Find information about {x}.", "What can you find on {x}?", "Please look up {x}.", "Search: {x}", "Search for pages about {x}.", "Look for {x} on the web.", "Use the web search for {x}.", "Find something on {x} online.", "What is on the web about {x}?", "Can you search for {x}?", "I want to know more about {x}. Search for it."], wd.SEARCH, 400)


def web_search(ctx):
    p, q = ctx.pick(["query", "q", "text"]), ctx.pick(["max_results", "limit", "count"])
    t = tool(ctx.pick(["web_search", "search", "search_web"]), ctx.pick(["Search the web", "Web search", "Find pages on the web"]), {p: kind("string"), q: kind("integer")}, [p])
    topic = ctx.pick([ctx.pick(lx.TOPICS), f"{ctx.pick(lx.TOPICS)} in {ctx.city()}", f"{ctx.name()} {ctx.surname()}", f"{ctx.pick(lx.FOODS)} recipe", f"{ctx.city()} {ctx.pick(lx.EVENTS)}"])
    arguments = {p: topic}
    if ctx.chance(0.35):
        k = ctx.rng.randint(1, 12)
        text = ctx.word(SEARCH_K, x=topic, k=k)
        arguments[q] = k
    else:
        text = ctx.word(SEARCH, x=topic)
    fact = ctx.pick([f"{topic} opened in {ctx.rng.randint(1800, 2026)}.", f"{topic} is popular in {ctx.city()}.", f"{ctx.name()} {ctx.surname()} writes about {topic}.",
                     f"There are {ctx.rng.randint(2, 999)} pages about {topic}.", f"The best place for {topic} is {ctx.city()}."])
    fact = fact[0].upper() + fact[1:]
    result = ctx.pick([fact, json.dumps({"results": [fact]}), json.dumps([{"title": topic, "text": fact}]), f"1. {fact}"])
    return text, t, arguments, result, f"I found this: {fact}", [fact.rstrip(".")]


def timer(ctx):
    p = ctx.pick(["minutes", "duration", "mins"])
    t = tool(ctx.pick(["set_timer", "start_timer", "timer"]), "Start a timer", {p: kind("integer", "Minutes")})
    k = ctx.rng.randint(1, 90)
    text = ctx.word(["Set a timer for {k} minutes.", "Start a timer of {k} minutes.", "Timer, {k} minutes.", "Wake me in {k} minutes.", "Please set a {k} minute timer.", "Tell me when {k} minutes are over.",
                     "I need a timer for {k} minutes.", "Give me {k} minutes on the timer.", "Remind me after {k} minutes.", "Count down {k} minutes.", "Set the timer to {k} minutes.", "Timer for {k} minutes.", "Please start a timer for {k} minutes.", "Remind me in {k} minutes.", "Start a {k} minute timer.", "Count {k} minutes for me.", "Can you set a timer for {k} minutes?", "{k} minutes, start now."], k=k)
    return text, t, {p: k}, ctx.pick(["ok", '{"status": "ok"}', "started"]), f"The timer is set for {k} minutes.", [str(k)]


def light(ctx):
    p, q = ctx.pick(["room", "place", "where"]), ctx.pick(["on", "state", "enabled"])
    t = tool(ctx.pick(["set_light", "switch_light", "light"]), "Turn a light on or off", {p: kind("string"), q: kind("boolean")})
    room, on = ctx.pick(lx.ROOMS), ctx.chance(0.5)
    w = "on" if on else "off"
    text = ctx.word(["Turn {w} the light in the {r}.", "Turn the {r} light {w}.", "Switch {w} the light in the {r}.", "Light {w} in the {r}, please.", "Please switch the {r} light {w}.", "{r} light {w}!",
                     "Can you turn the light {w} in the {r}?", "I want the light in the {r} {w}.", "Make the light in the {r} go {w}.", "The {r} light should be {w}.", "Please turn {w} the {r} light.", "The light in the {r} should be {w}.", "Set the {r} light to {w}.", "Put the light in the {r} {w}.", "Could you switch {w} the light in the {r}?", "I need the {r} light {w}.", "{w} with the light in the {r}!", "Light in the {r}: {w}"], w=w, r=room)
    return text, t, {p: room, q: on}, ctx.pick(["ok", '{"status": "ok"}', "done"]), f"The light in the {room} is now {w}.", [room, w]


def shopping(ctx):
    p = ctx.pick(["items", "things", "entries"])
    t = tool(ctx.pick(["add_items", "add_to_list", "shopping_list"]), "Add items to the shopping list", {p: {"type": "array", "items": {"type": "string"}}})
    items = ctx.rng.sample(lx.FOODS + lx.ITEMS, ctx.rng.randint(1, 4))
    said = items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
    text = ctx.word(["Add {x} to my shopping list.", "Put {x} on the list.", "I need to buy {x}. Add that to the list.", "Shopping list: {x}.", "Please add {x}.", "Write {x} on the shopping list.",
                     "Do not let me forget {x}. Put it on my list.", "We need {x} from the shop.", "Note {x} for shopping.", "My list should have {x}.", "Please put {x} on my list.", "Add {x} to the list.", "We need {x}. Put it on the list.", "List {x} for shopping.", "I want to buy {x}. Add it.", "Write down for shopping: {x}.", "On my shopping list: {x}.", "Can you add {x} to the shopping list?"], x=said)
    return text, t, {p: items}, ctx.pick(["ok", '{"status": "ok"}', "saved"]), f"I added {said} to the list.", items


def message(ctx):
    p, q = ctx.pick(["to", "recipient", "name"]), ctx.pick(["text", "message", "body"])
    t = tool(ctx.pick(["send_message", "send_sms", "message"]), "Send a message to a person", {p: kind("string"), q: kind("string")})
    n = ctx.name()
    body = ctx.pick(["I am late", "see you soon", "call me", "happy birthday", "dinner is ready", "where are you", f"the {ctx.pick(lx.EVENTS)} is on {ctx.pick(lx.DAYS)}",
                     f"buy {ctx.pick(lx.FOODS)}", f"I am in {ctx.city()}", f"bring {ctx.rng.randint(2, 20)} {ctx.pick(lx.ITEMS)}"])
    text = ctx.word(["Send {n} the message: {b}", "Tell {n}: {b}", "Write to {n}: {b}", "Message {n}: {b}", "Send a message to {n} saying: {b}", "Text {n}: {b}", "Please send this to {n}: {b}",
                     "Let {n} know: {b}", "Send '{b}' to {n}.", "I want to tell {n} this: {b}", "Send a message to {n}: {b}", "Please tell {n}: {b}", "Please write to {n}: {b}", "Message to {n}: {b}", "Send {n} this text: {b}", "Let {n} know this: {b}", "Can you send {n} a message? {b}", "Say to {n}: {b}"], n=n, b=body)
    return text, t, {p: n, q: body}, ctx.pick(["sent", '{"status": "sent"}', "ok"]), f"I sent the message to {n}.", [n]


def event(ctx):
    p = ctx.pick(["event", "entry", "appointment"])
    t = tool(ctx.pick(["create_event", "add_event", "calendar_add"]), "Add an event to the calendar",
             {p: {"type": "object", "properties": {"title": kind("string"), "day": kind("string"), "time": kind("string")}}})
    e, d, h = ctx.pick(lx.EVENTS), ctx.pick(lx.DAYS), f"{ctx.rng.randint(7, 21)}:{ctx.pick(['00', '15', '30', '45'])}"
    text = ctx.word(["Put a {e} in my calendar on {d} at {h}.", "Add a {e} on {d} at {h}.", "Plan a {e} for {d}, {h}.", "I have a {e} on {d} at {h}. Add it to the calendar.", "New event: {e}, {d} {h}.",
                     "Please create an event: {e} on {d} at {h}.", "Calendar: {e} on {d} at {h}.", "Schedule a {e} on {d} at {h}.", "Save the date: {e}, {d}, {h}.", "Enter a {e} for {d} at {h}.", "Put the {e} on {d} at {h} in the calendar.", "Please add a {e} on {d}, {h}.", "Add the event {e} on {d} at {h}.", "Enter a {e} on {d} at {h}.", "Make an event: {e}, {d} at {h}.", "There is a {e} on {d} at {h}. Save it.", "I want a {e} on {d} at {h} in my calendar.", "Can you plan a {e} on {d} at {h}?"], e=e, d=d, h=h)
    return text, t, {p: {"title": e, "day": d, "time": h}}, ctx.pick(["ok", '{"status": "ok"}', "created"]), f"The {e} is in your calendar on {d} at {h}.", [e, d, h]


def heating(ctx):
    p, q = ctx.pick(["room", "place"]), ctx.pick(["degrees", "temperature", "value"])
    t = tool(ctx.pick(["set_temperature", "set_heating", "thermostat"]), "Set the temperature of a room", {p: kind("string"), q: kind("number")})
    room, v = ctx.pick(lx.ROOMS), ctx.rng.randint(30, 52) / 2
    v = int(v) if v == int(v) else v
    text = ctx.word(["Set the {r} to {v} degrees.", "Heat the {r} to {v} degrees.", "Make it {v} degrees in the {r}.", "I want {v} degrees in the {r}.", "{v} degrees in the {r}, please.",
                     "Set the temperature in the {r} to {v}.", "The {r} should have {v} degrees.", "Can you set the {r} to {v} degrees?", "Put the {r} heating at {v}.", "Change the {r} to {v} degrees.", "Please set the {r} to {v} degrees.", "Heat the {r}: {v} degrees.", "I want the {r} at {v} degrees.", "The temperature in the {r} should be {v}.", "Put the {r} at {v} degrees.", "Change the temperature in the {r} to {v}.", "Set {v} degrees for the {r}.", "Can you heat the {r} to {v} degrees?"], r=room, v=v)
    return text, t, {p: room, q: v}, ctx.pick(["ok", '{"status": "ok"}', "done"]), f"The {room} is set to {v} degrees.", [room, str(v)]


def average(ctx):
    p = ctx.pick(["numbers", "values", "data"])
    t = tool(ctx.pick(["average", "mean", "get_average"]), "Average of numbers", {p: {"type": "array", "items": {"type": "number"}}})
    v = [ctx.rng.randint(1, 99) for _ in range(ctx.rng.randint(2, 5))]
    said = ", ".join(map(str, v[:-1])) + " and " + str(v[-1])
    m = round(sum(v) / len(v), 1)
    m = int(m) if m == int(m) else m
    text = ctx.word(["What is the average of {x}?", "Average of {x}?", "Compute the mean of {x}.", "Find the average of {x}.", "Tell me the average of {x}.", "I need the mean of {x}.", "What is the mean of {x}?",
                     "Take {x} and give me the average.", "Please average {x}.", "How much are {x} on average?", "Give me the average of {x}.", "Please find the mean of {x}.", "Compute the average of {x}.", "The average of {x}, please.", "What is {x} on average?", "Find the mean of {x}.", "I want the average of {x}.", "average {x}"], x=said)
    return text, t, {p: v}, ctx.pick([str(m), json.dumps({"result": m})]), f"The average is {m}.", [str(m)]


def alarm(ctx):
    p = ctx.pick(["time", "at"])
    t = tool(ctx.pick(["set_alarm", "alarm"]), "Set the alarm, null turns it off", {p: {"type": ["string", "null"]}})
    if ctx.chance(0.4):
        text = ctx.word(["Turn off my alarm.", "Turn the alarm off.", "No alarm tomorrow.", "Cancel the alarm.", "Switch my alarm off.", "Delete the alarm.", "I do not need the alarm.", "Stop the alarm.", "Please turn off the alarm.", "Alarm off.", "Please cancel my alarm.", "I need no alarm.", "Switch off the alarm.", "Remove the alarm.", "The alarm should be off.", "Do not wake me."])
        return text, t, {p: None}, ctx.pick(["ok", '{"status": "ok"}']), "The alarm is off.", ["off"]
    h = f"{ctx.rng.randint(4, 11)}:{ctx.pick(['00', '10', '15', '20', '30', '45', '50'])}"
    text = ctx.word(["Set an alarm for {h}.", "Wake me at {h}.", "Alarm at {h}, please.", "I have to get up at {h}.", "Please set the alarm to {h}.", "Set my alarm to {h}.", "I want to wake up at {h}.", "The alarm should ring at {h}.", "Alarm for {h}.", "Please wake me at {h}.", "Can you set an alarm for {h}?", "Set the alarm at {h}.", "I need an alarm at {h}.", "Let the alarm ring at {h}.", "I get up at {h}. Set the alarm.", "Wake me up at {h}."], h=h)
    return text, t, {p: h}, ctx.pick(["ok", '{"status": "ok"}']), f"The alarm is set for {h}.", [h]


def user_record(ctx):
    p = ctx.pick(["id", "user_id", "number"])
    t = tool(ctx.pick(["get_user", "find_customer", "lookup"]), "Look up a customer by number", {p: kind("integer")})
    k, n, c = ctx.rng.randint(1, 99999), ctx.name(), ctx.city()
    text = ctx.word(["Who is customer {k}?", "Look up customer {k}.", "Show me customer number {k}.", "Find customer {k}.", "Get the customer with number {k}.", "Which customer has the number {k}?",
                     "I need the data of customer {k}.", "Customer {k}, please.", "Tell me who customer {k} is.", "Open the record of customer {k}.", "Get customer {k}.", "Find the customer with the number {k}.", "Please look up customer number {k}.", "Show customer {k}.", "Who has the customer number {k}?", "What do we know about customer {k}?", "Tell me about customer {k}.", "Give me customer number {k}."], k=k)
    return text, t, {p: k}, ctx.pick([json.dumps({"name": n, "city": c}), f"{n}, {c}"]), f"Customer {k} is {n} from {c}.", [n, c]


FAMILIES = [weather, calculator, clock, read_file, web_search, timer, light, shopping, message, event, heating, average, alarm, user_record]
MAIN = [weather, calculator, clock, read_file, web_search]


def _family(ctx):
    return ctx.pick(MAIN) if ctx.chance(0.55) else ctx.pick(FAMILIES)


def _call_think(calls):
    return "I need " + " and ".join(sorted({name for name, _ in calls})) + " for this."


def tool_call(ctx):
    """One request or two; a call of each; then the results and the answer.  Checked at the call."""
    first = _family(ctx)
    parts = [first(ctx)]
    if ctx.chance(0.25):
        if ctx.chance(0.5) and first in (weather, clock):
            one, two = ctx.city(), ctx.city()
            while one == two:
                two = ctx.city()
            a, b = first(ctx, one), first(ctx, two)
            b = (b[0], a[1], {next(iter(a[2])): two}, *b[3:])
            what = "weather" if first is weather else "time"
            text = ctx.word(["[What is|What's] the {w} in {a} and in {b}?", "[Give me|Tell me] the {w} in {a} and {b}.", "Compare the {w} in {a} and {b}.", "I need the {w} for {a} and {b}.", "{w} in {a} and {b}?",
                             "How is the {w} in {a}, and in {b}?", "Please check the {w} in {a} and in {b}.", "Find the {w} of both {a} and {b}.", "What is the {w} in {a} and {b}?", "Tell me the {w} in {a} and also in {b}.", "Check the {w} in {a} and {b}.", "The {w} in {a} and {b}, please.", "I want the {w} of {a} and {b}.", "Look up the {w} in both {a} and {b}.", "Find the {w} in {a} and in {b}.", "{w} of {a} and {b}?"], w=what, a=one, b=two)
            parts = [(text, *a[1:]), b]
        else:
            second = _family(ctx)
            while second is first:
                second = _family(ctx)
            b = second(ctx)
            parts = [(parts[0][0] + ctx.pick([" ", " And ", " Also: "]) + b[0], *parts[0][1:]), b]
    tools, calls = [], []
    for _, t, arguments, *_ in parts:
        name = t["function"]["name"]
        if name not in [x["function"]["name"] for x in tools]:
            tools.append(t)
        calls.append((name, arguments))
    used = {p[1]["function"]["name"] for p in parts}
    _add_tools(ctx, tools, used, [first] + ([second] if len(parts) > 1 and len(used) > 1 else []))
    item = qa(ask(ctx, parts[0][0]), "", _call_think(calls), ("calls", [[n, a] for n, a in calls]))
    item.update(tools=tools, calls=calls, results=[p[3] for p in parts], final=" ".join(p[4] for p in parts), final_check=("all_in", [s for p in parts for s in p[5]]))
    return item


def _add_tools(ctx, tools, used, families):
    for _ in range(ctx.rng.choice([0, 1, 1, 2, 3])):
        other = ctx.pick(FAMILIES)
        if other in families:
            continue
        t = other(ctx)[1]
        if t["function"]["name"] not in [x["function"]["name"] for x in tools]:
            tools.append(t)
            families = families + [other]
    ctx.rng.shuffle(tools)


def tool_answer(ctx):
    """As tool_call, checked at the answer from the results."""
    item = tool_call(ctx)
    item["ask_final"] = True
    return item


def tool_long(ctx):
    """Reading a long file (hundreds of tokens) and answering from it."""
    parts = read_file(ctx, ctx.rng.choice([15, 25, 40, 60, 80]))
    item = qa(ask(ctx, parts[0]), "", "I need " + parts[1]["function"]["name"] + " for this.", ("calls", [[parts[1]["function"]["name"], parts[2]]]))
    item.update(tools=[parts[1]], calls=[(parts[1]["function"]["name"], parts[2])], results=[parts[3]], final=parts[4], final_check=("all_in", parts[5]), ask_final=True)
    return item


def tool_unused(ctx):
    """Tools are offered but the question needs none, or needs one that is not there."""
    if ctx.chance(0.3):
        f = ctx.pick([weather, clock, web_search, user_record, read_file])
        text, answer, think, check, avoid = f(ctx)[0], sk.DONT_KNOW, "No tool fits, so I should say that I do not know.", ("refuse", None), [f, web_search]
        if f is web_search:
            text, answer = weather(ctx)[0], sk.DONT_KNOW
            avoid = [weather, web_search]
        item = qa(ask(ctx, text), answer, think, check)
    else:
        f = ctx.pick([sk.capital, sk.opposite, sk.chat, sk.color, sk.spell, sk.plural, sk.calendar, sk.upper, sk.extract, sk.introduce])
        item, avoid = f(ctx), [calculator]
    tools = []
    _add_tools(ctx, tools, set(), avoid)
    if not tools:
        tools = [timer(ctx)[1]]
    item["tools"] = tools
    return item


# ---------------------------------------------------------------- system rules

WORD_RULES = {
    "end": ["End every answer with {x}", "Always end your answer with {x}", "Finish each reply with {x}", "Put {x} at the end of every answer.", "After each answer say {x}", "Close all your answers with {x}",
            "Your answers always end with {x}", "The last word of each answer is {x}", "Each reply must end in {x}", "At the end of every reply add {x}", "At the end of each answer write {x}", "End each answer with {x}", "End all answers with {x}", "Every answer ends with {x}", "Each reply ends with {x}", "Each answer must end with {x}", "Finish every answer with {x}", "Always finish with {x}", "Close each reply with {x}", "After every reply write {x}", "Add {x} to the end of each answer.", "Say {x} at the end of every answer.", "Say {x} after each answer.", "Put {x} after every reply."],
    "begin": ["Begin every answer with {x}", "Always start your answer with {x}", "Start each reply with {x}", "Put {x} at the beginning of every answer.", "Before each answer say {x}", "Open all your answers with {x}",
              "Your answers always begin with {x}", "The first word of each answer is {x}", "Each reply must start with {x}", "At the start of every reply write {x}", "At the beginning of each answer write {x}", "Start each answer with {x}", "Start all answers with {x}", "Every answer starts with {x}", "Each reply starts with {x}", "Each answer must start with {x}", "Begin each answer with {x}", "Begin all your replies with {x}", "Always begin with {x}", "Open each reply with {x}", "Before every reply write {x}", "Add {x} to the beginning of each answer.", "Say {x} at the start of every answer.", "Say {x} before each answer.", "Put {x} before every reply."],
    "upper": ["Answer in upper case.", "Write everything in capital letters.", "Always answer in capitals.", "Use only capital letters.", "Reply in all caps.", "All your answers are in upper case.", "You shout every answer in capitals.",
              "Respond with upper case letters only.", "Write in upper case.", "Write all answers in upper case.", "Answer in capital letters.", "Reply in capitals only.", "Use upper case for every answer.", "Always write in capital letters.", "Every answer is in capitals.", "All answers in all caps, please.", "Respond in upper case.", "Use capitals only.", "Write your replies in all caps.", "Only upper case answers."],
    "short": ["Answer with the result only.", "Reply with only the answer, no sentence.", "Give only the bare answer.", "Answer as short as possible.", "Just the answer, nothing else.", "No sentences, only the answer.", "Reply with one word or number.",
              "Be brief: only the result.", "Say only the answer itself.", "Use as few words as possible.", "Only the answer, please.", "Give me only the answer.", "Only give the result.", "Just say the result.", "Reply with the answer only.", "Answer with the bare result.", "Be short: just the answer.", "As short as possible, please.", "Use as few words as you can.", "Answer in as few words as possible.", "Very short answers only.", "Answer with one word or number.", "No full sentences."],
    "json": ["Answer in JSON with the key answer.", "Reply with a JSON object that has the key answer.", "Always respond as JSON: {\"answer\": ...}", "Your output is JSON with one key, answer.", "Put the answer in a JSON object under answer.",
             "Write each reply as JSON with the key answer.", "Use JSON with a single key answer.", "Only output JSON. Key: answer.", "Answer only in JSON with the key answer.", "Give JSON with the key answer.", "Respond in JSON, key answer.", "JSON only, with the key answer.", "Use JSON with the key answer.", "Every answer is JSON with a single key answer.", "Each reply is a JSON object with the key answer.", "Output JSON with one key: answer.", "Put each answer in JSON under the key answer.", "Reply in JSON. Use the key answer.", "All answers as JSON objects, key answer.", "Write JSON: the key is answer."],
    "name": ["Your name is {n}.", "You are {n}.", "You are called {n}.", "You are an assistant named {n}.", "Act as {n}, a helpful assistant.", "People call you {n}.", "You play the role of {n}.", "Introduce yourself as {n}.", "You are the assistant {n}.", "You are a helpful assistant named {n}.", "You are a friendly assistant called {n}.", "Your name is {n}, an assistant.", "Act as {n}.", "You act as {n}.", "I call you {n}.", "The user calls you {n}.", "Say that you are {n}.", "You are an assistant called {n}.", "Play the role of {n}.", "The name of the assistant is {n}."],
    "user": ["The user is called {n}. Use the name in every answer.", "Address the user as {n}.", "Always call the user {n}.", "The user's name is {n}. Say it first in every answer.", "Talk to {n} and begin with the name.", "You talk to {n}. Always say the name first.",
             "Start each answer with the user's name, {n}.", "Greet the user by name in each answer: {n}.", "The user is {n}. Say the name first.", "You talk to {n}. Begin each answer with the name.", "You talk with {n}. Say the name first.", "Talk to {n}. Always say the name first.", "Begin each answer with the name of the user, {n}.", "Call the user {n} in every answer.", "The user is called {n}. Start with the name.", "The name of the user is {n}. Use it in each answer.", "Always address {n} by name.", "Each answer starts with the name {n}, the user.", "Say {n} to the user in each answer.", "This user is {n}. Start every answer with the name."],
    "topic": ["Only answer questions about {t}. To others say: I can only talk about {t}.", "You only talk about {t}. Otherwise say: I can only talk about {t}.", "Refuse everything that is not about {t} with: I can only talk about {t}.",
              "Your only topic is {t}. For anything else say: I can only talk about {t}.", "Stay on the topic of {t}. If asked something else, say: I can only talk about {t}.", "If a question is not about {t}, answer: I can only talk about {t}.", "Answer only about {t}. To all else say: I can only talk about {t}.", "Only talk about {t}. To anything else say: I can only talk about {t}.", "You answer questions about {t} only. Otherwise say: I can only talk about {t}.", "Talk about {t} only. For other things say: I can only talk about {t}.", "Your topic is {t}. To other questions say: I can only talk about {t}.", "If the question is not about {t}, say: I can only talk about {t}.", "Questions about {t} only. To others answer: I can only talk about {t}.", "Refuse other topics than {t} with: I can only talk about {t}."],
}
WORD_RULES = {rule: Wordings(ways, wd.SYSTEM[rule], 400) for rule, ways in WORD_RULES.items()}
TOPIC_SKILLS = {"sums": (sk.add, sk.subtract), "capitals": (sk.capital,), "opposites": (sk.opposite,), "colors": (sk.color,), "spelling": (sk.spell,), "plurals": (sk.plural,)}
PLAIN_SYSTEM = Wordings(["You are a helpful assistant.", "You are a friendly assistant.", "Be polite.", "You are Lily, a small assistant.", "Answer the user's questions.", "You help people.", "Be helpful and honest.", "You are an assistant.",
                         "You are a helpful, honest assistant.", "Please help the user.", "You answer questions.", "Be a good assistant."], wd.PLAIN_SYSTEM)
BASE = [sk.add, sk.subtract, sk.multiply, sk.capital, sk.opposite, sk.color, sk.calendar, sk.plural, sk.nature, sk.element]


WHO = ["Who are you?", "What is your name?", "What's your name?", "Tell me your name.", "How are you called?", "Do you have a name?", "Introduce yourself.", "What should I call you?", "Who am I talking to?", "Say your name.",
       "What are you called?", "May I know your name?", "What do people call you?", "Please tell me who you are.", "What name do you have?", "Who is this?", "Who is speaking?", "Say who you are.", "And who are you?"]
MARKERS = ["Over.", "Thank you.", "Captain!", "Dear friend,", "Arr!", "Sir,", "Well,", "Good luck!", "Amen.", "That is all.", "My dear,", "Listen:", "Okay,", "Madam,"]


TALK = [sk.chat, sk.spell, sk.upper, sk.reverse_word]


def _with_rule(ctx, rule, x, more=()):
    """A question whose answer keeps the rule; x: the marker, name or topic of it.  more: further skills to ask."""
    base = ctx.pick(BASE + list(more))(ctx)
    while rule in ("short", "json") and not base["short"]:
        base = ctx.pick(BASE)(ctx)
    if rule in ("end", "begin"):
        base["answer"] = f"{base['answer']} {x}" if rule == "end" else f"{x} {base['answer']}"
        base["think"] += f" The rule: {rule} with {x}"
    elif rule == "upper":
        base["answer"] = sk.letters(sk.plain(base["answer"]).upper())
        base["think"] += " The rule: upper case."
    elif rule == "short":
        base["answer"] = base["short"]
        base["think"] += " The rule: only the answer."
    elif rule == "json":
        value = sk.plain(base["short"])
        value = int(value) if value.lstrip("-").isdigit() else base["short"]
        base["answer"] = json.dumps({"answer": value}, ensure_ascii=False)
        base["think"] += " The rule: JSON."
    elif rule == "name":
        if ctx.chance(0.7):
            base = qa(ctx.word(WHO), f"My name is {x}.", f"The system prompt says that I am {x}.", None)
    elif rule == "user":
        base["answer"] = f"{x}, {base['answer']}"
        base["think"] += f" The rule: say the name {x}."
    elif ctx.chance(0.5):
        base = ctx.pick(TOPIC_SKILLS[x])(ctx)
        base["think"] += f" This is about {x}."
    else:
        base = ctx.pick(TOPIC_SKILLS[ctx.pick([k for k in sorted(TOPIC_SKILLS) if k != x])])(ctx)
        base["answer"], base["think"] = f"I can only talk about {x}.", f"This is not about {x}."
    return base


def system_rule(ctx):
    """A rule in the system prompt; it holds for every answer of the conversation."""
    rule = ctx.pick(sorted(WORD_RULES))
    if rule in ("end", "begin"):
        x = ctx.pick(MARKERS) if ctx.chance(0.5) else sk.made_up(ctx.rng, 1, 3).capitalize() + ctx.pick(["!", ".", ","])
        system = ctx.word(WORD_RULES[rule], fixed=True, x=ctx.pick(["'{}'", "{}", "\"{}\"", "the words {}"]).format(x))
    else:
        x = ctx.name() if rule in ("name", "user") else ctx.pick(sorted(TOPIC_SKILLS)) if rule == "topic" else None
        system = ctx.word(WORD_RULES[rule], n=x, t=x)
    before = []
    if ctx.chance(0.45) and not ctx.test:
        for _ in range(ctx.rng.choice([1, 1, 2, 2, 3, 4])):
            turn = _with_rule(ctx, rule, x, TALK)
            before += [("user", turn["user"]), ("assistant", turn["answer"])]
    base = _with_rule(ctx, rule, x, () if ctx.test else TALK)
    base["check"] = ("exact", sk.plain(base["answer"]))
    base["system"], base["before"] = system, before
    return base


# ---------------------------------------------------------------- long contexts

NOTE_FORMS = [("The code of {n} is {v}.", ["What is the code of {n}?", "Which code has {n}?", "Tell me {n}'s code.", "What code belongs to {n}?", "Find the code of {n}.", "What's {n}'s code?", "Give me the code of {n}."], "code"),
              ("{n} lives in {v}.", ["Where does {n} live?", "Which city does {n} live in?", "In which city is {n}?", "Tell me where {n} lives.", "What is the city of {n}?", "Find the city of {n}.", "Where is {n} at home?"], "city"),
              ("{n} likes {v}.", ["What does {n} like?", "Tell me what {n} likes.", "Which food does {n} like?", "What is {n}'s favorite food?", "Find what {n} likes.", "What food is good for {n}?", "What would {n} eat?"], "food"),
              ("{n} is a {v}.", ["What is the job of {n}?", "What is {n}'s job?", "What does {n} do for work?", "Which job has {n}?", "Tell me the job of {n}.", "Find {n}'s job.", "What does {n} work as?"], "job")]
NOTE_INTRO = ["Here are some notes.\n{t}\n{q}", "{t}\n{q}", "{q}\n{t}", "Read this:\n{t}\n\n{q}", "Notes:\n{t}\n\nQuestion: {q}", "I have these notes:\n{t}\n{q}", "Use this text to answer. {t} {q}", "{t} {q}", "Text:\n{t}\n\n{q}",
              "Given this: {t} {q}", "From these notes, answer the question.\n{t}\n{q}", "Look at this list.\n{t}\n{q}", "First read: {t} Then answer: {q}", "Question: {q}\n\nNotes:\n{t}"]


def notes(ctx, n_lines=None):
    """A question about notes in the prompt, from three lines to about 1,800 tokens."""
    n_lines = n_lines or ctx.rng.choice([2, 3, 4, 5, 6, 8])
    mixed = ctx.chance(0.5)
    form = ctx.pick(NOTE_FORMS)
    rows, seen = [], set()
    for _ in range(n_lines):
        n = ctx.name()
        if n in seen:
            continue
        seen.add(n)
        f = ctx.pick(NOTE_FORMS) if mixed else form
        v = dict(code=lambda: ctx.rng.randint(10, 9999), city=ctx.city, food=lambda: ctx.pick(lx.FOODS), job=lambda: ctx.pick(lx.JOBS))[f[2]]()
        rows.append((f, n, v))
    f, n, v = ctx.pick(rows)
    join = ctx.pick(["\n", " "])
    text = join.join(r[0][0].replace("{n}", r[1]).replace("{v}", str(r[2])) for r in rows)
    q = ctx.word(f[1], n=n)
    answer = f[0].replace("{n}", n).replace("{v}", str(v))
    missing = ctx.chance(0.12) and not ctx.test
    if missing:
        while n in seen:
            n = ctx.name()
        q, answer = ctx.word(f[1], n=n), "I'm sorry, the text does not say that."
        return qa(ctx.word(NOTE_INTRO, t=text, q=q), answer, f"I look for {n}. {n} is not in the text.", ("exact", answer))
    return qa(ctx.word(NOTE_INTRO, t=text, q=q), answer, f"I look for {n}. The text says: {answer}", ("contains", [str(v)]), str(v))


def notes_long(ctx):
    return notes(ctx, ctx.rng.choice([15, 25, 40, 60, 90, 120]))
