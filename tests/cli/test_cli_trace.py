"""quern trace: two runs compared step by step, time added up by kernel, files that are no traces."""
import json

from support import call, fixture

RUN = ["run", fixture("models/llama"), "--raw", "-p", "hello", "-n", 2, "-t", 1]


def trace(path, *options):
    out = call(*RUN, *options, env={"QUERN_TRACE": str(path)})
    assert out.returncode == 0, out.stderr
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_equal_and_different_runs(tmp_path):
    steps = trace(tmp_path / "a")
    assert len(steps) > 10 and {"program", "step", "name", "kernel", "shape", "ns", "bytes", "hash"} <= set(steps[0])
    assert len(trace(tmp_path / "b")) == len(steps)
    out = call("trace", "diff", tmp_path / "a", tmp_path / "b")
    assert (out.returncode, out.stdout.decode()) == (0, f"{len(steps)} steps, equal bits\n")

    changed = dict(steps[7], hash="0" * 16)
    lines = [json.dumps(s) + "\n" for s in steps]
    (tmp_path / "b").write_text("".join(lines[:7] + [json.dumps(changed) + "\n"] + lines[8:]))
    out = call("trace", "diff", tmp_path / "a", tmp_path / "b")
    assert out.returncode == 1
    assert out.stdout.decode() == (f"line 8: program {changed['program']}, step {changed['step']} {changed['name']} "
                                   f"({changed['kernel']}): bits differ: {steps[7]['hash']}, {changed['hash']}\n")

    (tmp_path / "b").write_text("".join(lines[:5]))
    out = call("trace", "diff", tmp_path / "a", tmp_path / "b")
    assert (out.returncode, out.stdout.decode()) == (1, f"{tmp_path}/b ends after 5 steps, the other continues\n")


def test_sum_by_kernel(tmp_path):
    step = {"program": "body", "step": 0, "name": "n", "shape": [1], "bytes": 4, "hash": "0"}
    rows = [("matmul", 3_000_000), ("norm", 1_000_000), ("matmul", 4_000_000), ("\x1b[2Jx", 0)]
    (tmp_path / "a").write_text("".join(json.dumps({**step, "kernel": k, "ns": ns}) + "\n" for k, ns in rows))
    out = call("trace", "sum", tmp_path / "a")
    assert out.returncode == 0
    assert [line.split() for line in out.stdout.decode().splitlines()] == [
        ["matmul", "2", "steps", "7.000", "ms", "87.50%"], ["norm", "1", "steps", "1.000", "ms", "12.50%"],
        ["\\x1b[2Jx", "1", "steps", "0.000", "ms", "0.00%"]]


def test_what_is_no_trace(tmp_path):
    (tmp_path / "a").write_text('{"program":"p"}\n')
    for path, message in ((tmp_path, "Is a directory"), (tmp_path / "absent", "No such file or directory"),
                          (tmp_path / "a", "line 1: not a line of a trace")):
        out = call("trace", "sum", path)
        assert out.returncode == 1 and out.stderr.decode() == f"quern: {path}: {message}\n"
    assert call("trace", "diff", tmp_path, tmp_path).returncode == 1
    out = call("trace", "sum", tmp_path / "a", tmp_path / "a")
    assert out.returncode == 2 and b"expected `diff A B` or `sum A`" in out.stderr
