"""The generated occupations: always the same for a seed, all different, and as hard as they claim to be."""

import subprocess
import sys
from collections import Counter

from nbtools.data.text_classification import occupations
from nbtools.data.text_classification.coded_texts import clean_text
from nbtools.data.text_classification.codes import hisco_code
from nbtools.recipes.text_classification import NUM_GENERATED_CODES


def test_a_seed_always_gives_the_same_rows_in_any_process() -> None:
    program = "from nbtools.data.text_classification import occupations; print(occupations.rows(3, 500))"
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert elsewhere.stdout == f"{occupations.rows(3, 500)}\n"
    assert occupations.rows(3, 500) == occupations.rows(3, 600)[:500]
    assert occupations.rows(3, 500) != occupations.rows(4, 500)


def test_all_rows_differ_and_are_as_a_model_sees_them() -> None:
    rows = occupations.rows()
    assert len({row.text for row in rows}) == len(rows) == occupations.NUM_ROWS
    assert all(row.text == clean_text(row.text) for row in rows[::7])


def test_there_are_enough_codes_titles_and_languages_and_no_code_prevails() -> None:
    rows = occupations.rows()
    codes = {code for row in rows for code in row.codes}
    assert len(codes) == len(occupations.entries()) == NUM_GENERATED_CODES >= 30
    assert all(hisco_code(code) == code for code in codes)
    assert any(code.startswith("0") for code in codes)
    titles = {name for entry in occupations.entries() for lang in ("en", "da", "de") for name in entry[lang].split("|")}
    assert len(titles) >= 50
    assert {row.lang for row in rows} == {"en", "da", "de"}
    (_, most), *_ = Counter(row.codes for row in rows).most_common(1)
    assert most / len(rows) < 0.06
    assert 0.1 < sum(len(row.codes) == 2 for row in rows) / len(rows) < 0.25
