"""The server with a real model: what many clients get at once is what each would get alone."""
import asyncio

import pytest

from server_help import Server, client, openai
from support import real_model

QUESTIONS = [
    "Why is the sky blue?", "Name three rivers in Europe.", "Write a line about a mill.", "What is seven times eight?",
    "Tell me a short story about a goat that finds a hat on a windy hill and wears it to the market.",
    "Who wrote Faust?", "Translate to French: good morning.", "Give me one word."]


@pytest.fixture(scope="module")
def server():
    s = Server(real_model("smollm2"))
    yield s
    assert s.stop() == 0


def body(server, i, **fields):
    return {"model": server.name, "messages": [{"role": "user", "content": QUESTIONS[i]}], "max_tokens": 16 + i,
            "seed": i + 1, "temperature": 1, **fields}


@pytest.fixture(scope="module")
def alone(server):
    """The answers of requests that are sent one by one, each without anything that was computed before."""
    c = client(server)
    answers = []
    for i in range(len(QUESTIONS)):
        got = c.chat.completions.create(**body(server, i), extra_body={"cache_prompt": False})
        assert got.usage.prompt_tokens_details.cached_tokens == 0 and got.choices[0].message.content
        answers.append(got.choices[0].message.content)
    assert len(set(answers)) == len(answers)
    return answers


def test_whole_and_streamed(server, alone):
    c = client(server)
    for i in (0, 4):
        asked = body(server, i)
        assert c.chat.completions.create(**asked).choices[0].message.content == alone[i]
        text, usage = "", None
        for chunk in c.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        assert text == alone[i]
        # The same prompt again: all but its last token is known.
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_eight_streams(server, alone):
    """Together, streamed, in two rounds: once with what they share, once each under a salt of its own."""
    package = openai()

    async def one(c, i, salt):
        stream = await c.chat.completions.create(**body(server, i), stream=True,
                                                 extra_body={"cache_salt": f"{salt} {i}" if salt else None})
        return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

    async def run(salt):
        async with package.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120) as c:
            return await asyncio.gather(*(one(c, i, salt) for i in range(len(QUESTIONS))))

    for salt in (None, "own"):
        assert asyncio.run(run(salt)) == alone


def test_choices(server, alone):
    """n choices: each is what it is alone with its seed."""
    c = client(server)
    got = c.chat.completions.create(**body(server, 2), n=3, logprobs=True)
    for k, choice in enumerate(got.choices):
        one = c.chat.completions.create(**body(server, 2, seed=3 + k), logprobs=True).choices[0]
        assert choice.message.content == one.message.content
        assert [t.logprob for t in choice.logprobs.content] == [t.logprob for t in one.logprobs.content]
    assert got.choices[0].message.content == alone[2]


def test_turns(server):
    """A second turn computes its new message and what closes the turn before, no more."""
    c = client(server)
    messages = [{"role": "user", "content": "Tell me about windmills in one sentence."}]
    for turn in range(3):
        got = c.chat.completions.create(model=server.name, messages=messages, max_tokens=24, seed=5, temperature=0)
        usage = got.usage
        if turn:
            assert usage.prompt_tokens_details.cached_tokens >= known, usage
            assert usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens < 24, usage
        known = usage.total_tokens - 1
        messages += [{"role": "assistant", "content": got.choices[0].message.content},
                     {"role": "user", "content": "And then?"}]


def test_the_rest(server):
    """Text, vectors, and a refusal."""
    c = client(server)
    got = c.completions.create(model=server.name, prompt="The capital of France is", max_tokens=4, temperature=0)
    assert "Paris" in got.choices[0].text
    near = ["The cat sleeps on the sofa.", "A cat is sleeping on the couch.", "Interest rates rose by half a percent."]
    vectors = [d.embedding for d in c.embeddings.create(model=server.name, input=near).data]
    product = [sum(x * y for x, y in zip(vectors[0], v)) for v in vectors]
    assert abs(product[0] - 1) < 1e-4 and product[1] > product[2]
    with pytest.raises(openai().BadRequestError) as caught:
        c.chat.completions.create(model=server.name, messages=[{"role": "user", "content": "x " * 20000}])
    assert caught.value.code == "context_length_exceeded"
