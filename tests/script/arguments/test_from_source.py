"""Arguments found on the syntax tree: nothing is executed, what is unsure is named, and bad input is an error."""

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbtools.errors import ScriptError
from nbtools.script.arguments.arguments import Argument, ScriptArguments
from nbtools.script.arguments.ask import ask
from nbtools.script.arguments.command_line import parse_words
from nbtools.script.arguments.from_source import arguments_of

ZOO = Path(__file__).parent / "zoo"
HEAD = "import argparse\nparser = argparse.ArgumentParser()\n"
TAIL = "args = parser.parse_args()\n"
Read = Callable[..., ScriptArguments]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a script, and files beside it, and read its arguments."""

    def run(text: str, others: dict[str, str] | None = None) -> ScriptArguments:
        for name, content in (others or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        return arguments_of(tmp_path / "train.py", search=[tmp_path / "site-packages"])

    return run


def only(found: ScriptArguments) -> Argument:
    (argument,) = found.arguments
    return argument


def names(found: ScriptArguments) -> list[str]:
    return [argument.field.name for argument in found.arguments]


# --- nothing is executed, at once -----------------------------------------------------------------


def test_a_script_of_3000_lines_is_read_in_a_fifth_of_a_second_without_executing_it(
    tmp_path: Path, audited: Callable[[], AbstractContextManager[list[tuple[str, tuple[Any, ...]]]]]
) -> None:
    mark = tmp_path / "mark"
    for number in range(30):
        (tmp_path / f"part_{number}.py").write_text(f"open({str(mark)!r}, 'w')\nclass Model: pass\n", encoding="utf-8")
    lines = ["import argparse", *(f"from part_{number} import Model as Model{number}" for number in range(30))]
    lines += ["parser = argparse.ArgumentParser()"]
    lines += [f"parser.add_argument('--option-{n}', type=int, default={n} * 2, help='number {n}')" for n in range(300)]
    for number in range(340):
        lines += [f"def step_{number}(batch, scale=1.0):", "    total = 0", "    for item in batch:"]
        lines += [f"        total += item * {number}", "        if total > 100:", "            total = total / scale"]
        lines += ["    return total", ""]
    lines += [f"open({str(mark)!r}, 'w')", "def main(args):", "    return step_1([args.option_1])"]
    lines += ["if __name__ == '__main__':", "    main(parser.parse_args())"]
    script = tmp_path / "train.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    assert len(lines) >= 3000
    with audited() as events:
        found = arguments_of(script)
    assert {name for name, _ in events} & {"exec", "import", "subprocess.Popen", "os.fork"} == set()
    best = 10.0
    for _ in range(3):
        started = time.process_time()
        arguments_of(script)
        best = min(best, time.process_time() - started)
    assert best <= 0.2
    assert len(found.arguments) == 300 and found.is_complete
    assert found.arguments[7].field.default == 14
    assert not mark.exists()


# --- what is found --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings_", "types", "default", "default_text", "choices"),
    [
        ("type=float, default=1e-3 * 2", (float,), 0.002, "", None),
        ("type=int, default=2 ** 10", (int,), 1024, "", None),
        ("default=f'run_{2 + 3}'", (str,), "run_5", "", None),
        ("type=Path, default=Path('x')", (str,), "x", "", None),
        ("default=os.path.join('.', 'a', TABLE and 'b')", (str,), "./a/b", "", None),
        ("default=str(Path('a') / 'b.yaml').upper()", (str,), "A/B.YAML", "", None),
        ("type=Path, default=Path('a', 'b.yaml').with_suffix('.json').name", (str,), "b.json", "", None),
        ("default=Path('a').resolve()", (str,), None, "Path('a').resolve()", None),
        ("default=os.path.abspath('a')", (str,), None, "os.path.abspath('a')", None),
        ("default=f'{2 / 3:.2f}-{TABLE!r}'", (str,), "0.67-{'a': 1, 'b': 2}", "", None),
        ("type=int, default=int('ff', base=16)", (int,), 255, "", None),
        ("type=float, default=round(2 * math.pi, ndigits=2)", (float,), 6.28, "", None),
        ("type=int, default=max(*os.environ, 3)", (int,), None, "max(*os.environ, 3)", None),
        ("default=str.join(',', sorted(TABLE))", (str,), "a,b", "", None),
        ("default=os.environ['USER']", (str,), None, "os.environ['USER']", None),
        ("type=int, default=len([1, 2])", (int,), 2, "", None),
        ("choices=list(TABLE), default='a'", (), "a", "", ("a", "b")),
        ("choices=TABLE.keys()", (NoneType,), None, "", ("a", "b", None)),
        ("choices=sorted(TABLE.values()), type=int, default=1", (), 1, "", (1, 2)),
        ("choices=[mode.value for mode in Mode], default=Mode.FAST.value", (), "fast", "", ("fast", "slow")),
        ("type=Mode, choices=list(Mode), default=Mode.SLOW", (), "slow", "", ("fast", "slow")),
        ("type=lambda text: int(text), default=3", (int,), 3, "", None),
        ("type=lambda text: text.split(','), default='a'", (str,), "a", "", None),
        ("type=str2bool, default='yes'", (bool,), True, "", None),
        ("type=positive, default=8", (int,), 8, "", None),
        ("nargs=2, type=float, default=(0.9, 0.95)", (tuple[float, ...],), (0.9, 0.95), "", None),
        ("nargs='*', default=[]", (tuple[str, ...],), (), "", None),
        ("action='append'", (tuple[str, ...], NoneType), None, "", None),
        ("default=argparse.SUPPRESS", (str, NoneType), None, "", None),
        ("type=float, default='1e-3'", (float,), 1e-3, "", None),
        ("default=SETTINGS['lr'] if 'lr' in SETTINGS else 1, type=float", (float,), 0.5, "", None),
        ("default='{}-{}'.format('a', TABLE['a'])", (str,), "a-1", "", None),
        ("action=argparse.BooleanOptionalAction, default=True", (bool,), True, "", None),
        ("action='store_const', const=3, default=1", (), 1, "", (1, 3)),
    ],
)
def test_settings_of_an_argument_are_evaluated(
    settings_: str, types: Any, default: Any, default_text: str, choices: Any, read: Read
) -> None:
    head = (
        "import argparse, math, os\nfrom enum import Enum\nfrom pathlib import Path\nTABLE = {'a': 1, 'b': 2}\n"
        "SETTINGS = dict(lr=0.5)\nclass Mode(Enum):\n    FAST = 'fast'\n    SLOW = 'slow'\n"
        "def str2bool(text):\n    return text.lower() in ('yes', 'true', '1')\n"
        "def positive(text):\n    value = int(text)\n    if value < 0:\n        raise ValueError\n    return value\n"
    )
    field = only(read(f"{head}{HEAD}parser.add_argument('--x', {settings_})\n{TAIL}")).field
    assert (field.types, field.default, field.default_text, field.choices) == (types, default, default_text, choices)


def test_an_argument_has_its_line_help_and_group(read: Read) -> None:
    group = "group = parser.add_argument_group('model')\n"
    text = f"{HEAD}{group}group.add_argument(\n    '--x',\n    help='at %(default)s of 100%%', default=3)\n{TAIL}"
    field = only(read(text)).field
    assert (field.source, field.help, field.group) == ("train.py:4", "at 3 of 100%", "model")


@pytest.mark.parametrize(
    ("name", "secret"),
    [("--api-key", True), ("--hf_token", True), ("--password", True), ("--tokenizer", False), ("--monkey", False)],
)
def test_names_of_secrets_are_marked(name: str, secret: bool, read: Read) -> None:
    assert only(read(f"{HEAD}parser.add_argument({name!r})\n{TAIL}")).field.is_secret is secret
    assert not only(read(f"{HEAD}parser.add_argument({name!r}, type=int)\n{TAIL}")).field.is_secret


def test_loops_over_literals_are_unrolled(read: Read) -> None:
    loop = "for name, kind in (('a', int), ('b', float)):\n    parser.add_argument('--' + name, type=kind)\n"
    found = read(HEAD + loop + TAIL)
    assert names(found) == ["a", "b"] and found.is_complete
    assert [argument.field.types[0] for argument in found.arguments] == [int, float]


def test_types_that_a_loop_takes_from_the_defaults_are_those_of_each_value(read: Read) -> None:
    loop = (
        "def flag(text):\n    return text.lower() in ('yes', 'true')\n"
        "for name, value in dict(lr=0.1, steps=3, ema='0.99', fp16=False, path=None).items():\n"
        "    kind = type(value)\n    if value is None:\n        kind = str\n"
        "    elif isinstance(value, (bool, complex)):\n        kind = flag\n"
        "    parser.add_argument('--' + name, default=value, type=kind)\n"
    )
    found = read(f"{HEAD}{loop}{TAIL}")
    assert [argument.field.types[0] for argument in found.arguments] == [float, int, str, bool, str]
    assert [argument.field.default for argument in found.arguments] == [0.1, 3, "0.99", False, None]
    unknown = loop.replace("isinstance(value, (bool, complex))", "os.environ.get(name)")
    assert not read(f"import os\n{HEAD}{unknown}{TAIL}").is_complete


def test_a_key_that_only_the_program_knows_is_one_of_its_dict(read: Read) -> None:
    text = f"import os\nTABLE = {{os.name + '1': 1, os.getpid(): 2, 'a': 3}}\n{HEAD}"
    assert only(read(f"{text}parser.add_argument('--x', type=int, default=TABLE['a'])\n{TAIL}")).field.types == (int,)


def test_a_parser_of_another_module_of_a_package_is_found(read: Read) -> None:
    found = read(
        "from lib.options import Options\nargs = Options().parser.parse_args()\n",
        {
            "lib/__init__.py": "",
            "lib/defaults.py": "LR = 0.1\n",
            "lib/options.py": "import argparse\nfrom . import defaults\nclass Options:\n    def __init__(self):\n"
            "        self.parser = argparse.ArgumentParser()\n"
            "        self.parser.add_argument('--lr', type=float, default=defaults.LR)\n",
        },
    )
    assert (only(found).field.default, only(found).field.source) == (0.1, "lib/options.py:6")
    assert found.is_complete


def test_modules_that_import_each_other_end(read: Read) -> None:
    other = "import argparse\nimport train\nfrom train import lr\ndef make():\n    return argparse.ArgumentParser()\n"
    found = read("import other\nparser = other.make()\nparser.add_argument('--lr')\n" + TAIL, {"other.py": other})
    assert names(found) == ["lr"]


def test_classes_of_parsers_and_actions_that_a_script_derives_are_known(read: Read) -> None:
    found = read(
        "import argparse\nclass Flag(argparse._StoreTrueAction):\n    pass\nclass Parser(argparse.ArgumentParser):\n"
        "    def add_argument(self, *args, **kwargs):\n        return super().add_argument(*args, **kwargs)\n"
        "parser = Parser()\nparser.add_argument('--a', action=Flag)\n"
        "parser.add_argument_group('model').add_argument('--b', type=int, default=3)\n" + TAIL
    )
    assert [(a.field.name, a.action, a.field.default, a.field.group) for a in found.arguments] == [
        ("a", "store_true", False, ""),
        ("b", "store", 3, "model"),
    ]
    assert found.is_complete and not found.notes


def test_a_function_of_an_installed_package_that_adds_arguments_is_read(read: Read) -> None:
    package = "def add_config_arguments(parser):\n    parser.add_argument('--stage', type=int)\n    return parser\n"
    speed = {"site-packages/speed/__init__.py": package}
    found = read(f"import speed\n{HEAD}parser = speed.add_config_arguments(parser)\n{TAIL}", speed)
    assert names(found) == ["stage"] and found.is_complete
    assert only(found).field.source == "speed/__init__.py:2"


REGISTRY = {
    "models/__init__.py": "MODELS = {}\ndef register(name):\n    def enter(made):\n        MODELS[name] = made\n"
    "        return made\n    return enter\nfrom . import lstm, gru\n",
    "models/lstm.py": "from . import register\n@register('lstm')\nclass LSTM: pass\n",
    "models/gru.py": "from . import register\n@register('gru')\ndef make(): pass\n",
}
CHOICES = {
    "a registry that imported modules fill": ("from models import MODELS\n", "MODELS.keys()", ("lstm", "gru")),
    "a registry with an entry of its own": (
        "from models import MODELS, register\nregister('own')(object)\n",
        "MODELS",
        ("lstm", "gru", "own"),
    ),
    "a registry in an object": (
        "class Registry:\n    def __init__(self): self.made = {}\n    def register(self, name):\n"
        "        def enter(made):\n            self.made[name] = made\n        return enter\n"
        "models = Registry()\n@models.register('a')\nclass A: pass\n",
        "sorted(models.made)",
        ("a",),
    ),
    "a module imported by its name": (
        "from models import MODELS\nimport importlib\nimportlib.import_module('more')\n",
        "MODELS",
        ("lstm", "gru", "more"),
    ),
    "a table of classes": (
        "from collections import OrderedDict\nclass A: pass\nT = OrderedDict([('a', A), ('b', A)])\n",
        "T.keys()",
        ("a", "b"),
    ),
}


@pytest.mark.parametrize(("text", "choices", "expected"), CHOICES.values(), ids=CHOICES)
def test_choices_of_a_registry_are_those_after_all_imports(
    text: str, choices: str, expected: tuple[str, ...], read: Read
) -> None:
    more = {"more.py": "from models import register\n@register('more')\nclass More: pass\n"}
    found = read(f"{text}{HEAD}parser.add_argument('--x', choices={choices})\n{TAIL}", REGISTRY | more)
    assert found.is_complete and only(found).field.choices == (*expected, None)


UNKNOWN_CHOICES = {
    "an unknown key": "R['a'] = 1\nR[os.environ['A']] = 2\n",
    "a key under a condition": "R['a'] = 1\nif os.environ.get('A'):\n    R['b'] = 2\n",
    "an unknown update": "R['a'] = 1\nR.update(os.environ)\n",
    "no entry that is found": "",
    "imports by unknown names": "def enter(name):\n    R[name] = 1\nenter('a')\nimport importlib\n"
    "for name in os.listdir('models'):\n    importlib.import_module('models.' + name)\n",
    "an operator of sets": "R = {'a': 1}.keys() | {'b'}\n",
    "something of a package": "import torchvision\nR = torchvision.models.list_models()\n",
}


@pytest.mark.parametrize("text", UNKNOWN_CHOICES.values(), ids=UNKNOWN_CHOICES)
def test_choices_that_only_the_program_knows_make_the_arguments_incomplete(text: str, read: Read) -> None:
    found = read(f"import os\nR = {{}}\n{text}{HEAD}parser.add_argument('--x', choices=sorted(R))\n{TAIL}")
    assert not found.is_complete and found.can_ask and only(found).field.choices is None
    assert "choices= of --x is known only to the program" in found.notes[0]


TWO_DEFINITIONS = {
    "functions": "    def add(p): p.add_argument('--x')\nelse:\n    def add(p): p.add_argument('--y')\nadd(parser)\n",
    "one of two names": "    add = add_x\nelse:\n    add = add_y\nadd(parser)\n",
    "classes": "    class A:\n        def add(self, p): p.add_argument('--x')\nelse:\n    class A:\n"
    "        def add(self, p): p.add_argument('--y')\nA().add(parser)\n",
    "objects": "    a = A()\nelse:\n    a = B()\na.add(parser)\n",
}


@pytest.mark.parametrize("text", TWO_DEFINITIONS.values(), ids=TWO_DEFINITIONS)
def test_a_name_that_two_branches_define_differently_makes_the_arguments_incomplete(text: str, read: Read) -> None:
    head = (
        "import os\ndef add_x(p): p.add_argument('--x')\ndef add_y(p): p.add_argument('--y')\n"
        "class A:\n    add = staticmethod(add_x)\nclass B:\n    add = staticmethod(add_y)\n"
    )
    found = read(f"{head}{HEAD}if os.environ.get('A'):\n{text}{TAIL}")
    assert not found.is_complete and found.can_ask, found


def test_a_subcommand_is_read_under_its_aliases_too(tmp_path: Path, read: Read) -> None:
    sub = "sub = parser.add_subparsers(required=True)\ntrain = sub.add_parser('train', aliases=['t', 'fit'])\n"
    text = f"{HEAD}{sub}train.add_argument('--lr', type=float, default=0.1)\n{TAIL}"
    for found in (read(text), ask(tmp_path / "train.py", sys.executable)):
        line = parse_words(found, ["fit", "--lr", "0.5"])
        assert (line.command, dict(line.values), line.rest) == (("train",), {"lr": 0.5}, [])
        assert line.edited({"lr": 1.0}, ("train",)) == ["fit", "--lr", "1.0"]


# --- what is unsure -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (
            "for name in make_names():\n    parser.add_argument(name)\n",
            "train.py:4: a loop at train.py:3 adds arguments",
        ),
        ("parser.add_argument(make_name())\n", "train.py:3: the names of an argument are computed"),
        ("if has_gpu():\n    parser.add_argument('--gpu')\n", r"train.py:4: --gpu is declared only if has_gpu\(\)"),
        ("import plugin\nplugin.extend(parser)\n", "train.py:4: plugin.extend may add arguments"),
        (
            "parser.add_argument('--a')\nparser.add_argument('--a')\n",
            "train.py:4: --a is declared at train.py:3 already",
        ),
        (
            "sub = parser.add_subparsers()\nsub.add_parser(make_name())\n",
            "train.py:4: the name of a sub-command is computed",
        ),
        ("import plugin\nplugin.GROUP.add_argument('--b')\n", "train.py:4: the parser is not known"),
        ("make_group(parser).add_argument('--b')\n", "train.py:3: make_group may add arguments"),
        ("from broken import x\nx.extend(parser)\n", r"broken.py:1: not Python"),
    ],
)
def test_what_is_unsure_is_named_with_its_line(body: str, note: str, read: Read) -> None:
    found = read(HEAD + body + TAIL, {"broken.py": "def (:\n"})
    assert not found.is_complete and found.can_ask
    import re

    assert any(re.search(note, line) for line in found.notes), found.notes


OBJECT = "class P:\n    def __init__(self):\n        self.x = 1\n"
VARS = "for n, v in vars(P()).items():\n    parser.add_argument('--' + n, type=type(v), default=v)\n"
UNTOLD_DEFAULTS = {
    "a changed key": "D = {'x': 1}\nif os.environ.get('A'):\n    D['x'] = 2\n",
    "a key that a function changes": "D = {'x': 1}\ndef f():\n    if os.environ.get('A'): D['x'] = 2\nf()\n",
    "an unknown update": "D = {'x': 1}\nD.update(os.environ)\n",
    "a loop": "D = {'x': 1}\nx = 1\nfor key in os.environ: x = 2\nD = {'x': x}\n",
    "a loop with a test": "x = 1\nwhile os.path.exists(str(x)): x += 1\nD = {'x': x}\n",
    "a match": "x = 1\nmatch sys.platform:\n    case 'linux': x = 2\nD = {'x': x}\n",
    "a return in a branch": "def f():\n    if os.environ.get('A'): return 1\n    return 2\nD = {'x': f()}\n",
    "two returns": "def f():\n    if os.environ.get('A'): return 1\n    else: return 2\nD = {'x': f()}\n",
    "a global": "x = 1\ndef f():\n    global x\n    x = os.getpid()\nf()\nD = {'x': x}\n",
    "an attribute of a class": "class C: x = 1\nif os.environ.get('A'): C.x = 2\nD = {'x': C.x}\n",
}


@pytest.mark.parametrize("text", UNTOLD_DEFAULTS.values(), ids=UNTOLD_DEFAULTS)
def test_a_default_that_only_the_program_knows_is_no_value(text: str, read: Read) -> None:
    field = only(read(f"import os, sys\n{HEAD}{text}parser.add_argument('--x', default=D['x'])\n{TAIL}")).field
    assert (field.default, bool(field.default_text)) == (None, True)


@pytest.mark.parametrize(
    ("text", "default"),
    [
        ("a = parser.add_argument('--x', default=1)\na.default = 5\n", 5),
        ("setattr(parser.add_argument('--x', default=1), 'default', 3)\n", 3),
        ("it = iter({'a': 1, 'b': 2})\nnext(it)\nparser.add_argument('--x', default=next(it))\n", "b"),
        ("parser.add_argument('--x', default=next((n for n in range(9) if n > 4), 0))\n", 5),
        ("x = 1\ndef f():\n    global x\n    x = 2\nf()\nparser.add_argument('--x', default=x)\n", 2),
        (f"{OBJECT}        self.y = 2\n        del self.y\n{VARS}", 1),
        (f"{OBJECT}        self.__dict__.update(x=3)\n{VARS}", 3),
        ("import copy\nD = [[1]]\ncopy.deepcopy(D)[0].append(2)\nparser.add_argument('--x', default=len(D[0]))\n", 1),
        ("for x in (1, 2): break\nelse: x = 3\nparser.add_argument('--x', default=x)\n", 1),
        ("for x in (1, 2): continue\nelse: x = 3\nparser.add_argument('--x', default=x)\n", 3),
        (f"import copy\n{OBJECT}p = P()\ncopy.copy(p).x = 2\nparser.add_argument('--x', default=p.x)\n", 1),
        ("for n, k in enumerate('x', 4): parser.add_argument('--' + k, default=n)\n", 4),
        ("D = {'x': 1, 'y': 2}\ndel D['y']\nparser.add_argument('--x', default=len(D))\n", 1),
    ],
)
def test_a_default_that_the_source_tells_is_a_value(text: str, default: object, read: Read) -> None:
    found = read(HEAD + text + TAIL)
    assert found.is_complete and only(found).field.default == default


def test_defaults_set_under_a_condition_name_both_values(read: Read) -> None:
    text = "parser.add_argument('--x', default=1)\nif os.environ.get('A'):\n    parser.set_defaults(x=2)\n"
    assert only(read(f"import os\n{HEAD}{text}{TAIL}")).field.default_text == "2 if os.environ.get('A') else 1"


UNREAD = {
    "actions are changed": ("parser.add_argument('--x')\nfor a in parser._actions: a.default = 7\n", "uses _actions"),
    "an action is removed": ("parser._remove_action(parser.add_argument('--x'))\n", "uses _remove_action"),
    "other prefixes": ("parser = argparse.ArgumentParser(prefix_chars='+')\n", "3: prefix_chars="),
    "conflicts that are resolved": (
        "parser = argparse.ArgumentParser(conflict_handler='resolve')\n",
        "3: conflict_handler=",
    ),
    "a group of its own class": (
        "class Group(argparse._ArgumentGroup): pass\nGroup(parser, 'model').add_argument('--x')\n",
        "4: the parser is not known",
    ),
    "a namespace": (
        "parser.parse_args(namespace=argparse.Namespace(x=3))\n",
        "3: defaults also come from the namespace",
    ),
    "a bound method": (
        "import functools\nfunctools.partial(parser.add_argument, type=int)('--x')\n",
        "may add arguments",
    ),
    "a loop that ends when it has enough": (
        "i = 0\nwhile i < 3:\n    parser.add_argument(f'--x{i}')\n    i += 1\n",
        "5: --x0 is declared in the loop at train.py:4",
    ),
    "what follows a loop without a break": (
        "while os.environ.get('A'): pass\nelse: parser.add_argument('--x')\n",
        "4: --x is declared in the loop at train.py:3",
    ),
    "an executed text": ("exec('parser.add_argument(1)')\n", "3: the executed text may add arguments"),
    "an unknown type": ("parser.add_argument('--x', type=make())\n", "3: type= of --x is known only to the program"),
    "an unknown number": ("parser.add_argument('--x', nargs=make())\n", "3: nargs= of --x is known only"),
    "an attribute that may be missing": (
        f"{OBJECT}        if os.environ.get('A'): self.y = 2\n{VARS}",
        "8: the names of an argument",
    ),
    "an attribute that may be deleted": (
        f"{OBJECT}        if os.environ.get('A'): del self.x\n{VARS}",
        "8: the names of an argument",
    ),
    "a key that may be deleted": (
        "D = {'x': 1}\nif os.environ.get('A'): del D['x']\nfor n in D: parser.add_argument('--' + n)\n",
        "5: the names of an argument",
    ),
    "an unknown need": ("parser.add_argument('--x', required=make())\n", "3: required= of --x is known only"),
}


@pytest.mark.parametrize(("text", "note"), UNREAD.values(), ids=UNREAD)
def test_what_may_change_the_arguments_makes_them_incomplete(text: str, note: str, read: Read) -> None:
    found = read(HEAD.replace("\n", ", os\n", 1) + text + TAIL)
    assert not found.is_complete and found.can_ask
    assert any(note in line for line in found.notes), found.notes


def test_constants_of_an_unknown_type_make_the_arguments_incomplete(read: Read) -> None:
    configurator = {"configurator.py": "import sys\nfor word in sys.argv: globals()[word] = 1\n"}
    found = read("size = compute()\nlr = 0.1\nexec(open('configurator.py').read())\n", configurator)
    assert names(found) == ["config_file", "lr"] and not found.is_complete
    assert found.notes == ("train.py:1: the type of size is known only to the program: compute()",)


def test_a_type_that_a_conditional_expression_makes_is_read(read: Read) -> None:
    text = "def f(v): return None if v == 'none' else int(v)\nparser.add_argument('--x', type=f)\n"
    assert only(read(HEAD + text + TAIL)).field.types == (int, NoneType)


def test_a_missing_base_of_a_dataclass_is_named(read: Read) -> None:
    found = read(
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser, TrainingArguments\n"
        "@dataclass\nclass Own(TrainingArguments):\n    x: int = 3\n"
        "args = HfArgumentParser((Own,)).parse_args_into_dataclasses()\n"
    )
    assert names(found) == ["x"] and not found.is_complete and found.can_ask
    assert (
        "train.py:6: the source of transformers.TrainingArguments is not found, so its fields are missing"
        in found.notes
    )


@pytest.mark.parametrize("text", ["print('x')\n", "import torch\nlr = 0.1\nfor step in range(10): pass\n", ""])
def test_a_script_without_a_parser_is_not_to_be_asked(text: str, read: Read) -> None:
    found = read(text)
    assert (found.parser, found.arguments, found.is_complete, found.can_ask) == ("", (), False, False)
    assert "no known parser was found" in found.notes[0]


def test_a_parser_of_a_module_under_its_own_guard_does_not_count(read: Read) -> None:
    guarded = "import argparse\nif __name__ == '__main__':\n    argparse.ArgumentParser().parse_args()\n"
    assert not read("import tool\ntool\n", {"tool.py": guarded}).can_ask


def test_a_parser_that_cannot_be_followed_can_be_asked(read: Read) -> None:
    text = "import argparse\ntable = {'p': argparse.ArgumentParser}\nimportlib.run(table)\n"
    assert read(text).can_ask


MERGES = {
    "a later file": ("merge(load('a.yaml'), load('b.yaml'), from_cli())", {"lr": 2, "name": "a"}),
    "an earlier merge": ("merge(merge(load('a.yaml'), load('b.yaml')), from_cli())", {"lr": 2, "name": "a"}),
    "a dict": ("merge(create({'lr': 3, 'optim': {'eps': 1.0}}), from_cli())", {"lr": 3, "optim.eps": 1.0}),
    "a file over a class": ("merge(structured(Base), load('b.yaml'), from_cli())", {"lr": 2, "seed": 7}),
    "a class over a file": ("merge(load('b.yaml'), structured(Base(5)), from_cli())", {"lr": 5, "seed": 7}),
}


@pytest.mark.parametrize(("text", "defaults"), MERGES.values(), ids=MERGES)
def test_keys_of_merged_configs_have_the_value_of_the_last(text: str, defaults: dict[str, Any], read: Read) -> None:
    head = "from dataclasses import dataclass\nfrom omegaconf import OmegaConf\n"
    head += "@dataclass\nclass Base:\n    lr: int = 1\n    seed: int = 7\n"
    for name in ("merge", "load", "structured", "create", "from_cli"):
        text = text.replace(f"{name}(", f"OmegaConf.{name}(")
    files = {"a.yaml": "lr: 1\nname: a\n", "b.yaml": "lr: 2\n"}
    found = read(f"{head}if __name__ == '__main__':\n    cli = {text}\n", files)
    assert found.is_complete, found.notes
    assert {a.field.name: a.field.default for a in found.arguments} == defaults


@pytest.mark.parametrize("config", ["read()", "OmegaConf.load(cli.config)", "OmegaConf.create({'lr': read()})"])
def test_a_config_that_only_the_program_knows_leaves_the_keys_incomplete(config: str, read: Read) -> None:
    merge = (
        f"base = OmegaConf.create({{'seed': 1}})\ncli = OmegaConf.from_cli()\nOmegaConf.merge(base, {config}, cli)\n"
    )
    found = read(f"from omegaconf import OmegaConf\n{merge}")
    assert "seed" in names(found) and not found.is_complete
    assert found.notes == ("train.py:3: the file with the keys that can be overridden is not known",)


TREE = (
    "from yacs.config import CfgNode\nc = CfgNode({'lr': 0.1, 'data': {'root': 'x'}})\n"
    "c.optim = CfgNode()\nc.optim.eps = [1, 2]\n"
)
MERGED = "parser.add_argument('opts', nargs='...')\nargs = parser.parse_args()\nc.merge_from_list(args.opts)\n"


def test_keys_of_a_tree_that_words_change_are_arguments(read: Read) -> None:
    found = read(f"{TREE}{HEAD}{MERGED}")
    assert found.is_complete and names(found) == ["lr", "data.root", "optim.eps"]
    assert names(read(f"{TREE}{HEAD}{MERGED.replace('merge_from_list', 'print')}")) == ["opts"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("import os\nif os.environ.get('A'): c.more = 1\n", "train.py:6: a key … is known only to the program"),
        ("c.merge_from_file(make())\n", "train.py:5: a key … is known only to the program"),
        ("d = CfgNode({'x': 1})\n", "several configs could be the one whose keys opts takes"),
        ("def more(c): c.y = 1\nmore(c)\n", "its config may have got other keys before"),
    ],
)
def test_keys_that_a_tree_may_have_leave_the_arguments_incomplete(text: str, note: str, read: Read) -> None:
    found = read(f"{TREE}{text}{HEAD}{MERGED}")
    assert not found.is_complete and any(note in line for line in found.notes), found.notes
    assert names(found) == ["opts"]


@pytest.mark.parametrize(
    "text",
    [
        "OmegaConf.merge(OmegaConf.structured(Own), OmegaConf.from_cli())\n",
        "OmegaConf.merge(OmegaConf.structured(Outer), OmegaConf.from_cli())\n",
        "tyro.cli(Outer)\n",
    ],
)
def test_a_missing_base_of_a_nested_dataclass_is_named_too(text: str, read: Read) -> None:
    found = read(
        "from dataclasses import dataclass\nfrom elsewhere import Base\nfrom omegaconf import OmegaConf\nimport tyro\n"
        "@dataclass\nclass Own(Base):\n    x: int = 3\n@dataclass\nclass Outer:\n    own: Own\n" + text
    )
    assert not found.is_complete and "the source of elsewhere.Base is not found" in found.notes[0]


# --- bad input ------------------------------------------------------------------------------------


def test_bad_scripts_are_errors_that_name_the_file_and_the_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for data, message in (
        (b"x = 1\ndef (:\n", r"train.py:2: not Python"),
        (b"x = 1\ny = '\xff'\n", r"train.py:.*not Python"),
        (b"# coding: nonsense\n", r"train.py:1: not Python"),
        (b"x = '\0'\n", r"train.py:1: not Python"),
        (b"x = " + b"(" * 5000 + b")" * 5000, r"train.py:1"),
        (b"x = 1\n" * 1_000_000, r"train.py:1: larger than"),
    ):
        script.write_bytes(data)
        with pytest.raises(ScriptError, match=message):
            arguments_of(script)


def test_what_is_no_file_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "loop.py").symlink_to("loop.py")
    for name in ("pipe.py", "folder.py", "loop.py", "missing.py"):
        with pytest.raises(ScriptError, match=f"{name}: .*give the path of a script"):
            arguments_of(tmp_path / name)


def test_a_link_is_read_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text(f"{HEAD}parser.add_argument('--x')\n{TAIL}", encoding="utf-8")
    (tmp_path / "link.py").symlink_to("real.py")
    assert only(arguments_of(tmp_path / "link.py")).field.source == "link.py:3"


def test_a_script_in_another_encoding_is_read(tmp_path: Path) -> None:
    text = f"# coding: latin-1\n{HEAD}parser.add_argument('--x', help='Größe')\n{TAIL}"
    (tmp_path / "train.py").write_bytes(text.encode("latin-1"))
    assert only(arguments_of(tmp_path / "train.py")).field.help == "Größe"


@pytest.mark.parametrize(
    "body",
    [
        "def f(): return f()\nf()\n",
        "while True: pass\n",
        "x = 10 ** 10 ** 10\n",
        "x = 'a' * 10 ** 10\n",
        "x = [0] * 10 ** 10\n",
        "x = [i for i in range(10 ** 9)]\n",
        "x = 'a'\nfor i in range(500): x = x + x\n",
        "x = []\nfor i in range(400):\n    for j in range(400):\n        for k in range(400): x.append(k)\n",
        "x = '%1000000000d' % 3\n",
        "x = '{:1000000000}'.format(3)\n",
        "x = 'a'.zfill(10 ** 10)\n",
        "x = 1 << 10 ** 9\n",
        "x = round(5, ndigits=-(10 ** 9))\n",
        "class A(A): pass\nclass B(B): pass\nB()\n",
        "class C:\n    def __init__(self): self.c = C()\nC()\n",
        "import train\nfrom train import *\n",
        "x = " + "-" * 900 + "1\n",
        "x = " + "+".join(["1"] * 900) + "\n",
        "x = []\nif x:\n    " + "x;" * 20_000 + "\n    " + "x[0]." * 300 + "x\n",
    ],
)
def test_a_hostile_source_is_followed_within_bounds(body: str, read: Read) -> None:
    started = time.process_time()
    found = read(HEAD + body + "parser.add_argument('--x')\n" + TAIL)
    assert time.process_time() - started < 20
    assert names(found) == ["x"] or found.can_ask


SOURCES = sorted(path for path in ZOO.rglob("*.py") if path.stat().st_size)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SOURCES), st.integers(0, 2**32))
def test_a_script_with_missing_and_swapped_lines_never_fails(tmp_path: Path, source: Path, seed: int) -> None:
    dice = random.Random(seed)
    lines = source.read_text(encoding="utf-8").splitlines()
    for _ in range(dice.randint(1, 4)):
        if dice.random() < 0.5:
            del lines[dice.randrange(len(lines))]
        first, second = dice.randrange(len(lines)), dice.randrange(len(lines))
        lines[first], lines[second] = lines[second], lines[first]
    script = tmp_path / source.name
    script.write_text("\n".join(lines), encoding="utf-8")
    try:
        found = arguments_of(script)
    except ScriptError as error:
        found_in = str(error).split(":")[0]
        assert found_in == str(script)
    else:
        assert len(set(names(found))) == len(names(found))
        assert found.is_complete or found.notes
