"""A line of compiled SQL is found again in the model file."""

from __future__ import annotations

from penstock.compiler.lines import line_map


def mapped(raw: str, compiled: str) -> dict[str, int]:
    """Model line by the text of the compiled line."""
    return dict(zip(compiled.split("\n"), line_map(raw, compiled), strict=True))


def test_a_config_of_several_lines_collapses() -> None:
    raw = "{{ config(\n    materialized='x',\n    buffer_limit=1\n) }}\nselect a,\n  b\nfrom {{ source('s', 't') }}"
    assert line_map(raw, "\nselect a,\n  b\nfrom s.t") == (1, 5, 6, 7)


def test_a_config_whose_line_was_trimmed_away() -> None:
    raw = "{{ config(\n    materialized='dynamic_table'\n) }}\n\nselect a\nfrom {{ source('s', 't') }}\nwhere x"
    assert line_map(raw, "select a\nfrom s.t\nwhere x") == (5, 6, 7)


def test_a_model_without_jinja_maps_one_to_one() -> None:
    text = "select a,\n\n-- why\n  b\nfrom s.t"
    assert line_map(text, text) == (1, 2, 3, 4, 5)


def test_a_macro_that_becomes_several_lines_keeps_its_own_line() -> None:
    raw = "select\n  {{ columns() }}\nfrom {{ ref('t') }}\nwhere a > 1"
    found = mapped(raw, "select\n  first_one,\n  second_one,\n  third_one\nfrom s.t\nwhere a > 1")
    assert found["  first_one,"] == 2
    assert found["from s.t"] == 3
    assert found["where a > 1"] == 4


def test_a_loop_keeps_the_lines_after_it() -> None:
    raw = "select\n{% for c in ['a', 'b', 'c'] %}\n  {{ c }},\n{% endfor %}\n  z\nfrom {{ ref('t') }}\nwhere oops oops"
    compiled = "select\n\n  a,\n\n  b,\n\n  c,\n\n  z\nfrom s.t\nwhere oops oops"
    found = mapped(raw, compiled)
    assert found["  z"] == 5
    assert found["from s.t"] == 6
    assert found["where oops oops"] == 7


def test_jinja_comments_and_sql_comments() -> None:
    raw = "{# a\n long\n remark #}\n-- clicks\nselect a\nfrom {{ source('s', 't') }} -- here"
    assert line_map(raw, "\n-- clicks\nselect a\nfrom s.t -- here") == (1, 4, 5, 6)


def test_an_inlined_ephemeral_model_does_not_move_the_lines_after_it() -> None:
    raw = "{{ config(materialized='dynamic_table') }}\nselect\n  i.category\nfrom {{ ref('eph') }} as i\nwhere x"
    compiled = (
        "\nwith __dbt__cte__eph as (\n\nselect 1 from s.t\n) select\n  i.category\nfrom __dbt__cte__eph as i\nwhere x"
    )
    found = mapped(raw, compiled)
    assert found["  i.category"] == 3
    assert found["from __dbt__cte__eph as i"] == 4
    assert found["where x"] == 5


def test_an_empty_model_maps_nothing() -> None:
    assert line_map("", "") == ()


def test_a_very_long_block_is_mapped_in_order() -> None:
    raw = "\n".join(f"{{{{ m({n}) }}}}" for n in range(300))
    compiled = "\n".join(f"line {n}" for n in range(500))
    lines = line_map(raw, compiled)
    assert len(lines) == 500
    assert list(lines) == sorted(lines)
    assert lines[-1] <= 300
