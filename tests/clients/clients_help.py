"""What the tests of clients share: a question, two tools that answer it, and what must come of them.

The second tool needs what the first one tells, so a right answer takes three turns of the model.
"""
import glob
import os
import sys

import pydantic
import pytest
from typing import Literal

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


class City(pydantic.BaseModel):
    """A city."""
    name: Literal["Paris", "Rome", "Lisbon"]
    capital: bool
    founded: int = pydantic.Field(ge=-1000, le=2000)


DESCRIBE = "Describe Paris, the capital of France, as JSON with name, capital and founded."


def check_city(city):
    """Asserts that a value is a City: it was held to its schema, for the model by itself does not write one."""
    if isinstance(city, pydantic.BaseModel):
        city = city.model_dump()
    elif isinstance(city, str):
        city = City.model_validate_json(city).model_dump()
    assert City.model_validate(city).name in ("Paris", "Rome", "Lisbon")


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


def use_openai_2():
    """Takes packages from the environment with version 2 of openai, which lies within that of the others
    (need_clients): llama-index and instructor refuse a later one."""
    if "openai" in sys.modules:
        pytest.skip("another openai is loaded: run each file of tests/clients alone", allow_module_level=True)
    sys.path[:0] = glob.glob(os.path.join(sys.prefix, "llama_index", "lib", "python*", "site-packages"))


LONG = "Tell a very long story."
TOO_LONG = "word " * 20000  # for the context of the model


def check_cancelled(server, read_some):
    """Asserts that the server stops computing an answer when the client goes; read_some() reads a piece of an endless
    stream and closes it."""
    from server_help import until
    before = server.metrics()["quern_clients_gone_total"]
    read_some()
    until(lambda: server.metrics()["quern_clients_gone_total"] == before + 1)
