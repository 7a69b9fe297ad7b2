"""instructor: its modes over the client openai."""
import pytest

from clients_help import DESCRIBE, MAX_TOKENS, City, check_city, use_openai_2

use_openai_2()

import instructor
from openai import OpenAI


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON"])
def test_modes(server, mode):
    """Of these JSON alone sends no schema that could be enforced: what comes is an object."""
    client = instructor.from_openai(OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120),
                                    mode=instructor.Mode[mode])
    asked = {"model": server.name, "messages": [{"role": "user", "content": DESCRIBE}], "temperature": 0,
             "max_tokens": MAX_TOKENS, "max_retries": 0}
    if mode == "JSON":
        text = client.client.chat.completions.create(
            **{k: v for k, v in asked.items() if k != "max_retries"}, response_format={"type": "json_object"})
        assert text.choices[0].message.content.startswith("{")
        return
    check_city(client.chat.completions.create(response_model=City, **asked))
