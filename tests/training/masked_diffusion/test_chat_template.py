"""Conversations for fine-tuning: the template's own text, whole, with a pair for every answer of the assistant."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbtools.data.masked_diffusion.pairs import Pair, has_pairs, read_pairs
from nbtools.errors import DataError
from nbtools.launcher.checks.step_count import schedule
from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.training.masked_diffusion.chat_template import always_written, render_pair
from nbtools.training.masked_diffusion.dataset import DiffusionText, cached_data, cached_pairs, open_cached
from nbtools.training.text.tokenizers import EOS, load_tokenizer, train_tokenizer

datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")

LLAMA = (
    "{% for message in messages %}{% if loop.first %}<|begin|>{% endif %}"
    "{{ '<|start|>' + message['role'] + '<|end|>\n\n' + message['content'] | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"
)
"""In the form of Llama 3.1's."""
LLADA = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim "
    "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
"""That of LLaDA-8B-Instruct and of the first Llama 3: it asks for an answer at the end of every conversation."""
CHATML = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ENDED = (
    "{% for message in messages %}{{ message['content'] }}{{ eos_token if message.role == 'assistant' }}{% endfor %}"
)
"""In the form of Llama 2's and Mistral's: the end-of-text token ends an answer."""
ANSWER = {"role": "assistant", "content": "b"}
TEMPLATES = {"llama": LLAMA, "chatml": CHATML, "ended": ENDED, "llada": LLADA}
HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
"""What LLaDA's template writes to ask for an answer."""


def conversation(number: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": f"You add.\n  Today is day {number}."},
        {"role": "user", "content": f"What is {number} + 1?"},
        {"role": "assistant", "content": f"It is\n\n  {number + 1}\t👍"},
        {"role": "user", "content": "and one more "},
        {"role": "assistant", "content": f"{number + 2}, <|eot|> as text"},
    ]


@pytest.fixture(params=TEMPLATES)
def model(request: Any, tmp_path: Path) -> str:
    """A tokenizer of characters with a chat template."""
    tokenizer = train_tokenizer("chars", ["".join(map(chr, range(9, 127))), "👍"], 300)
    tokenizer.bos_token = "<|startoftext|>"
    tokenizer.chat_template = TEMPLATES[request.param]
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def written(folder: Path, suffix: str = ".jsonl", number: int = 30) -> Path:
    path = folder / f"chats{suffix}"
    rows = [{"messages": conversation(n), "source": "made"} for n in range(number)]
    if suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


def rows(text: DiffusionText) -> list[list[tuple[str, str]]]:
    """Prompt and answer of every row of each part, decoded."""
    found: list[list[tuple[str, str]]] = []
    for part in (text.train, text.evaluation, text.test):
        found.append([])
        for row, start in enumerate(part.starts_N):
            ids = part.rows(np.array([row]))[0].tolist()
            ends = ids[:start], ids[start:]
            found[-1].append(tuple(text.tokenizer.decode(each, clean_up_tokenization_spaces=False) for each in ends))
    return found


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_every_answer_is_trained_on_and_rows_are_the_templates_own_text(
    model: str, project: Project, suffix: str
) -> None:
    file = written(project.root, suffix)
    config = MaskedDiffusionConfig(dataset=file.name, model_name=model, sequence_length=2048)
    said: list[str] = []
    text = open_cached(cached_data(project.runs, config, project.root, said.append).folder, config)
    assert (text.has_pairs, said) == (True, [])
    parts, template = rows(text), load_tokenizer(model)
    whole = {prompt + answer for part in parts for prompt, answer in part}
    expected = set()
    for number in range(30):
        messages = conversation(number)
        for end in (3, 5):
            written_by = str(template.apply_chat_template(messages[:end], tokenize=False))
            is_asking = template.chat_template == LLADA
            expected.add(written_by.removesuffix(HEADER if is_asking else EOS) + EOS)
    assert whole == expected
    for prompt, answer in parts[0]:
        assert answer.startswith(("It is\n\n  ", "1", "2", "3", "4", "5", "6", "7", "8", "9"))
        assert answer.endswith(EOS) and answer.count(EOS) == 1
        assert ("and one more" in prompt) == ("as text" in answer)
    days = [{prompt.split("Today is day ")[1].split(".")[0] for prompt, _ in part} for part in parts]
    assert sum(map(len, days)) == len(set.union(*days)) == 30, "a conversation is in one part only"
    assert [len(part) for part in parts] == [2 * len(day) for day in days]


def test_without_a_template_form_and_training_say_what_to_do(project: Project) -> None:
    config = MaskedDiffusionConfig(dataset=written(project.root).name, batch_size=1)
    with pytest.raises(DataError, match=r"messages need a tokenizer with a chat template; give the model_name"):
        cached_data(project.runs, config, project.root)
    with pytest.raises(DataError, match=r"messages need a tokenizer with a chat template; give the model_name"):
        schedule(config, 1, root=project.root)
    train_tokenizer("chars", ["abc"], 30).save_pretrained(project.root / "plain")
    with pytest.raises(DataError, match=r"messages need a tokenizer with a chat template; give the model_name"):
        cached_data(project.runs, config.replace(model_name=str(project.root / "plain")), project.root)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "user", "content": "hi"}], "no message of the role 'assistant' follows another"),
        ([{"role": "assistant", "content": "hi"}], "no message of the role 'assistant' follows another"),
        ([{"from": "human", "value": "hi"}], r"message 1: has no 'role', only \['from', 'value'\]; write"),
        ([{"role": "user", "content": ["hi"]}], r"message 1: 'content' is \['hi'\], not text"),
        ([{"role": "\ud800", "content": "hi"}], "message 1: 'role' holds half of a surrogate pair"),
        (
            [{"role": "user", "content": "a"}, {**ANSWER, "weight": 0.5}],
            "message 2: weight=0.5; 0 .* and 1 are allowed",
        ),
        ("[]", "'messages' is '\\[\\]', not a list of objects; write"),
        ({"role": ["user"]}, "'messages' is .*, not a list of objects; write"),
        ([{"role": "user", "content": " "}], "message 1: 'content' is empty"),
        ([{"role": "user", "content": "a", "tool_calls": [{"id": 1}]}], "message 1: 'tool_calls' would be lost; write"),
        ([{"role": "system", "content": ""}, {"role": "assistant", "content": "a"}], "no message of the role"),
    ],
)
def test_a_wrong_conversation_is_named_with_its_line(tmp_path: Path, messages: Any, said: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}))
    with pytest.raises(DataError, match=rf"a\.jsonl, line 1(: |, ){said}"):
        list(read_pairs(tmp_path / "a.jsonl"))


def test_a_template_that_refuses_or_loses_an_answer_is_an_error(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("chars", ["abc"], 300)
    turns = [{"role": "tool", "content": "x"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": turns}))
    losing = "{% for message in messages %}{{ message.role }}{% endfor %}"
    for name, template, said in (("a", CHATML, "refuses it: no tools here"), ("b", losing, "does not write an answer")):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / name)
        with pytest.raises(DataError, match=f"all of 1 pair refused, the first: row 1: the chat template .* {said}"):
            cached_pairs(tmp_path, [tmp_path / "a.jsonl"], MaskedDiffusionConfig(model_name=str(tmp_path / name)))


BEHIND_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}{{ bos_token }}Be short.\n{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}### Question:\n{{ message.content }}\n"
    "{% elif message.role == 'assistant' %}### Answer:\n{{ message.content }}\n<|eot_id|>\n{% endif %}{% endfor %}"
    "{{ '### Answer:\n' }}"
)
"""In the form of DeepSeek Coder's first; what asks for an answer is always there, and no message is refused."""
BEGUN = LLADA.replace("{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}", "{{ '' }}")


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        (BEHIND_SYSTEM, "b\n<|eot_id|>"),
        ("{{ bos_token }}" + BEGUN, "b<|eot_id|>"),
        (LLADA, "b<|eot_id|>"),
        (ENDED.replace("eos_token", "'<|eot_id|>'"), "b<|eot_id|>"),
        ("{{ bos_token }}{% for message in messages %}{{ message.content }}<|eot_id|>{% endfor %}", "b<|eot_id|>"),
    ],
)
def test_what_always_asks_for_an_answer_is_found_by_tokens(tmp_path: Path, template: str, answer: str) -> None:
    """The end of a turn and the beginning of the text, two tokens, end with the same characters."""
    tokenizer = train_tokenizer("words", ["a b be short question answer # : user assistant header < | > _"], 300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|startoftext|>", "<|eot_id|>"]})
    tokenizer.bos_token, tokenizer.chat_template = "<|startoftext|>", template
    tokenizer.save_pretrained(tmp_path / "model")
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = Pair("a", "b", 1, tuple(turns[:1]))
    read = load_tokenizer(str(tmp_path / "model"))
    assert render_pair(read, found, always_written(read), None)[1] == answer


def test_a_template_that_may_always_ask_for_an_answer_is_refused_if_it_cannot_be_told(tmp_path: Path) -> None:
    strict = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
    tokenizer = train_tokenizer("chars", ["".join(map(chr, range(9, 127)))], 300)
    tokenizer.bos_token, tokenizer.chat_template = "<|startoftext|>", strict + LLADA
    with pytest.raises(DataError, match=r"may ask for an answer always; put what asks for one into \{% if add_gen"):
        always_written(tokenizer)
    tokenizer.chat_template = strict + ENDED
    assert always_written(tokenizer) == ""


@pytest.mark.parametrize("from_hub", [True, False])
def test_pairs_that_the_template_refuses_are_left_out_and_said_at_every_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, from_hub: bool
) -> None:
    asked = [{"messages": [{"role": "user", "content": f"{n}?"}, ANSWER]} for n in range(20)]
    asked[7]["messages"][0]["role"] = "tool"
    tokenizer = train_tokenizer("chars", ["".join(map(chr, range(9, 127)))], 300)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(project.root / "model")
    (project.root / "a.jsonl").write_text("\n".join(map(json.dumps, asked)))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(asked))
    config = MaskedDiffusionConfig(model_name=str(project.root / "model"), sequence_length=96)
    config = config.replace(dataset="hf/a/b" if from_hub else "a.jsonl")
    said: list[str] = []
    for _ in range(2):
        folder = cached_data(project.runs, config, project.root, said.append).folder
        assert sum(map(len, rows(open_cached(folder, config)))) == 19
    note, again, *dated = said
    assert note == again and len(dated) == from_hub and "longer" not in note
    assert note.startswith("note: 1 of 20 pairs left out, the first: row 8: the chat template of the tokenizer refuses")


@pytest.mark.parametrize(
    ("row", "pair"),
    [
        ({"prompt": "a", "completion": "b"}, ("a", "b")),
        ({"instruction": "a", "input": "", "output": "b", "text": "whole"}, ("a", "b")),
        ({"instruction": "a", "input": "more", "output": "b"}, ("a\n\nmore", "b")),
        ({"question": "a", "answer": "b"}, ("a", "b")),
        ({"instruction": "a", "context": "more", "response": "b", "category": "x"}, ("a\n\nmore", "b")),
        ({"question": "a", "context": "more", "answer": "b"}, ("a\n\nmore", "b")),
        ({"prompt": "a", "completion": "b", "messages": [], "system": "", "tools": None}, ("a", "b")),
        ({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "a"}, ANSWER]}, None),
        (
            {"prompt": [{"role": "system", "content": " "}, {"role": "user", "content": "a"}], "completion": [ANSWER]},
            None,
        ),
        ({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}, None),
    ],
)
def test_names_of_other_programs_are_pairs(tmp_path: Path, row: dict[str, Any], pair: tuple[str, str] | None) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    (found,) = read_pairs(tmp_path / "a.jsonl")
    expected: tuple[str, str, Sequence[dict[str, str]]] = (
        (*pair, ()) if pair else (found.prompt, "b", ({"role": "user", "content": "a"},))
    )
    assert (found.prompt, found.answer, found.turns) == expected


@pytest.mark.parametrize("name", ["system", "system_prompt", "tools", "history"])
@pytest.mark.parametrize("row", [{"prompt": "a", "completion": "b"}, {"messages": conversation(1)}])
def test_a_column_that_would_be_lost_is_refused(tmp_path: Path, row: dict[str, Any], name: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({**row, name: ["x"]}))
    with pytest.raises(DataError, match=rf"a\.jsonl, line 1: '{name}' would be lost; write it into the content of a"):
        list(read_pairs(tmp_path / "a.jsonl"))


def test_malformed_rows_of_the_hub_are_left_out_and_counted_and_a_changed_template_makes_rows_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [{"prompt": f"{n} + 1 =", "completion": str(n + 1) if n % 10 else " "} for n in range(30)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(asked))
    tokenizer = train_tokenizer("chars", ["".join(map(chr, range(9, 127)))], 300)
    tokenizer.save_pretrained(project.root / "model")
    config = MaskedDiffusionConfig(dataset="hf/a/b", model_name=str(project.root / "model"), sequence_length=64)
    said: list[str] = []
    plain = cached_data(project.runs, config, project.root, said.append).folder
    assert sum(map(len, rows(open_cached(plain, config)))) == 27
    (note,) = said
    assert note.startswith("note: 3 malformed rows left out, the first: a/b, row 1: 'completion' is empty")
    assert cached_data(project.runs, config, project.root, said.append).folder == plain
    today = datetime.now(UTC).date()
    dated = f"note: the dataset is as it was downloaded on {today}; ,revision= pins a version"
    assert said == [note, note, dated]
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(project.root / "model")
    changed = cached_data(project.runs, config, project.root).folder
    assert rows(open_cached(changed, config))[0][0][0].startswith("<|im_start|>user")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(asked[:1]))
    with pytest.raises(DataError, match="'completion' is empty"):
        cached_data(project.runs, config.replace(dataset="hf/a/c"), project.root)


def test_a_weight_of_0_is_not_trained_on_and_what_follows_the_last_answer_is_said(model: str, project: Project) -> None:
    asked = [{"messages": [*conversation(n), {"role": "user", "content": "lost?"}]} for n in range(12)]
    for row in asked:
        row["messages"][2] |= {"weight": 0}  # type: ignore[dict-item]
    (project.root / "a.jsonl").write_text("\n".join(map(json.dumps, asked)))
    said: list[str] = []
    config = MaskedDiffusionConfig(dataset="a.jsonl", model_name=model, sequence_length=2048)
    text = open_cached(cached_data(project.runs, config, project.root, said.append).folder, config)
    parts = rows(text)
    assert sum(map(len, parts)) == 12
    assert all("It is" in prompt and "as text" in answer for part in parts for prompt, answer in part)
    (note,) = said
    weightless, behind = note.split("; ")
    assert weightless == "note: 12 answers with a weight of 0 not trained on"
    assert behind == "12 messages behind the last answer of a conversation left out"


def test_the_form_of_share_gpt_is_named_with_the_one_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}))
    assert has_pairs([path], None)
    with pytest.raises(DataError, match=r"line 1: 'conversations' is not read; write \{\"messages\": .*human and gpt"):
        list(read_pairs(path))
