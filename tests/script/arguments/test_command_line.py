"""Words of a command line: what `words` writes, the real parser reads as the same values, and so does `read`."""

import argparse
import contextlib
import enum
import importlib.util
import io
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbtools.errors import ConfigError
from nbtools.script.arguments.arguments import Argument, ScriptArguments
from nbtools.script.arguments.command_line import parse_words
from nbtools.script.arguments.glance import glance
from nbtools.script.field import Field

from asking import asked, script_of
from capabilities import require

ZOO = Path(__file__).parent / "zoo"

texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r\n", exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=8
)
words_ = st.from_regex(r"[A-Za-z][A-Za-z0-9_./]{0,8}", fullmatch=True)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(10**9), 10**9),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: texts,
}


def values_for(argument: Argument, strings: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Values that the real parser can be given for an argument."""
    field = argument.field
    scalars = SCALARS | {str: strings}
    choices = tuple(choice for choice in field.choices or () if choice is not None)
    kinds = [kind for kind in field.types if kind is not NoneType]
    if argument.action in ("store_true", "store_false"):
        return st.sampled_from([argument.const, field.default])
    if argument.action == "count":
        return st.integers(field.default or 0, (field.default or 0) + 4)
    if kinds and get_origin(kinds[0]) is tuple:
        element = st.sampled_from(choices) if choices else scalars[kinds[0].__args__[0]]
        if kinds[0].__args__[0] is str and not choices:
            element = words_
        first, count = (field.default or ()) if argument.action == "append" else (), argument.nargs
        least, most = (count, count) if isinstance(count, int) else (1, 3)
        return st.lists(element, min_size=least, max_size=most).map(lambda found: (*first, *found))
    if choices and not kinds:
        return st.sampled_from(choices)
    return st.one_of(*(scalars[kind] for kind in kinds))


def all_values(
    script: ScriptArguments, command: tuple[str, ...], strings: st.SearchStrategy[str]
) -> st.SearchStrategy[dict[str, Any]]:
    """Values for some of the arguments of a command, the required ones always."""
    used = [argument for argument in script.arguments if argument.command == command[: len(argument.command)]]
    chosen = {argument.field.name: values_for(argument, strings) for argument in used}
    required = {argument.field.name: chosen[argument.field.name] for argument in used if argument.field.is_required}
    optional = {name: strategy for name, strategy in chosen.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


def plain(value: Any) -> Any:
    """Tuples instead of lists, and texts instead of what a type function makes of them."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return value if isinstance(value, bool | int | float | str | None) else getattr(value, "value", None) or str(value)


@contextlib.contextmanager
def stopped_at_parser() -> Iterator[list[argparse.ArgumentParser]]:
    """Execute scripts in this process up to their last parser, without our own code."""
    found: list[argparse.ArgumentParser] = []

    class Reached(BaseException):
        pass

    def parse(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        found.append(self)
        raise Reached

    kept = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = parse  # type: ignore[method-assign]
    try:
        with contextlib.suppress(Reached):
            yield found
    finally:
        argparse.ArgumentParser.parse_args = kept  # type: ignore[method-assign]


def real_parser(name: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    path = ZOO / name
    monkeypatch.setattr(sys, "argv", [str(path), *(["--dataroot", "x"] if "cyclegan" in name else [])])
    monkeypatch.syspath_prepend(path.parent)
    with stopped_at_parser() as found:
        runpy.run_path(str(path), run_name="__main__")
    return found[-1]


ARGPARSE = [
    *("accelerate_nlp", "config_loop", "cyclegan/train", "detectron2", "detr", "diffusers", "dino", "mae", "megatron"),
    *("mnist", "neox", "simple_flags", "timm_train", "word_language_model", "imagenet", "vars_loop"),
]


def check_argparse(
    name: str,
    parser: argparse.ArgumentParser,
    script: ScriptArguments,
    values: dict[str, Any],
    command: tuple[str, ...] = (),
) -> None:
    excluded = {argument.exclusive for argument in script.arguments if argument.exclusive}
    for group in excluded:
        members = [a.field.name for a in script.arguments if a.exclusive == group and a.field.name in values]
        for other in members[1:]:
            del values[other]
    words = parse_words(script, ()).edited(values, command)
    namespace = vars(parser.parse_args(words))
    for key, value in values.items():
        got = namespace[key.rpartition(".")[2]]
        assert plain(got) == plain(Path(value) if isinstance(got, Path) else value), words
    line = parse_words(script, words)
    expected = {argument.field.name: argument.field.default for argument in script.arguments}
    for key, value in values.items():
        assert line.values.get(key, expected[key]) == value, words
    assert (line.command, line.rest) == (command, [])


@pytest.mark.parametrize("name", ARGPARSE)
def test_the_real_argparse_reads_what_words_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = real_parser(f"{name}.py", monkeypatch)
    script = asked(ZOO / f"{name}.py")
    assert {action.dest for action in parser._actions} - {"help"} <= {a.field.name for a in script.arguments}

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(all_values(script, (), texts))
    def check(values: dict[str, Any]) -> None:
        values.pop("config", None)  # of timm's first parser
        check_argparse(name, parser, script, values)

    check()


@pytest.mark.parametrize("command", [("train",), ("data", "fetch")])
def test_sub_commands_get_the_words_of_their_own_arguments(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = real_parser("subcommands.py", monkeypatch)
    script = asked(ZOO / "subcommands.py")

    @settings(max_examples=40)
    @given(all_values(script, command, texts))
    def check(values: dict[str, Any]) -> None:
        check_argparse("subcommands", parser, script, values, command)

    check()


def test_the_real_hf_argument_parser_reads_what_words_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import HfArgumentParser

    script = asked(ZOO / "run_glue.py")
    namespace = runpy.run_path(str(ZOO / "run_glue.py"))

    @settings(max_examples=40)
    @given(all_values(script, (), texts))
    def check(values: dict[str, Any]) -> None:
        parser = HfArgumentParser(namespace["DataArguments"])
        check_argparse("run_glue", parser, script, values)

    check()


# --- other libraries ------------------------------------------------------------------------------


def tyro_real(name: str) -> Callable[[list[str]], Any]:
    import tyro

    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), ZOO / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    namespace = vars(module)
    cls = namespace.get("Args") or namespace["JobConfig"]
    return lambda words: tyro.cli(cls, args=words)


def nested(value: Any, name: str) -> Any:
    for part in name.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


@pytest.mark.parametrize("name", ["cleanrl.py", "torchtitan.py"])
def test_the_real_tyro_reads_what_words_writes(name: str) -> None:
    real = tyro_real(name)
    script = asked(ZOO / name)

    @settings(max_examples=40)
    @given(all_values(script, (), words_.filter(lambda text: text != "None")))
    def check(values: dict[str, Any]) -> None:
        words = parse_words(script, ()).edited(values)
        result = real(words)
        for key, value in values.items():
            assert plain(nested(result, key)) == plain(value), words
        line = parse_words(script, words)
        assert line.rest == []
        assert all(line.values.get(key, value) == value for key, value in values.items())

    check()


def check_library(
    script: ScriptArguments,
    command: tuple[str, ...],
    real: Callable[[list[str]], dict[str, Any]],
    strings: Any,
    examples: int = 40,
) -> None:
    @settings(max_examples=examples)
    @given(all_values(script, command, strings))
    def check(values: dict[str, Any]) -> None:
        words = parse_words(script, ()).edited(values, command)
        result = real(words)
        for key, value in values.items():
            assert plain(nested(result, key.removeprefix(".".join((*command, ""))))) == plain(value), words
        line = parse_words(script, words)
        assert (line.command, line.rest) == (command, [])
        assert all(line.values.get(key, value) == value for key, value in values.items()), (line, words)

    check()


def test_the_real_click_reads_what_words_writes() -> None:
    import click

    namespace = runpy.run_path(str(ZOO / "click_app.py"))
    got: dict[str, Any] = {}
    namespace["cli"].callback = lambda **kwargs: got.update(kwargs)
    namespace["train"].callback = lambda **kwargs: got.update(kwargs)
    assert isinstance(namespace["cli"], click.Group)

    def real(words: list[str]) -> dict[str, Any]:
        got.clear()
        namespace["cli"].main(words, standalone_mode=False)
        return got

    check_library(asked(ZOO / "click_app.py"), ("train",), real, texts)


def test_the_real_typer_reads_what_words_writes() -> None:
    import typer

    namespace = runpy.run_path(str(ZOO / "typer_app.py"))
    command = typer.main.get_command(namespace["app"])
    got: dict[str, Any] = {}
    command.callback = lambda **kwargs: got.update(kwargs)

    def real(words: list[str]) -> dict[str, Any]:
        got.clear()
        command.main(words, standalone_mode=False)
        return got

    check_library(asked(ZOO / "typer_app.py"), (), real, texts)


def test_the_real_absl_reads_what_words_writes() -> None:
    from absl import flags

    script = asked(ZOO / "absl_app.py")
    optimizer = enum.Enum("Optimizer", ["SGD", "LARS"])

    def real(words: list[str]) -> dict[str, Any]:
        holder = flags.FlagValues()
        flags.DEFINE_string("workdir", None, "", flag_values=holder, required=True)
        flags.DEFINE_integer("num_steps", 100, "", lower_bound=1, flag_values=holder)
        flags.DEFINE_float("lr", 1e-3, "", flag_values=holder)
        flags.DEFINE_bool("use_gpu", True, "", flag_values=holder)
        flags.DEFINE_enum("mode", "train", ["train", "eval"], "", flag_values=holder)
        flags.DEFINE_list("splits", ["train", "test"], "", flag_values=holder)
        flags.DEFINE_multi_integer("seed", [0], "", flag_values=holder)
        flags.DEFINE_enum_class("optimizer", optimizer.LARS, optimizer, "", flag_values=holder)
        holder(["program", *words])
        return {**holder.flag_values_dict(), "optimizer": holder["optimizer"].value.name.lower()}

    @settings(max_examples=40)
    @given(all_values(script, (), texts))
    def check(values: dict[str, Any]) -> None:
        values["num_steps"] = abs(values.get("num_steps", 1)) + 1
        values["seed"] = tuple(item for item in values.get("seed", (1,)) if item) or (3,)
        words = parse_words(script, ()).edited(values)
        result = real(words)
        assert {key: plain(result[key]) for key in values} == values, words
        assert {**values, **parse_words(script, words).values} == values

    check()


@pytest.mark.slow
def test_the_real_hydra_reads_what_words_writes() -> None:
    hydra = require("hydra")
    script = asked(ZOO / "hydra_app.py")
    defaults = {argument.field.name: argument.field.default for argument in script.arguments}

    def real(words: list[str]) -> Any:
        with hydra.initialize_config_dir(version_base=None, config_dir=str(ZOO / "hydra_conf")):
            return hydra.compose("config", overrides=words)

    @settings(max_examples=25)
    @given(all_values(script, (), texts))
    def check(values: dict[str, Any]) -> None:
        values.pop("out", None)  # an interpolation
        values = {"data_dir": "x"} | {k: v for k, v in values.items() if not isinstance(v, str) or "$" not in v}
        words = parse_words(script, ()).edited(values)
        config = real(words)
        for key, value in values.items():
            # A value that stays as it was is not written: another optimizer has its own.
            if key != "optimizer" and ("optimizer=sgd" not in words or value != defaults[key]):
                assert plain(nested(config, key) if key != "layers" else list(config.layers)) == plain(value), words
        assert {**values, **parse_words(script, words).values} == values, words

    check()


def test_the_real_jsonargparse_reads_what_words_writes() -> None:
    jsonargparse = require("jsonargparse")
    namespace = runpy.run_path(str(ZOO / "litgpt.py"))

    def setup(**kwargs: Any) -> dict[str, Any]:
        return kwargs

    import inspect

    setup.__signature__ = inspect.signature(namespace["setup"])  # type: ignore[attr-defined]
    script = asked(ZOO / "litgpt.py")
    parser = jsonargparse.ArgumentParser()
    parser.add_function_arguments(namespace["setup"], as_positional=True)

    @settings(max_examples=30)
    @given(all_values(script, (), words_.filter(lambda text: text.lower() not in ("null", "true", "false"))))
    def check(values: dict[str, Any]) -> None:
        values.pop("config", None)
        words = parse_words(script, ()).edited(values)
        result = parser.parse_args(words)
        for key, value in values.items():
            assert plain(nested(result, key)) == plain(value), words
        assert {**values, **parse_words(script, words).values} == values, words

    check()


def test_the_real_fire_reads_what_words_writes() -> None:
    fire = require("fire")
    script = asked(ZOO / "fire_app.py")

    def main(
        ckpt_dir: str,
        temperature: float = 0.6,
        max_seq_len: int = 128,
        use_peft: Any = False,
        name: Any = "x",
        ids: Any = (1, 2),
    ) -> Any:
        return locals()

    def real(words: list[str]) -> dict[str, Any]:
        with contextlib.redirect_stdout(io.StringIO()):
            return dict(fire.Fire(main, command=words))

    check_library(script, (), real, texts)


def test_the_real_configurator_reads_what_words_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = glance(ZOO / "nanogpt.py")
    code = compile((ZOO / "configurator.py").read_text(), "configurator.py", "exec")
    defaults = {
        a.field.name: a.field.default if a.field.default is not None else "text" for a in script.arguments if a.flags
    }

    def real(words: list[str]) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["nanogpt.py", *words])
        names = dict(defaults)
        exec(code, names)
        return names

    strings = texts.filter(lambda text: "=" not in text)

    @settings(max_examples=40)
    @given(all_values(script, (), strings))
    def check(values: dict[str, Any]) -> None:
        values.pop("config_file", None)
        words = parse_words(script, ()).edited(values)
        result = real(words)
        assert {key: result[key] for key in values} == values, words
        assert {**values, **parse_words(script, words).values} == values

    check()
    for text in ("None", "(None)", " None"):
        assert real(parse_words(script, ()).edited({"out_dir": text}))["out_dir"] == text
    with pytest.raises(ConfigError, match="splits its words"):
        parse_words(script, ()).edited({"out_dir": "a=b"})


def test_the_real_omegaconf_reads_what_words_writes() -> None:
    omegaconf = require("omegaconf").OmegaConf
    script = glance(ZOO / "omegaconf_app.py")
    base = omegaconf.load(ZOO / "omegaconf_app.yaml")

    def real(words: list[str]) -> Any:
        return omegaconf.to_container(omegaconf.merge(base, omegaconf.from_dotlist(words)))

    check_library(script, (), real, texts.filter(lambda text: "$" not in text))


def test_the_real_omegaconf_reads_the_keys_of_dataclasses() -> None:
    omegaconf = require("omegaconf").OmegaConf
    script = glance(ZOO / "structured_app.py")
    config = runpy.run_path(str(ZOO / "structured_app.py"))["TrainArgs"]
    edits: dict[str, Any] = {"optim.betas": (0.5, 0.25), "wandb.tags": ("a b", "1"), "steps": 7, "dump_dir": "1e3"}
    words = parse_words(script, ()).edited({**edits, "sources": "{a: 0.5, b: 2}", "eval": "x: y"})
    result = omegaconf.merge(omegaconf.structured(config), omegaconf.from_dotlist(words))
    assert {name: omegaconf.select(result, name) for name in edits} == {
        name: list(value) if isinstance(value, tuple) else value for name, value in edits.items()
    }
    assert (result.sources, result.eval) == ({"a": 0.5, "b": 2.0}, "x: y")
    assert parse_words(script, words).values == {**edits, "sources": "{a: 0.5, b: 2}", "eval": "x: y"}


# --- single rules ---------------------------------------------------------------------------------


LR = Argument(Field("lr", types=(float,), default=0.1, source="train.py:3"), flags=("--learning-rate", "-l"))
SIZE = Argument(Field("size", types=(int,), default=8), flags=("--batch-size", "-b"))
AMP = Argument(Field("amp", types=(bool,), default=False), flags=("--amp", "-a"), action="store_true")
VERBOSE = Argument(Field("verbose", types=(int,), default=0), flags=("--verbose", "-v"), action="count")
DATA = Argument(Field("data", types=(str,), is_required=True, source="train.py:9"))


@pytest.mark.parametrize(
    ("words", "values", "rest"),
    [
        (["-b", "8"], {"size": 8}, []),
        (["-b8"], {"size": 8}, []),
        (["--batch=8"], {"size": 8}, []),
        (["--learning-rate=1e-3", "--unknown", "--amp"], {"lr": 1e-3, "amp": True}, ["--unknown"]),
        (["-vva"], {"verbose": 2, "amp": True}, []),
        (["-l", "-3"], {"lr": -3.0}, []),
        (["--batch-size", "many"], {}, ["--batch-size", "many"]),
        (["--batch-size"], {}, ["--batch-size"]),
        (["file", "other"], {"data": "file"}, ["other"]),
        (["--", "-file"], {"data": "-file"}, []),
    ],
)
def test_read_takes_the_words_that_a_user_types(words: list[str], values: dict[str, Any], rest: list[str]) -> None:
    line = parse_words(script_of(LR, SIZE, AMP, VERBOSE, DATA), words)
    assert (line.values, line.command, line.rest) == (values, (), rest)


def test_words_have_what_differs_and_no_more() -> None:
    script = script_of(LR, SIZE, AMP)
    assert parse_words(script, ()).edited({"lr": 0.1, "size": 16, "amp": True}) == ["--batch-size", "16", "--amp"]
    assert parse_words(script, ()).edited({"size": -1}) == ["--batch-size=-1"]


def test_none_stands_for_a_whole_list() -> None:
    tags = Argument(Field("tags", types=(tuple[str, ...], NoneType), default=("a",)), flags=("--tags",), nargs="*")
    script = script_of(tags, parser="tyro")
    assert parse_words(script, ()).edited({"tags": None}) == ["--tags", "None"]
    assert parse_words(script, ["--tags", "None"]).values == {"tags": None}


def test_a_positional_value_that_begins_with_a_dash_follows_two_dashes() -> None:
    assert parse_words(script_of(DATA, SIZE), ()).edited({"data": "-x", "size": 3}) == ["--batch-size", "3", "--", "-x"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": "x", "siz": 1}, "siz: no argument of train.py; did you mean size"),
        ({"data": "x", "size": None}, "--batch-size=None: None cannot be written"),
        ({"data": "x", "mode": "c"}, "--mode='c': allowed are a, b"),
        ({"data": "x", "list": ("-a", "b")}, "begins with - cannot stand in a list"),
        ({"data": "x", "list": 3}, "is no list"),
        ({"data": "x", "pair": (1,)}, "takes 2 values, 1 given"),
    ],
)
def test_errors_name_the_argument_and_what_is_allowed(values: dict[str, Any], message: str) -> None:
    script = script_of(
        *(DATA, SIZE),
        Argument(Field("mode", types=(), default="a", choices=("a", "b")), flags=("--mode",)),
        Argument(Field("one", types=(bool,), default=False), flags=("--one",), action="store_true", exclusive="group"),
        Argument(Field("two", types=(bool,), default=False), flags=("--two",), action="store_true", exclusive="group"),
        Argument(Field("list", types=(tuple[str, ...],), default=()), flags=("--list",), nargs="+"),
        Argument(Field("pair", types=(tuple[int, ...],), default=(1, 2)), flags=("--pair",), nargs=2),
    )
    with pytest.raises(ConfigError, match=message):
        parse_words(script, ()).edited(values)
    words = parse_words(script, ()).edited({"one": True, "two": True})
    mistakes = " ".join(parse_words(script, words).mistakes.values())
    assert "data is missing (train.py:9)" in mistakes and "--one and --two exclude each other" in mistakes


def test_an_unknown_sub_command_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"fly: no sub-command of train[.]py; allowed: train"):
        parse_words(script_of(LR, commands=(("train",),)), ()).edited({}, ["fly"])
