{#
  A data test with `config: {meta: {live: true}}` is judged as any other, and deployed as a stream that keeps the rows that
  break it as a table.
#}
{% macro penstock__get_test_sql(main_sql, fail_calc, warn_if, error_if, limit) -%}
  {%- if adapter.is_live_test(model) and not flags.EMPTY -%}
    {%- do adapter.deploy_stream(model, model.compiled_code, graph) -%}
  {%- endif -%}
  {{ default__get_test_sql(main_sql, fail_calc, warn_if, error_if, limit) }}
{%- endmacro %}
