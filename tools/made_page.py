"""A page of docs/ that is made from the source: written by `make docs`, compared by lint."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def stale(name, page, error, source):
    """None, or why the page of that name in the tree is not what page() gives, which may raise error."""
    try:
        wanted = page()
    except error as e:
        return str(e)
    try:
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            return None if f.read() == wanted else f"{name}: not what the {source} say (make docs)"
    except FileNotFoundError:
        return f"{name}: missing (make docs)"


def write(name, page, error):
    """The exit status of a program that writes it."""
    try:
        text = page()
    except error as e:
        print(e, file=sys.stderr)
        return 1
    with open(os.path.join(ROOT, name), "w", encoding="utf-8") as f:
        f.write(text)
    return 0
