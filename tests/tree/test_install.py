"""`make install`: what is installed is whole, usable from outside the tree, and gone after `make uninstall`.

The built tree is used as it is: B is the folder of the program under test (support.QUERN).
"""
import os
import re
import shutil
import subprocess

import pytest

from support import QUERN, call, fixture, leave_out

ROOT = os.getcwd()
BUILD = os.path.dirname(os.path.realpath(QUERN))
PREFIX = "/opt/quern"
PROMPT = "The mill"
ENV = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PREFIX", "DESTDIR")}
CMAKE = """cmake_minimum_required(VERSION 3.16)
project(outside C)
find_package(quern VERSION REQUIRED CONFIG)
add_executable(generate generate.c)
target_link_libraries(generate PRIVATE quern::quern)
add_executable(generate_static generate.c)
target_link_libraries(generate_static PRIVATE quern::quern_static)
file(WRITE ${CMAKE_BINARY_DIR}/version "${quern_VERSION}")
"""


def shell(*command, cwd=None, **env):
    got = subprocess.run([str(c) for c in command], cwd=cwd, env={**ENV, **env}, capture_output=True, text=True)
    said = (got.stdout + got.stderr)[-3000:]
    assert got.returncode == 0, f"{' '.join(map(str, command))}: exit {got.returncode}\n{said}"
    return got.stdout


def need(program):
    if not shutil.which(program):
        leave_out(f"{program} is absent (apt-get install {program})")
    return program


def make(target, *variables):
    build = os.path.relpath(BUILD, ROOT)
    return shell("make", "-s", "B=" + (BUILD if build.startswith("..") else build), target, *variables)


def files_below(folder):
    return sorted(os.path.relpath(os.path.join(where, name), folder)
                  for where, _, names in os.walk(folder) for name in names)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Where it was installed, and another tree that was moved after it had been installed."""
    stage, other = tmp_path_factory.mktemp("stage"), tmp_path_factory.mktemp("other")
    for folder in (stage, other):
        make("install", f"DESTDIR={folder}", f"PREFIX={PREFIX}")
    os.rename(f"{other}{PREFIX}", f"{other}/elsewhere")
    return f"{stage}{PREFIX}", f"{other}/elsewhere"


@pytest.fixture(scope="module")
def answer():
    """What the example must print: the words of `quern run`."""
    model = fixture("models/llama")
    got = call("run", model, "-p", PROMPT, "-n", 64)
    assert got.returncode == 0, got.stderr
    return model, got.stdout


def header_functions(prefix):
    names = set()
    for name in os.listdir(f"{prefix}/include/quern"):
        with open(f"{prefix}/include/quern/{name}") as f:
            names |= set(re.findall(r"^QN_API\s[^;(]*?\b(qn_\w+)\(", f.read(), re.MULTILINE))
    return names


def check_answer(program, answer, **env):
    model, expected = answer
    got = subprocess.run([str(program), os.path.abspath(model), PROMPT], env={**ENV, **env}, capture_output=True)
    assert got.returncode == 0, got.stderr.decode()
    assert got.stdout == expected


def test_files(installed):
    prefix, version = installed[1], call("--version").stdout.decode().split()[1]
    abi = ".".join(version.split(".")[:2 if version.startswith("0.") else 1])
    names = files_below(prefix)
    for name in ["bin/quern", "lib/libquern.a", "lib/libquern.so", f"lib/libquern.so.{version}",
                 "lib/pkgconfig/quern.pc", "lib/cmake/quern/quernConfig.cmake", "share/man/man1/quern.1",
                 "share/doc/quern/api.md", "share/bash-completion/completions/quern",
                 "share/zsh/site-functions/_quern", "share/fish/vendor_completions.d/quern.fish"]:
        assert name in names
    assert sorted(os.listdir(f"{prefix}/include/quern")) == sorted(os.listdir("include/quern"))
    for link, target in [("libquern.so", f"libquern.so.{abi}"), (f"libquern.so.{abi}", f"libquern.so.{version}")]:
        assert os.readlink(f"{prefix}/lib/{link}") == target
    dynamic = shell("readelf", "-d", f"{prefix}/lib/libquern.so")
    assert re.search(rf"SONAME.*\[libquern\.so\.{re.escape(abi)}\]", dynamic), dynamic
    assert shell(f"{prefix}/bin/quern", "--version") == call("--version").stdout.decode()
    for name in names:
        assert os.stat(f"{prefix}/{name}").st_size > 0, f"{name} is empty"


def test_nothing_names_where_it_was_built(installed):
    prefix = installed[0]
    for name in files_below(prefix):
        with open(f"{prefix}/{name}", "rb") as f:
            data = f.read()
        for place in (ROOT, BUILD, prefix, PREFIX):
            assert place.encode() not in data, f"{name} contains {place}"


def test_symbols(installed):
    """The shared library exports what the headers declare and nothing else; the archive's names are ours."""
    _, prefix = installed
    rows = shell("nm", "-D", "--defined-only", f"{prefix}/lib/libquern.so").splitlines()
    exported = {r.split()[-1] for r in rows}
    assert exported == header_functions(prefix)
    with open(f"{prefix}/share/doc/quern/api.md") as f:
        documented = {n for line in f if line.startswith("### ") for n in line[4:].strip().split(", ")}
    assert exported <= documented
    rows = shell("nm", "-g", "--defined-only", f"{prefix}/lib/libquern.a").splitlines()
    foreign = [r.split()[-1] for r in rows if len(r.split()) == 3 and not r.split()[-1].startswith("qn_")]
    assert foreign == []


@pytest.mark.parametrize("place", [0, 1], ids=["where it was installed", "moved"])
def test_pkg_config(installed, answer, tmp_path, place):
    prefix = installed[place]
    need("pkg-config")
    shutil.copy("examples/generate.c", tmp_path)
    env = {"PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
    assert shell("pkg-config", "--modversion", "quern", **env) == call("--version").stdout.decode().split()[1] + "\n"
    flags = shell("pkg-config", "--cflags", "--libs", "quern", **env).split()
    shell("cc", "generate.c", *flags, "-o", "shared", cwd=tmp_path)
    check_answer(tmp_path / "shared", answer, LD_LIBRARY_PATH=f"{prefix}/lib")
    flags = shell("pkg-config", "--static", "--cflags", "--libs", "quern", **env).split()
    shell("cc", "-static", "generate.c", *flags, "-o", "static", cwd=tmp_path)
    check_answer(tmp_path / "static", answer)


@pytest.mark.parametrize("place", [0, 1], ids=["where it was installed", "moved"])
def test_cmake(installed, answer, tmp_path, place):
    prefix = installed[place]
    need("cmake")
    shutil.copy("examples/generate.c", tmp_path)
    version = call("--version").stdout.decode().split()[1]
    (tmp_path / "CMakeLists.txt").write_text(CMAKE.replace("VERSION REQUIRED", version + " REQUIRED"))
    shell("cmake", "-S", ".", "-B", "out", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=tmp_path)
    shell("cmake", "--build", "out", cwd=tmp_path)
    assert (tmp_path / "out/version").read_text() == version
    for program in ("generate", "generate_static"):
        check_answer(tmp_path / "out" / program, answer)
    assert "libquern" in shell("readelf", "-d", tmp_path / "out/generate")
    assert "libquern" not in shell("readelf", "-d", tmp_path / "out/generate_static")


def test_cmake_version_is_checked(installed, tmp_path):
    need("cmake")
    version = call("--version").stdout.decode().split()[1]
    major, minor, patch = map(int, version.split("."))
    for wanted, fits in [("", True), (version, True), (f"{major}.{minor}", True),
                         (f"{major}.{minor}.{patch + 1}", False), (f"{major}.{minor + 1}", False),
                         (f"{major + 1}", False)]:
        (tmp_path / "v.cmake").write_text(
            f'set(PACKAGE_FIND_VERSION "{wanted}")\n'
            f"include({installed[1]}/lib/cmake/quern/quernConfigVersion.cmake)\n"
            'message(STATUS "fits ${PACKAGE_VERSION_COMPATIBLE}")\n')
        got = shell("cmake", "-P", tmp_path / "v.cmake")
        assert f"fits {str(fits).upper()}" in got, f"version {wanted!r}: {got}"


def test_headers_stand_alone_in_c_and_cpp(installed, answer, tmp_path):
    """Each header by itself, strictly, in the oldest standards; the example is C++ as well."""
    _, prefix = installed
    need("g++")
    for name in sorted(os.listdir(f"{prefix}/include/quern")):
        (tmp_path / "one.c").write_text(f"#include <quern/{name}>\nint main(void) {{ return 0; }}\n")
        for compiler in (["cc", "-std=c11"], ["g++", "-x", "c++", "-std=c++11"]):
            shell(*compiler, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{prefix}/include",
                  "one.c", cwd=tmp_path)
    shell("g++", "-x", "c++", "-std=c++20", f"{ROOT}/examples/generate.c", f"-I{prefix}/include",
          f"-L{prefix}/lib", "-lquern", "-o", "generate", cwd=tmp_path)
    check_answer(tmp_path / "generate", answer, LD_LIBRARY_PATH=f"{prefix}/lib")


def test_folders_of_a_distribution_and_uninstall(tmp_path):
    """LIBDIR of its own depth, GNU's small names; uninstall leaves other people's files alone, and nothing of ours."""
    names = [f"DESTDIR={tmp_path}", "prefix=/usr", "LIBDIR=/usr/lib/x86_64-linux-gnu", "mandir=/usr/man"]
    make("install", *names)
    assert (tmp_path / "usr/man/man1/quern.1").exists()
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    flags = shell("pkg-config", "--libs", "--cflags", "quern", PKG_CONFIG_PATH=f"{folder}/pkgconfig").split()
    places = {f[:2]: os.path.normpath(f[2:]) for f in flags if f[:2] in ("-L", "-I")}
    assert places == {"-L": str(folder), "-I": str(tmp_path / "usr/include")}
    other = folder / "pkgconfig/other.pc"
    other.write_text("not ours\n")
    n_files = len(files_below(tmp_path)) - 1
    said = make("uninstall", *names)
    assert said == f"removed {n_files} files and 3 empty folders below {tmp_path}/usr\n"
    assert files_below(tmp_path) == ["usr/lib/x86_64-linux-gnu/pkgconfig/other.pc"]
    assert not [f for f, _, _ in os.walk(tmp_path) if f.endswith("/quern")]


def test_uninstall_of_a_prefix_of_its_own(tmp_path):
    """Nothing is left of it, but where other people's files lie."""
    for other in (None, "own/share/fish/other"):
        make("install", f"PREFIX={tmp_path}/own")
        if other:
            (tmp_path / other).write_text("not ours\n")
        make("uninstall", f"PREFIX={tmp_path}/own")
        assert files_below(tmp_path) == ([other] if other else [])
        left = [os.path.relpath(f, tmp_path) for f, _, _ in os.walk(tmp_path)]
        assert left == ([".", "own", "own/share", "own/share/fish"] if other else ["."])
