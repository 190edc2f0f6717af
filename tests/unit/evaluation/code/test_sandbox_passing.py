"""What passes in the sandbox, and what does not: programs that know no right answer, and try everything else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.sandbox_users import USERS, run_as

from efficientbench.data_tools.chat.examples import open_examples
from efficientbench.data_tools.chat.tasks import humaneval
from efficientbench.evaluation.code.sandbox import Limits, run_program

TESTS = """
import math

def distance(a, b):
    return abs(a - b)

from program import f

def check(candidate):
    assert candidate([1, 2, 3]) == 6
    assert candidate([]) == 0
    assert abs(candidate([0.5, 0.25]) - 0.75) < 1e-6
    assert math.isclose(candidate([7]), 7)
    assert distance(candidate([8, 9]), 17) == 0
    assert not candidate([1, -1])
    assert candidate([-4]) != 4, "no"

check(f)
"""
LYING = """
class Lying({}):
    def true(*arguments):
        return True
    def zero(*arguments):
        return 0
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = true
    __sub__ = __rsub__ = __abs__ = __float__ = __hash__ = zero
    __class__ = property(lambda self: int)
    def __reduce__(self):
        return (exec, ("import os; os._exit(0)",))

def f(numbers):
    return Lying()
"""
# What a program finds of the process that holds it, by its frames.
OUTER = """
import sys
frame, found = sys._getframe(), {}
while frame:
    for scope in (frame.f_globals, frame.f_locals):
        found.update(scope)
    frame = frame.f_back
"""
WRITTEN = """
import os
for each in range(64):
    for line in ({lines}):
        try:
            os.write(each, line)
        except OSError:
            pass
"""
PASSED = b'{"ended": "passed", "message": ""}\n'
ANSWER = json.dumps({"value": ["bool", 1], "objects": []}).encode()
ZERO = "\ndef f(numbers):\n    return 0\n"
CHEATS = {
    "eq": LYING.format("int"),
    "sub and abs": LYING.format("float"),
    "neither": LYING.format("object"),
    "a lying list": LYING.format("list"),
    "builtins": "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.AssertionError = builtins.SystemExit\n"
    "builtins.__import__ = builtins.isinstance = builtins.type = lambda *a: True" + ZERO,
    "math": "import math\nmath.isclose = lambda *a, **k: True" + ZERO,
    "a replaced helper": "def distance(a, b):\n    return 0" + ZERO,
    "a replaced check": ZERO + "def check(candidate):\n    pass\ncandidate = check\n",
    "a replaced module": "import sys\nsys.modules['program'] = sys.modules['math'] = sys.modules['__main__']" + ZERO,
    "_exit": "import os\nos._exit(0)" + ZERO,
    "_exit in a call": "import os\ndef f(numbers):\n    os._exit(0)\n",
    "exit": "import sys\nsys.exit(0)" + ZERO,
    "exit in a call": "import sys\ndef f(numbers):\n    sys.exit(0)\n",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)" + ZERO,
    "a thread": "import os, threading\nthreading.Thread(target=os._exit, args=(0,)).start()" + ZERO,
    "frames": OUTER + "found['send'](found['answers'], {'ended': 'passed', 'message': ''})" + ZERO,
    "answers before they are asked": OUTER
    + "for _ in range(20):\n    found['send'](found['answers'], {'value': ['bool', 1], 'objects': []})"
    + ZERO,
    "a changed answer": OUTER
    + "found['answer'].__globals__['pack'] = lambda value, objects: {'value': ['Lying', 1], 'objects': objects}"
    + ZERO,
    "a failure that passes": OUTER
    + "found['answer'].__globals__['_failure'] = lambda error: {'error': 'AssertionError', 'ended': 'passed'}"
    + "\ndef f(numbers):\n    raise StopIteration\n",
    "gc": "import gc\nfor each in gc.get_objects():\n    if isinstance(each, dict) and each.get('held'):\n"
    "        each.update(ended='passed')\n    if type(each).__name__ in ('Popen', 'Program', 'Outcome'):\n"
    "        each.lost, each.ended, each.ask = None, 'passed', lambda request: {}" + ZERO,
    "__main__": "import __main__, os, sys\nfor name, module in list(sys.modules.items()):\n"
    "    if name == '__main__' or name.startswith('efficientbench'):\n"
    "        for each in list(vars(module)):\n            if callable(getattr(module, each)):\n"
    "                setattr(module, each, lambda *a, **k: {'ended': 'passed'})" + ZERO,
    # Of CPython: the value of a small number stands behind its head.
    "ctypes": "import ctypes\nfor number in (1, 2, 3):\n    ctypes.memmove(id(0) + 16, id(number) + 16, 16)" + ZERO,
    "writing into all files": WRITTEN.format(lines=f"{PASSED!r}, {len(ANSWER).to_bytes(4, 'big') + ANSWER!r}") + ZERO,
    "bytes that are no text": WRITTEN.format(lines=repr(b"\xff\xfe" * 100)) + ZERO,
    "an answer without end": OUTER + "import os\nos.write(found['answers'], bytes([255] * 4))" + ZERO,
}


ALWAYS = ("eq", "builtins", "a replaced helper", "_exit", "exit", "frames", "gc", "writing into all files")
"""One of each kind; the others are proofs."""


@pytest.mark.parametrize(
    "cheat", [pytest.param(each, marks=pytest.mark.proof if each not in ALWAYS else ()) for each in CHEATS]
)
def test_no_program_declares_itself_passed(cheat: str) -> None:
    outcome = run_program(CHEATS[cheat], TESTS, Limits(processor_s=1))
    assert not outcome.passed


def test_no_test_passes_after_the_program_has_exited() -> None:
    tests = "from program import f\ntry:\n    f()\nexcept BaseException:\n    pass"
    assert run_program("import os\ndef f():\n    os._exit(0)", tests).ended == "left"
    assert run_program("def f():\n    raise ValueError", tests).passed


def test_no_error_of_the_program_ends_a_loop_of_the_tests() -> None:
    kinds = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
    program = f"def f(kind):\n    raise {{each.__name__: each for each in ({', '.join(kinds)})}}[kind]\n"
    tests = (
        "from program import f\n"
        "def at_its_end():\n    try:\n        yield\n    finally:\n        f(kind)\n"
        "def close():\n    begun = at_its_end()\n    next(begun)\n    begun.close()\n"
        f"for kind in {kinds}:\n"
        "    for passes in (lambda: list(zip(map(f, [kind]), [1])), lambda: all(map(f, [kind])),\n"
        "            lambda: list(filter(f, [kind])), lambda: list(iter(lambda: f(kind), 0)), close):\n"
        "        try:\n            passes()\n"
        "        except RuntimeError:\n            continue\n"
        "        raise AssertionError(kind)\n"
    )
    assert run_program(program, tests).message == ""


@pytest.mark.parametrize("user", USERS)
def test_the_program_cannot_reach_the_tests(user: str) -> None:
    # It looks for the process with the pipes' other ends, and for this one.
    program = (
        "import os\n"
        "def f(process):\n"
        "    reached = []\n"
        "    for each in (process, *range(max(1, os.getpid() - 50), os.getpid() + 50)):\n"
        "        for name in ('mem', 'environ', 'fd', 'fd/1', 'cmdline'):\n"
        "            try:\n"
        "                (os.listdir if name == 'fd' else open)(f'/proc/{each}/{name}')\n"
        "            except OSError:\n"
        "                continue\n"
        "            reached.append((each, name))\n"
        "    return reached\n"
    )
    tests = "import os\nfrom program import f\nassert f(os.getpid()) == [], f(os.getpid())"
    assert run_as(user, program, tests) == ("passed", "")


def test_arguments_and_results_are_plain_data_of_the_same_types() -> None:
    program = "def f(*given, **named):\n    return given, named, repr((given, named))\n\ndef g(one):\n    return one\n"
    text = "[*(None, True, 0, -(2**100), 1.5, float('inf'), -0.0, 2 - 1j, 'text', '\\ud800\\0é', b'\\0\\xff', ()), "
    text += "[1, [2, (3, {4})]], {'a': {1: [None]}, (1, 'b'): frozenset({2})}, {1, 2}, [[]], {}]"
    tests = (
        f"from program import f, g\nvalues = {text}\n"
        "given, named, shown = f(*values, name=values, self=0)\n"
        "assert shown == repr((tuple(values), {'name': values, 'self': 0})) == repr((given, named))\n"
        "assert g(10**5000) == 10**5000\n"
        "assert f(float('nan'))[0][0] != 0\n"
    )
    assert run_program(program, tests).message == ""


def test_a_program_is_compiled_with_its_own_future_imports_only() -> None:
    # With `from __future__ import annotations`, its own or one that it inherits, dataclasses look up `ClassVar`.
    source = (
        "from dataclasses import dataclass\nfrom typing import ClassVar, get_type_hints\n"
        "@dataclass\nclass Point:\n    dimensions: ClassVar[int] = 2\n    x: float = 0.0\n"
        "def f():\n    return Point.__annotations__['x'] is float, repr(Point(1.5)), list(get_type_hints(Point))\n"
    )
    future = "from __future__ import annotations\n"
    for head, is_type in (("", True), (future, False)):
        wanted = f"({is_type}, 'Point(x=1.5)', ['dimensions', 'x'])"
        tests = f"{head}{source}wanted = f()\nfrom program import f\nassert f() == wanted == {wanted}, (f(), wanted)"
        assert run_program(head + source, tests).message == ""


def test_containers_of_the_standard_library_arrive_as_dicts() -> None:
    program = (
        "from collections import Counter, defaultdict\ndef f(text):\n    return [Counter(text), defaultdict(list)]"
    )
    tests = "from program import f\nassert f('aab') == [{'a': 2, 'b': 1}, {}]\nassert type(f('a')[0]) is dict"
    assert run_program(program, tests).message == ""


@pytest.mark.parametrize(
    "result", ["f", "iter([])", "object()", "[[lambda: 0]]", "Enum('E', 'a').a", "type('T', (int,), {})(6)"]
)
def test_other_than_plain_data_does_not_arrive(result: str) -> None:
    outcome = run_program(f"from enum import Enum\ndef f():\n    return {result}", "from program import f\nf()")
    assert (outcome.ended, "is no plain data" in outcome.message) == ("error", True)


def test_arguments_are_changed_in_place() -> None:
    program = (
        "def f(rows, seen, counts):\n"
        "    rows[0].append(rows)\n"
        "    rows.reverse()\n"
        "    seen |= {1, 2}\n"
        "    counts['a'] = counts.pop('b') + 1\n"
        "    return rows, seen\n"
    )
    tests = (
        "from program import f\n"
        "inner, other, seen, counts = [1], [2], set(), {'b': 1}\n"
        "rows = [inner, other]\n"
        "result, found = f(rows, seen, counts=counts)\n"
        "assert result is rows and found is seen\n"
        "assert rows[0] is other and rows[1] is inner and inner[1] is rows and inner[0] == 1\n"
        "assert seen == {1, 2} and counts == {'a': 2}\n"
    )
    assert run_program(program, tests).message == ""


def test_containers_of_the_standard_library_are_changed_in_place() -> None:
    tests = (
        "from collections import Counter, OrderedDict, defaultdict\nfrom program import f\n"
        "for kind in (Counter, OrderedDict, lambda pairs: defaultdict(list, pairs)):\n"
        "    given = kind({'a': 2, 'b': 1})\n    f(given)\n    assert given == kind({'a': 3}), given\n"
    )
    assert run_program("def f(counts):\n    counts['a'] += counts.pop('b')", tests).message == ""


def test_errors_of_functions_arrive_as_the_nearest_builtin_ones() -> None:
    program = (
        "class Own(ValueError): pass\nclass Other(BaseException): pass\nclass End(StopIteration): pass\n"
        "def f(kind):\n"
        "    raise {'value': ValueError('no'), 'own': Own('mine'), 'other': Other(), 'end': End()}[kind]\n"
        "def g():\n    b'\\xff'.decode()\n"
    )
    tests = (
        "from program import f, g, missing\n"
        "for function, arguments, kind in ((f, ['value'], ValueError), (f, ['own'], ValueError),\n"
        "        (f, ['other'], BaseException), (f, ['end'], RuntimeError),\n"
        "        (f, ['a'], KeyError), (g, [], UnicodeError), (missing, [], NameError), (f, [], TypeError),\n"
        "        (f, [print], TypeError)):\n"
        "    try:\n        function(*arguments)\n"
        "    except kind as error:\n        assert type(error) is kind, error\n"
        "    else:\n        raise AssertionError(function)\n"
    )
    assert run_program(program, tests).message == ""


def test_data_beyond_the_largest_size_is_refused() -> None:
    tests = "from program import f\n"
    outcome = run_program("def f(size):\n    return 'x' * size", f"{tests}f(2**24)")
    assert (outcome.ended, outcome.message) == ("error", "ValueError: data of more than 16 MiB")
    assert run_program("def f(size):\n    return 'x' * size", f"{tests}assert len(f(2**23)) == 2**23").passed


ROWS = [
    {
        # A helper of the prompt, which the tests call, and arguments that a test needs as they were.
        "prompt": "import math\n\n\ndef value(xs: list, x: float):\n    return sum(c * math.pow(x, i) for i, c in "
        'enumerate(xs))\n\n\ndef root(xs: list):\n    """Find x so that value(xs, x) is 0, for two numbers."""\n',
        "canonical_solution": "    return -xs[0] / xs[1]\n",
        "planted": "    return xs[0] / xs[1]\n",
        "test": "import copy, random\n\ndef check(candidate):\n    for _ in range(20):\n"
        "        xs = [random.randint(1, 9), random.randint(1, 9)]\n"
        "        assert abs(value(xs, candidate(copy.deepcopy(xs)))) < 1e-4\n"
        "    assert candidate([2, 1]) == root([2, 1])\n",
        "entry_point": "root",
    },
    {
        "prompt": 'def turned(s: str):\n    """Put the first character last."""\n    return s[1:] + s[:1]\n\n\n'
        'def turned_back(s: str):\n    """Undo turned."""\n',
        "canonical_solution": "    return s[-1:] + s[:-1]\n",
        "planted": "    return turned(s)\n",
        "test": "def check(candidate):\n    for text in ('abc', '', 'xyzw'):\n"
        "        assert candidate(turned(text)) == text\n",
        "entry_point": "turned_back",
    },
    {
        "prompt": 'from typing import List\n\n\ndef ordered(numbers: List[int]):\n    """Sort in place."""\n',
        "canonical_solution": "    numbers.sort()\n",
        "planted": "    numbers = sorted(numbers)\n",
        "test": "def check(candidate):\n    numbers = [3, 1, 2]\n    assert candidate(numbers) is None\n"
        "    assert numbers == [1, 2, 3]\n",
        "entry_point": "ordered",
    },
]
PLANTED = {
    "add_all": "    return sum(numbers[:2])\n",
    "longest": '    return max(words[::-1], key=len, default="")\n',
    "is_palindrome": "    return text == text[::-1]\n",
}


def test_reference_solutions_pass_and_fail_with_a_planted_error(shared_data: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (shared_data / "formats" / "humaneval.jsonl").read_text().splitlines()]
    rows = ROWS + [{**row, "planted": PLANTED[row["entry_point"]]} for row in rows]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = open_examples("humaneval", path).read(np.arange(len(rows)))
    for example, row in zip(examples, rows, strict=True):
        tests, ends = humaneval.tests(example), {}
        for kind in ("canonical_solution", "planted"):
            outcome = run_program(humaneval.program(example, row["prompt"] + row[kind]), tests)
            ends[kind] = outcome.ended, outcome.message.partition(":")[0]
        assert ends == {"canonical_solution": ("passed", ""), "planted": ("error", "AssertionError")}, row["prompt"]
