{# How many starts of a year, a week (Sunday) or a second lie between two times; a fraction of a second counts too. #}
{% macro penstock__datediff(first_date, second_date, datepart) %}
  {%- set unit = datepart | lower -%}
  {%- if unit not in ['year', 'quarter', 'month', 'week', 'day', 'hour', 'minute', 'second', 'millisecond', 'microsecond'] -%}
    {% do exceptions.raise_compiler_error("datediff has no date part '" ~ datepart ~ "'") %}
  {%- endif -%}
  {#- Spark's weeks begin on Monday. -#}
  {%- set shift = ' + interval 1 day' if unit == 'week' else '' -%}
  timestampdiff(
    {{ unit }},
    date_trunc('{{ unit }}', cast({{ first_date }} as timestamp){{ shift }}),
    date_trunc('{{ unit }}', cast({{ second_date }} as timestamp){{ shift }})
  )
{% endmacro %}
