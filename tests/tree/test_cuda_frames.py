"""tools/cuda_frames.py: kernels whose stack frames or spills exceed the table's bounds fail the build of the device
cuda."""
import subprocess
import sys

TABLE = """# comments and empty lines

checked sm_90a
checked sm_80
clean product
sm_90a attend 96 10   # bytes
* sort 64 0
"""


def report(*kernels, arch="sm_90a"):
    text = "ptxas info    : 0 bytes gmem\n"
    for name, frame, stores, loads in kernels:
        text += (f"ptxas info    : Compiling entry function '{name}' for '{arch}'\n"
                 f"ptxas info    : Function properties for {name}\n"
                 f"    {frame} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
                 "ptxas info    : Used 40 registers, used 1 barriers\n")
    return text


GOOD = (("_Z7product", 0, 0, 0), ("_Z6attendILi64E", 96, 4, 6), ("_Z4sort", 64, 0, 0), ("_Z4copy", 0, 0, 0))


def run(tmp_path, *reports, table=TABLE, options=()):
    (tmp_path / "table").write_text(table)
    paths = []
    for i, text in enumerate(reports):
        paths.append(tmp_path / f"{i}.ptxas")
        paths[-1].write_text(text)
    out = subprocess.run([sys.executable, "tools/cuda_frames.py", "--table", tmp_path / "table", *options, *paths],
                         capture_output=True, text=True)
    return out.returncode, out.stdout + out.stderr


def test_within_the_bounds(tmp_path):
    status, said = run(tmp_path, report(*GOOD[:2]), report(*GOOD[2:]))
    assert status == 0 and "sm_90a: 4 functions, 2 with a frame, all within their bounds" in said, said
    status, said = run(tmp_path, report(*GOOD), options=["--list"])
    assert status == 0 and said.splitlines() == ["sm_90a _Z4sort 64 0", "sm_90a _Z6attendILi64E 96 10"], said


def test_growth_fails(tmp_path):
    for name, sizes in (("_Z6attendILi64E", (97, 0, 0)), ("_Z6attendILi64E", (96, 5, 6)), ("_Z7product", (8, 0, 0)),
                        ("_Z7product", (0, 0, 4)), ("_Z4copy", (8, 8, 8)), ("_Z4sort", (64, 4, 0))):
        kernels = [(n, *(sizes if n == name else old)) for n, *old in GOOD]
        status, said = run(tmp_path, report(*kernels))
        has = f"sm_90a: {name} has {sizes[0]} bytes of stack frame and {sum(sizes[1:])} of spills"
        assert status == 1 and has in said
        assert len(said.splitlines()) == 1, said


def test_a_function_inside_a_kernel_counts(tmp_path):
    text = report(*GOOD) + ("ptxas info    : Function properties for _Z5inner\n"
                            "    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n")
    status, said = run(tmp_path, text)
    assert status == 1 and "_Z5inner has 16 bytes" in said, said


def test_bounds_belong_to_an_architecture(tmp_path):
    others = (("_Z7product", 0, 0, 0), ("_Z4sort", 8, 0, 0))
    status, said = run(tmp_path, report(*GOOD), report(*others, arch="sm_80"))
    assert status == 0, said
    status, said = run(tmp_path, report(*GOOD), report(*others, ("_Z6attend", 8, 0, 0), arch="sm_80"))
    assert status == 1 and "sm_80: _Z6attend has 8 bytes of stack frame" in said, said


def test_other_architectures_are_told(tmp_path):
    status, said = run(tmp_path, report(*GOOD), report(("_Z4copy", 8, 0, 0), ("_Z4move", 0, 0, 0), arch="sm_120"))
    assert status == 0 and "sm_120: 2 functions, 1 with a frame, not checked" in said, said


def test_a_table_that_fits_nothing_fails(tmp_path):
    status, said = run(tmp_path, report(*GOOD[1:]))
    assert status == 1 and "line 5 of the table (product) fits no function" in said, said
    status, said = run(tmp_path, report(*GOOD), table=TABLE + "* gone 8 8\n")
    assert status == 1 and "line 8 of the table (gone) fits no function" in said, said
    status, said = run(tmp_path, report(*GOOD), table=TABLE + "* product 8 8\n")
    assert status == 1 and "_Z7product is in line 5, which wants it clean, and in line 8" in said, said


def test_no_report(tmp_path):
    for text, why in (("", "no function"), ("    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n",
                                            "none of ptxas -v")):
        status, said = run(tmp_path, text)
        assert status == 1 and why in said, said
    status, said = run(tmp_path, report(*GOOD), table="product\n")
    assert status == 1 and "line 1 of the table" in said, said
