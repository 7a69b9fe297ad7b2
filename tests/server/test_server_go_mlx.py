"""The routes of docs/go-mlx.md have the statuses that the page says, and the fields that it names are refused."""
import re

import pytest

from server_help import server  # noqa: F401 (a fixture)

ROUTE = re.compile(r"^\| `(GET|POST|DELETE) (/\S*)` \| (\d+) \|", re.MULTILINE)


def read_page():
    with open("docs/go-mlx.md", encoding="utf-8") as f:
        return f.read()


def chat(**fields):
    return {"messages": [{"role": "user", "content": "The mill"}], "max_tokens": 2, **fields}


@pytest.mark.parametrize("method, path, status", ROUTE.findall(read_page()))
def test_route(server, method, path, status):
    body = chat() if path.endswith("/completions") else None
    assert server.request(method, path.replace("ID", server.name), body)[0] == int(status)


def test_fields(server):
    sentence = re.search(r"^The fields (.*) are refused", read_page(), re.MULTILINE).group(1)
    names = re.findall(r"`(\w+)`", sentence)
    assert len(names) == 4
    for name in names:
        status, _, answer = server.post("/v1/chat/completions", chat(**{name: 1}))
        assert (status, answer["error"]["param"]) == (400, name)
