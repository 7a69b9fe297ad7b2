"""What the tests of clients share: a question, two tools that answer it, and what must come of them.

The second tool needs what the first one tells, so a right answer takes three turns of the model.
"""
import glob
import os
import sys

import pytest

QUESTION = "What is the weather in the capital of Portugal?"
PLAIN = "What is the capital of France?"
MAX_TOKENS = 60
WEATHER = "sunny, 24 degrees"
LOOP = [("find_capital", "Portugal"), ("get_weather", "Lisbon")]

called = []  # emptied before each test


def find_capital(country: str) -> str:
    """Tells the capital of a country."""
    called.append(("find_capital", country))
    return {"Portugal": "Lisbon"}.get(country, "unknown")


def get_weather(city: str) -> str:
    """Tells the weather in a city."""
    called.append(("get_weather", city))
    return {"Lisbon": WEATHER}.get(city, "unknown")


FUNCTIONS = {"find_capital": find_capital, "get_weather": get_weather}
TOOLS = [{"type": "function", "function": {
    "name": function.__name__, "description": function.__doc__,
    "parameters": {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}}}
    for function, parameter in ((find_capital, "country"), (get_weather, "city"))]


def check_loop(text):
    """Asserts that each tool was called once, with the right argument, and that the answer mentions the result."""
    assert called == LOOP
    assert WEATHER in text


def check_plain(whole, pieces):
    """Asserts that a text came whole, and the same text in pieces."""
    pieces = [p for p in pieces if p]
    assert "Paris" in whole and "".join(pieces) == whole and len(pieces) > 2


def check_usage(prompt, completion, total):
    assert prompt > 10 and 2 < completion <= MAX_TOKENS and total == prompt + completion


def use_llama_index():
    """Takes packages from llama-index's environment, which lies within that of the others (need_clients)."""
    if "openai" in sys.modules:
        pytest.skip("another openai is loaded: run each file of tests/clients alone", allow_module_level=True)
    sys.path[:0] = glob.glob(os.path.join(sys.prefix, "llama_index", "lib", "python*", "site-packages"))
