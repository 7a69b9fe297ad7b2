"""smolagents: its model over a server of OpenAI's API, with a form and with a call that must come."""
import json

import pytest
from smolagents import OpenAIServerModel, tool

from clients_help import DESCRIBE, FUNCTIONS, MAX_TOKENS, QUESTION, City, check_city


@pytest.fixture(scope="module")
def model(server):
    return OpenAIServerModel(model_id=server.name, api_base=server.url + "/v1", api_key="none", temperature=0,
                             max_tokens=MAX_TOKENS, client_kwargs={"max_retries": 0, "timeout": 120})


@tool
def find_capital(country: str) -> str:
    """Tells the capital of a country.

    Args:
        country: its name
    """
    return FUNCTIONS["find_capital"](country)


@tool
def get_weather(city: str) -> str:
    """Tells the weather in a city.

    Args:
        city: its name
    """
    return FUNCTIONS["get_weather"](city)


def asked(text):
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def test_form(model):
    schema = {"type": "json_schema",
              "json_schema": {"name": "city", "schema": City.model_json_schema(), "strict": True}}
    check_city(model.generate(asked(DESCRIBE), response_format=schema).content)


def test_required(model):
    """By itself it asks for a call."""
    message = model.generate(asked(QUESTION), tools_to_call_from=[find_capital, get_weather])
    call = message.tool_calls[0].function
    arguments = call.arguments if isinstance(call.arguments, dict) else json.loads(call.arguments)
    assert call.name == "find_capital" and arguments == {"country": "Portugal"}
