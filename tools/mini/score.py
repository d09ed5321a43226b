# SPDX-License-Identifier: Apache-2.0
"""Is the text a model wrote for a held-out question right?  No dependencies."""
import json
import re

REFUSALS = ("don't know", "do not know", "cannot", "can't", "not sure", "no information", "unable", "does not say", "sorry")


def content_of(text):
    """What follows the thinking block; without an end of turn."""
    text = text.split("<|im_end|>")[0]
    return text.rsplit("</think>", 1)[-1].strip()


def calls_of(text, tools):
    """[[name, arguments]] of the calls in the family's XML form, arguments by the declared types."""
    schemas = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools or []}
    out = []
    for body in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.S):
        m = re.search(r"<function=(.*?)>", body)
        if not m:
            continue
        arguments = {}
        for key, value in re.findall(r"<parameter=(.*?)>\n(.*?)\n</parameter>", body, re.S):
            kind = schemas.get(m.group(1), {}).get(key, {}).get("type")
            if kind != "string" and not (isinstance(kind, list) and value != "null"):
                try:
                    value = json.loads(value)
                except ValueError:
                    pass
            arguments[key] = value
        out.append([m.group(1), arguments])
    return out


def correct(text, check, tools=None):
    """check: [kind, value] of the held-out item."""
    kind, value = check
    if kind == "calls":
        got = calls_of(text, tools)
        return sorted(got, key=json.dumps) == sorted(value, key=json.dumps)
    content = content_of(text)
    low = content.lower()
    if kind == "number":
        numbers = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", content)
        return bool(numbers) and float(numbers[-1]) == float(value)
    if kind == "contains":
        return any(re.search(rf"(?<!\w){re.escape(str(v).lower())}(?!\w)", low) for v in value)
    if kind == "all_in":
        return all(re.search(rf"(?<!\w){re.escape(str(v).lower())}(?!\w)", low) for v in value)
    if kind == "word":
        return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", content) is not None
    if kind == "final_letter":
        return content.rstrip(".\"'")[-1:].lower() == value
    if kind == "exact":
        return content == value.strip()
    if kind == "one_of":
        return content in value
    if kind == "json":
        try:
            return json.loads(content) == value
        except ValueError:
            return False
    if kind == "refuse":
        return any(r in low for r in REFUSALS)
    raise ValueError(kind)


def valid_json(text):
    try:
        json.loads(content_of(text))
        return True
    except ValueError:
        return False


def table(rows):
    """Markdown table from [(skill, wording, mode, right)]."""
    cells = {}
    for skill, wording, mode, right in rows:
        cells.setdefault(skill, {}).setdefault((wording, mode), []).append(right)
    heads = [("seen", "direct"), ("seen", "think"), ("unseen", "direct"), ("unseen", "think")]
    lines = ["| skill | seen wording, direct | seen wording, thinking | unseen wording, direct | unseen wording, thinking | items a cell |", "|---|---|---|---|---|---|"]
    for skill, by in cells.items():
        shown = [f"{100 * sum(by[h]) / len(by[h]):.1f}" if h in by else "-" for h in heads]
        lines.append(f"| {skill} | " + " | ".join(shown) + f" | {max(len(x) for x in by.values())} |")
    return "\n".join(lines)


# What the project asks for: (name, skill, right answers in percent without thinking, with thinking); None: not asked for.
TARGETS = [("sums to 99", "sum", 95, 95), ("differences to 99", "difference", 95, 95), ("products to 12 x 12", "product", 95, 95), ("capitals", "capital", 98, 98),
           ("letter counting", "count", 75, 90), ("reversing", "reverse", None, 80), ("upper case", "upper", None, 80), ("JSON right", "json", 90, 90),
           ("tool choice and arguments", "tool_call", 95, 95), ("answers from tool results", "tool_answer", 95, 95), ("\"I do not know\"", "unknown", 80, 80)]
MOST_LOWER = 15  # points that wordings never trained may be below trained ones


def target_table(rows):
    """Markdown table of the targets against [(skill, wording, mode, right)]; skills that were not asked are left out."""
    cells = {}
    for skill, wording, mode, right in rows:
        cells.setdefault((skill, wording, mode), []).append(right)
    share = {k: 100 * sum(v) / len(v) for k, v in cells.items()}
    lines = ["| skill | target | seen direct / thinking | unseen direct / thinking | target | unseen at most 15 points lower |", "|---|---|---|---|---|---|"]
    for name, skill, direct, think in TARGETS:
        asked = [(m, t) for m, t in (("direct", direct), ("think", think)) if t is not None and (skill, "seen", m) in share and (skill, "unseen", m) in share]
        if not asked:
            continue
        met = all(share[skill, "seen", m] >= t for m, t in asked)
        drop = max(share[skill, "seen", m] - share[skill, "unseen", m] for m, _ in asked)
        both = [" / ".join(f"{share.get((skill, w, m), float('nan')):.1f}" for m in ("direct", "think")) for w in ("seen", "unseen")]
        want = f"{direct}" if direct == think else f"{think} thinking" if direct is None else f"{direct} direct, {think} thinking"
        lines.append(f"| {name} | {want} | {both[0]} | {both[1]} | {'met' if met else '**missed**'} | {'met' if drop <= MOST_LOWER else f'**missed** ({drop:.1f} points)'} |")
    return "\n".join(lines)
