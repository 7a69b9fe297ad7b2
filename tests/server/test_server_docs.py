"""docs/server.md names every route, field, limit and metric that the tables of the program have, and no metric more."""
import os
import re

import pytest

from server_help import Server, has_store

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "docs", "server.md")


@pytest.fixture(scope="module")
def page():
    with open(PAGE, encoding="utf-8") as f:
        return f.read()


@pytest.fixture(scope="module")
def words(page):
    """What stands in backticks, and the parts of it."""
    quoted = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S))
    return set(quoted) | {part for q in quoted for part in re.split(r"[^\w./{}-]+", q)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    options = ("--store", folder / "s") if has_store() else ()
    s = Server("mock", "--backend", "mock", "--prompt-cache", folder / "cache", *options)
    yield s
    assert s.stop() == 0


def schemas(node):
    """The schemas of bodies that an operation of the description takes."""
    for content in node.get("requestBody", {}).get("content", {}).values():
        yield content["schema"]


def names(schema):
    for key, value in (schema or {}).get("properties", {}).items():
        yield key
        yield from names(value)


def test_routes(server, page):
    """A path's own part stands in the page; IDs and names are capitals there."""
    missing = []
    for path in server.request("GET", "/openapi.json")[2]["paths"]:
        fixed = re.sub(r"/?\{[^}]*\}.*", "", path) or "/"
        rest = path[len(fixed):]
        last = rest.rsplit("}", 1)[-1]
        if not re.search(rf"`[^`]*{re.escape(fixed)}[/`]", page) and f"{fixed}" not in page:
            missing.append(path)
        elif last and f"...{last}" not in page and f"ID{last}" not in page:
            missing.append(path)
    assert not missing


def test_fields(server, words):
    missing = {}
    for path, operations in server.request("GET", "/openapi.json")[2]["paths"].items():
        for operation in operations.values():
            for schema in schemas(operation):
                absent = [n for n in names(schema) if n not in words]
                if absent:
                    missing[path] = absent
    assert not missing


def test_metrics(server, page):
    text = server.request("GET", "/metrics")[2]
    text = text if isinstance(text, str) else text.decode()
    has = set(re.findall(r"^# TYPE (\w+) ", text, re.M))
    assert len(has) > 10
    # Those of a card are written on a machine that has one.
    with open(os.path.join(ROOT, "src", "server", "route_metrics.c"), encoding="utf-8") as f:
        has |= set(re.findall(r'"(quern_\w+)"', f.read()))
    named = set(re.findall(r"quern_\w+", page))
    assert has - named == set()
    assert {n for n in named if re.sub(r"_(bucket|sum|count)$", "", n) not in has} == set()


def test_limits(page):
    """Each bound of a request has its figure in the page."""
    with open(os.path.join(ROOT, "src", "server", "core", "request.h"), encoding="utf-8") as f:
        header = f.read()
    bounds = re.findall(r"^\s+(QN_REQUEST_\w+_MAX) = ([\d <]+),", header, re.M)
    assert len(bounds) >= 12
    missing = []
    for name, value in bounds:
        figure = f"{eval(value):,}"
        if not re.search(rf"(?<![\d,]){re.escape(figure)}(?!\d|,\d)", page):
            missing.append((name, figure))
    assert not missing
