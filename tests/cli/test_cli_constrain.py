"""quern constrain: what check says of schemas and instances, what bench counts, and that the page's list is fresh."""
import gzip
import json
import shutil
import subprocess
import sys

import pytest

from support import QUERN, call, call_json, fixture

CITY = {"type": "object", "required": ["name", "people"], "additionalProperties": False,
        "properties": {"name": {"type": "string", "minLength": 1}, "people": {"type": "integer", "minimum": 0}}}


@pytest.fixture
def write(tmp_path):
    def one(name, value):
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)
    return one


def check(*args, status=0):
    done = call("constrain", "check", *args, "--json")
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_what_is_enforced(write):
    said = check(write("s", CITY))
    assert said["refused"] is None and said["draft"].startswith("draft 2020-12")
    assert said["enforced"] == {"type": 3, "minimum": 1, "minLength": 1, "required": 1, "properties": 1,
                                "additionalProperties": 1}
    text = call("constrain", "check", write("s", CITY)).stdout.decode()
    assert "enforced: type (3), minimum, minLength, required, properties, additionalProperties\n" in text


def test_annotations(write):
    said = check(write("s", {"type": "string", "format": "slug", "x-order": 1}))
    assert {(a["pointer"], a["keyword"]) for a in said["annotations"]} == {("/format", "format"),
                                                                           ("/x-order", "x-order")}
    assert "annotation: /format: " in call("constrain", "check", write("s", {"format": "slug"})).stdout.decode()


@pytest.mark.parametrize("schema, keyword", [
    ({"items": {"$ref": "http://elsewhere.org/s"}}, "$ref"), ({"format": "regex"}, "format"),
    ({"$schema": "http://elsewhere.org/s"}, "$schema"), ({"pattern": "(a)\\1"}, "pattern"),
    ({"properties": {"a": {"minLength": -1}}}, "minLength")])
def test_refused(write, schema, keyword):
    said = check(write("s", schema), status=1)
    assert f": {keyword}: " in said["refused"] and ("/items" in said["refused"] or "items" not in schema)
    text = call("constrain", "check", write("s", schema)).stdout.decode()
    assert "refused" in text and f": {keyword}: " in text


def test_an_instance_that_is_allowed(write):
    for indent in (None, 2, 4):
        said = check(write("s", CITY), write("i", json.dumps({"name": "Porto", "people": 5}, indent=indent)))
        assert said["instance"] == {"allowed": True, "valid": True, "failures": []}


def test_an_instance_that_is_not(write):
    said = check(write("s", CITY), write("i", '{"name": "Porto", "people": -5}'), status=1)["instance"]
    assert (said["allowed"], said["valid"], said["pointer"]) == (False, False, "/people")
    assert said["failures"] == [{"instance": "/people", "schema": "/properties/people/minimum", "keyword": "minimum",
                                 "message": "is -5, must be at least 0"}]
    text = call("constrain", "check", write("s", CITY), write("i", '{"name": "",\n "people": 1}')).stdout.decode()
    assert "not allowed: line 1 column 11, in /name, behind {\"name\": \"\n" in text
    assert "not valid: /name has 0 characters, must have at least 1 (/properties/name/minLength)\n" in text


def test_order_and_layout_alone(write):
    said = check(write("s", CITY), write("i", '{"people": 5, "name": "Porto"}'), status=1)["instance"]
    assert said["valid"] and said["order_alone"] and not said["layout_alone"]
    said = check(write("s", CITY), write("i", '{\n\n"name": "Porto", "people": 5}'), status=1)["instance"]
    assert said["valid"] and said["layout_alone"] and not said["order_alone"]


def test_bad_files(write):
    for args, why in [((write("s", "{"),), "line 1"), (("nowhere.json",), "nowhere.json"),
                      ((write("s2", CITY), write("i", "[1,]")), "line 1"), ((write("s3", "[]"),), "object")]:
        done = call("constrain", "check", *args)
        assert done.returncode == 1 and why in (done.stderr + done.stdout).decode(), args
    assert call("constrain").returncode == 2
    assert call("constrain", "bench", "x").returncode == 2
    assert call("constrain", "look", "x").returncode == 2


def test_hostile_schemas(write):
    """Deep, large, without end: an answer in a sentence, soon."""
    deep = write("deep", '{"not":' * 3000 + "{}" + "}" * 3000)
    done = call("constrain", "check", deep, timeout=20)
    assert done.returncode == 1 and "nested deeper" in done.stderr.decode()
    for schema, keyword in [({"pattern": "^((a{1000}){1000}){1000}$"}, "pattern"),
                            ({"pattern": "(" * 500 + "a" + ")" * 500}, "pattern"),
                            ({"properties": {"a": {"pattern": "*"}}}, "pattern")]:
        said = json.loads(call("constrain", "check", write("s", schema), "--json", timeout=60).stdout)
        assert f": {keyword}: " in said["refused"]
    endless = call("constrain", "check", write("s", {"$ref": "#"}), write("i", "1"), timeout=20)
    assert endless.returncode == 1 and (endless.stdout + endless.stderr)


# ---- bench ----

LINES = [
    {"name": "good", "schema": CITY, "tests": [{"valid": True, "data": {"name": "a", "people": 1}},
                                               {"valid": False, "data": {"name": "a", "people": 1.5}}]},
    {"name": "order", "schema": CITY, "tests": [{"valid": True, "data": {"people": 1, "name": "a"}}]},
    {"name": "refused", "schema": {"format": "regex"}, "tests": [{"valid": True, "data": "a"}]},
    {"name": "accepts", "schema": CITY, "tests": [{"valid": False, "data": {"name": "a", "people": 1}}]},
    {"name": "refuses", "schema": CITY, "tests": [{"valid": True, "data": {"name": "a", "people": -1}}]},
]
COUNTS = {"schemas": 5, "passed": 2, "refused": 1, "invalid_accepted": 1, "valid_refused": 1, "order_alone": 1}


@pytest.mark.parametrize("zipped", [False, True])
def test_bench_counts(tmp_path, zipped):
    path = tmp_path / ("x.jsonl" + ".gz" * zipped)
    with (gzip.open if zipped else open)(path, "wt") as f:
        f.writelines(json.dumps(line) + "\n" for line in LINES)
    said = call_json("constrain", "bench", path, "seed:", "--json")
    assert {k: said[k] for k in COUNTS} == COUNTS
    assert list(said) == [*COUNTS, "mask_us", "compile_us"]
    for times in said["mask_us"], said["compile_us"]:
        assert list(times) == ["mean", "p50", "p99", "max"] and 0 < times["p50"] <= times["p99"] <= times["max"]
    named = call("constrain", "bench", path, "seed:", "--names").stderr.decode()
    assert [line.split(": ")[1] for line in named.splitlines()] == ["refused", "accepts", "refuses"]


def test_bench_refuses(tmp_path):
    path = tmp_path / "x.jsonl"
    for text, why in [("{}\n", "line 1: a line must have"),
                      ('{"schema": true, "tests": [1]}', "line 1: test 0 must have"),
                      ("\n{\n", "line 2: "), ('{"schema": true, "tests": [{"valid": 1, "data": 1}]}', "test 0")]:
        path.write_text(text)
        done = call("constrain", "bench", path, "seed:")
        assert done.returncode == 1 and why in done.stderr.decode() and str(path) in done.stderr.decode()
    path.write_bytes(gzip.compress(b'{"schema": true, "tests": []}\n' * 1000)[:-20])
    assert call("constrain", "bench", path, "seed:").returncode == 1
    assert call("constrain", "bench", tmp_path / "none", "seed:").returncode == 1


def test_a_folder_with_a_tokenizer_alone(tmp_path):
    with gzip.open(fixture("tokenizers/real/smollm2/vocab.gguf.gz")) as f, open(tmp_path / "m.gguf", "wb") as g:
        shutil.copyfileobj(f, g)
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    said = call_json("constrain", "bench", path, tmp_path / "m.gguf", "--json")
    assert {k: said[k] for k in COUNTS} == COUNTS


def test_the_list_of_refused_groups_is_fresh():
    suite = fixture("json_schema/test_suite.jsonl.gz")
    done = subprocess.run([sys.executable, "tools/schema_groups.py", "--check", QUERN, suite], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr
