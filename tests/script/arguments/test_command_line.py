"""Words of a command line: what `words` writes, the real parser reads as the same values, and so does `read`."""

import argparse
import contextlib
import enum
import importlib.util
import inspect
import io
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbtools.errors import ConfigError
from nbtools.script.arguments.arguments import Argument, ScriptArguments
from nbtools.script.arguments.command_line import parse_words

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
    scalars = SCALARS | {str: strings}
    choices = tuple(choice for choice in argument.choices or () if choice is not None)
    kinds = [kind for kind in argument.types if kind is not NoneType]
    if argument.action == "switch":
        return st.sampled_from([argument.const, False if argument.negative_flags else argument.default])
    if argument.action == "count":
        return st.integers(argument.default or 0, (argument.default or 0) + 4)
    if kinds and get_origin(kinds[0]) is tuple:
        element = st.sampled_from(choices) if choices else scalars[kinds[0].__args__[0]]
        if kinds[0].__args__[0] is str and not choices:
            element = words_
        first, count = (argument.default or ()) if argument.action == "append" else (), argument.nargs
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
    chosen = {argument.name: values_for(argument, strings) for argument in used}
    required = {argument.name: chosen[argument.name] for argument in used if argument.is_required}
    optional = {name: strategy for name, strategy in chosen.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


def plain(value: Any) -> Any:
    """Tuples instead of lists, and texts instead of what a type function makes of them."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return value if isinstance(value, bool | int | float | str | None) else getattr(value, "value", None) or str(value)


def real_parser(name: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """Execute a program in this process up to its last parser, without our own code."""
    found: list[argparse.ArgumentParser] = []

    def parse(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        found.append(self)
        raise KeyboardInterrupt

    path = ZOO / name
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(sys, "argv", [str(path), *(["--dataroot", "x"] if "cyclegan" in name else [])])
        patch.syspath_prepend(path.parent)
        runpy.run_path(str(path), run_name="__main__")
    return found[-1]


ARGPARSE = [
    *("accelerate_nlp", "config_loop", "cyclegan/train", "detectron2", "detr", "diffusers", "dino", "mae", "megatron"),
    *("mnist", "neox", "simple_flags", "timm_train", "word_language_model", "imagenet", "vars_loop"),
]


def nested(value: Any, name: str) -> Any:
    """A value by its dotted name, or by the last part of it, as argparse and sub-commands have it."""
    last = name.rpartition(".")[2]
    if isinstance(value, dict) and last in value:
        return value[last]
    for part in name.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def check_real(
    script: ScriptArguments,
    real: Callable[[list[str]], Any],
    strings: st.SearchStrategy[str] = texts,
    command: tuple[str, ...] = (),
    possible: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> None:
    """Check that a parser reads the words of any values as these, and so does `parse_words`.

    `possible` makes values that the parser can be given of those that were drawn.
    """
    defaults = {argument.name: argument.default for argument in script.arguments}

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(all_values(script, command, strings))
    def check(drawn: dict[str, Any]) -> None:
        values = possible(drawn)
        words = parse_words(script, ()).edited(values, command)
        result = real(words)
        for key, value in values.items():
            got = nested(result, key)
            assert plain(got) == plain(Path(value) if isinstance(got, Path) else value), words
        line = parse_words(script, words)
        assert (line.command, line.rest) == (command, [])
        assert {key: line.values.get(key, defaults[key]) for key in values} == values, words

    check()


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Values but those of some names."""
    return lambda values: {name: value for name, value in values.items() if name not in names}


@pytest.mark.parametrize("name", ARGPARSE)
def test_the_real_argparse_reads_what_words_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = real_parser(f"{name}.py", monkeypatch)
    script = asked(ZOO / f"{name}.py")
    assert {action.dest for action in parser._actions} - {"help"} <= {a.name for a in script.arguments}
    groups = [[action.dest for action in group._group_actions] for group in parser._mutually_exclusive_groups]

    def possible(values: dict[str, Any]) -> dict[str, Any]:
        excluded = [name for group in groups for name in [name for name in group if name in values][1:]]
        return without("config", *excluded)(values)  # config is of timm's first parser

    check_real(script, lambda words: vars(parser.parse_args(words)), possible=possible)


@pytest.mark.parametrize("command", [("train",), ("data", "fetch")])
def test_sub_commands_get_the_words_of_their_own_arguments(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = real_parser("subcommands.py", monkeypatch)
    check_real(asked(ZOO / "subcommands.py"), lambda words: vars(parser.parse_args(words)), texts, command)


def test_the_real_hf_argument_parser_reads_what_words_writes() -> None:
    from transformers import HfArgumentParser

    namespace = runpy.run_path(str(ZOO / "run_glue.py"))
    parser = HfArgumentParser(namespace["DataArguments"])
    check_real(asked(ZOO / "run_glue.py"), lambda words: vars(parser.parse_args(words)))


# --- other libraries ------------------------------------------------------------------------------


def loaded(name: str) -> dict[str, Any]:
    """The names of a program that was imported as a module."""
    spec = importlib.util.spec_from_file_location(name, ZOO / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


@pytest.mark.parametrize(("name", "cls"), [("cleanrl", "Args"), ("torchtitan", "JobConfig")])
def test_the_real_tyro_reads_what_words_writes(name: str, cls: str) -> None:
    import tyro

    config = loaded(name)[cls]
    strings = words_.filter(lambda text: text != "None")
    check_real(asked(ZOO / f"{name}.py"), lambda words: tyro.cli(config, args=words), strings)


@pytest.mark.parametrize("name", ["click_app", "typer_app"])
def test_the_real_click_and_typer_read_what_words_writes(name: str) -> None:
    import typer

    namespace = runpy.run_path(str(ZOO / f"{name}.py"))
    main = namespace["cli"] if "cli" in namespace else typer.main.get_command(namespace["app"])
    got: dict[str, Any] = {}
    for command in (main, namespace["train"]) if "cli" in namespace else (main,):
        command.callback = lambda **kwargs: got.update(kwargs)

    def real(words: list[str]) -> dict[str, Any]:
        got.clear()
        main.main(words, standalone_mode=False)
        return got

    check_real(asked(ZOO / f"{name}.py"), real, command=("train",) if "cli" in namespace else ())


def test_the_real_absl_reads_what_words_writes() -> None:
    from absl import flags

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

    def possible(values: dict[str, Any]) -> dict[str, Any]:
        seed = tuple(item for item in values.get("seed", (1,)) if item) or (3,)
        return values | {"num_steps": abs(values.get("num_steps", 1)) + 1, "seed": seed}

    check_real(asked(ZOO / "absl_app.py"), real, possible=possible)


@pytest.mark.slow
def test_the_real_hydra_reads_what_words_writes() -> None:
    hydra, omegaconf = require("hydra"), require("omegaconf").OmegaConf
    script = asked(ZOO / "hydra_app.py")
    defaults = {argument.name: argument.default for argument in script.arguments}

    def real(words: list[str]) -> Any:
        with hydra.initialize_config_dir(version_base=None, config_dir=str(ZOO / "hydra_conf")):
            config = hydra.compose("config", overrides=words, return_hydra_config=True)
        values = omegaconf.to_container(config.optimizer) | {"optimizer": config.hydra.runtime.choices.optimizer}
        return omegaconf.to_container(config) | values

    def possible(values: dict[str, Any]) -> dict[str, Any]:
        values = {"data_dir": "x", "optimizer": "adam"} | without("out")(values)  # an interpolation
        # A value that stays as it was is not written: another optimizer has its own.
        stays = [name for name, value in values.items() if values["optimizer"] == "sgd" and value == defaults[name]]
        return without(*stays, *(name for name, value in values.items() if "$" in str(value)))(values)

    check_real(script, real, possible=possible)


def test_the_real_jsonargparse_reads_what_words_writes() -> None:
    jsonargparse = require("jsonargparse")

    def setup(**kwargs: Any) -> dict[str, Any]:
        return kwargs

    setup.__signature__ = inspect.signature(runpy.run_path(str(ZOO / "litgpt.py"))["setup"])  # type: ignore[attr-defined]
    parser = jsonargparse.ArgumentParser()
    parser.add_function_arguments(setup, as_positional=True)
    strings = words_.filter(lambda text: text.lower() not in ("null", "true", "false"))
    check_real(asked(ZOO / "litgpt.py"), parser.parse_args, strings, possible=without("config"))


def test_the_real_fire_reads_what_words_writes() -> None:
    fire = require("fire")

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

    check_real(asked(ZOO / "fire_app.py"), real)


def test_the_real_configurator_reads_what_words_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    script = asked(ZOO / "nanogpt.py")
    code = compile((ZOO / "configurator.py").read_text(), "configurator.py", "exec")
    defaults = {a.name: a.default if a.default is not None else "text" for a in script.arguments if a.flags}

    def real(words: list[str]) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["nanogpt.py", *words])
        names = dict(defaults)
        exec(code, names)
        return names

    check_real(script, real, texts.filter(lambda text: "=" not in text), possible=without("config_file"))
    for text in ("None", "(None)", " None"):
        assert real(parse_words(script, ()).edited({"out_dir": text}))["out_dir"] == text
    with pytest.raises(ConfigError, match="splits its words"):
        parse_words(script, ()).edited({"out_dir": "a=b"})


def test_the_real_omegaconf_reads_what_words_writes() -> None:
    omegaconf = require("omegaconf").OmegaConf
    base = omegaconf.load(ZOO / "omegaconf_app.yaml")

    def real(words: list[str]) -> Any:
        return omegaconf.to_container(omegaconf.merge(base, omegaconf.from_dotlist(words)))

    check_real(asked(ZOO / "omegaconf_app.py"), real, texts.filter(lambda text: "$" not in text))


def test_the_real_omegaconf_reads_the_keys_of_dataclasses() -> None:
    omegaconf = require("omegaconf").OmegaConf
    script = asked(ZOO / "structured_app.py")
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


LR = Argument("lr", types=(float,), default=0.1, source="train.py:3", flags=("--learning-rate", "-l"))
SIZE = Argument("size", types=(int,), default=8, flags=("--batch-size", "-b"))
AMP = Argument("amp", types=(bool,), default=False, flags=("--amp", "-a"), action="switch")
VERBOSE = Argument("verbose", types=(int,), default=0, flags=("--verbose", "-v"), action="count")
DATA = Argument("data", types=(str,), is_required=True, source="train.py:9")


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
    tags = Argument("tags", types=(tuple[str, ...], NoneType), default=("a",), flags=("--tags",), nargs="*")
    script = script_of(tags, parser="tyro")
    assert parse_words(script, ()).edited({"tags": None}) == ["--tags", "None"]
    assert parse_words(script, ["--tags", "None"]).values == {"tags": None}


@pytest.mark.parametrize(
    ("values", "message"),
    [
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
        Argument("mode", types=(), default="a", choices=("a", "b"), flags=("--mode",)),
        Argument("list", types=(tuple[str, ...],), default=(), flags=("--list",), nargs="+"),
        Argument("pair", types=(tuple[int, ...],), default=(1, 2), flags=("--pair",), nargs=2),
    )
    with pytest.raises(ConfigError, match=message):
        parse_words(script, ()).edited(values)
    assert "data is missing (train.py:9)" in parse_words(script, ()).mistakes["data"]
