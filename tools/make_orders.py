#!/usr/bin/env python3
"""Writes a small task to fine-tune a model on: notes of customers, and the orders that are in them.

usage: tools/make_orders.py FOLDER        (tests/golden/orders is what it writes)

A note says in one of ten ways what somebody orders; some change their mind on the way, and the last word counts. The
answer is "item | amount | city | day". FOLDER gets train.jsonl, valid.jsonl and test.jsonl, lines of {"prompt",
"completion"}; no note is in two of them, and in test.jsonl are cities that no other note has. The texts are this
project's own. The same on every machine.
"""
import json
import os
import random
import sys

ASK = "Write the order as: item | amount | city | day.\n"
NAMES = ["Anna Berg", "Tom Hale", "Mira Sato", "Luis Prado", "Eva Lind", "Omar Aziz", "Jane Cole", "Ivan Petrov"]
ITEMS = ["apples", "bricks", "candles", "chairs", "lamps", "mirrors", "nails", "oranges", "pencils", "plates", "ropes",
         "tiles", "towels", "wheels"]
CITIES = ["Oslo", "Lima", "Rome", "Cairo", "Delhi", "Paris", "Quito", "Seoul", "Tokyo", "Vienna"]
NEW_CITIES = ["Dublin", "Madrid", "Boston", "Athens"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
WAYS = ["{name} here. Please send {n} {item} to {city} by {day}.",
        "Could you bring {n} {item} on {day}? We are in {city}. Thanks, {name}",
        "For {city}, {day}: {n} {item}. Bill it to {name}.",
        "Hello! I first wanted {other} {item}, but now I need {n}. They go to {city} on {day}.",
        "{day} would be fine for us in {city}. We take {n} {item}, signed {name}.",
        "This is {name}. Last time we had {other} {wrong}, now we want {n} {item}, {day}, in {city}.",
        "Not {wrong} this time: {n} {item}, please. The shop in {city} opens on {day}.",
        "Dear team, {name} asked for {n} {item}. The van to {city} leaves on {day}.",
        "We order {n} {item} for {city}. Not on {late}, that is too late: on {day}!",
        "Hi, {name} again. The {item} for {city}: make it {n} rather than {other}, and come on {day}."]
SPLITS = {"train": 800, "valid": 50, "test": 100}


def make_line(rng, cities):
    def pick(values):
        return values[int(rng.random() * len(values))]

    item, day, n = pick(ITEMS), pick(DAYS), 2 + int(rng.random() * 97)
    words = dict(name=pick(NAMES), item=item, city=pick(cities), day=day, n=n,
                 wrong=pick([i for i in ITEMS if i != item]), late=pick([d for d in DAYS if d != day]),
                 other=pick([m for m in range(2, 99) if m != n]))
    return {"prompt": ASK + pick(WAYS).format(**words),
            "completion": f"{item} | {n} | {words['city']} | {day}"}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    rng, seen = random.Random(8), set()
    os.makedirs(sys.argv[1], exist_ok=True)
    for split, count in SPLITS.items():
        lines = []
        while len(lines) < count:
            line = make_line(rng, CITIES + NEW_CITIES if split == "test" else CITIES)
            if line["prompt"] not in seen:
                seen.add(line["prompt"])
                lines.append(json.dumps(line) + "\n")
        with open(os.path.join(sys.argv[1], split + ".jsonl"), "w", encoding="utf-8") as f:
            f.writelines(lines)


if __name__ == "__main__":
    main()
