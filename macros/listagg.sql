{#
  A list in an order, which dbt-spark leaves out. The first few of a list are taken of it as hexadecimal digits, so that
  no value can hold what stands between two of them.
#}
{% macro penstock__listagg(measure, delimiter_text, order_by_clause, limit_num) %}
  {%- if not order_by_clause -%}
    {{ return(spark__listagg(measure, delimiter_text, none, limit_num)) }}
  {%- endif -%}
  {%- set order = ' within group (' ~ order_by_clause ~ ')' -%}
  {%- if not limit_num -%}
    {{ return('listagg(' ~ measure ~ ', ' ~ delimiter_text ~ ')' ~ order) }}
  {%- endif -%}
  {%- set unique = (measure | trim | lower).startswith('distinct ') -%}
  {%- set value = (measure | trim)[9:] if unique else measure -%}
  {%- set digits = 'split(listagg(hex(cast(' ~ value ~ " as string)), ',')" ~ order ~ ", ',')" -%}
  {%- set values = 'transform(' ~ digits ~ ", each -> decode(unhex(each), 'UTF-8'))" -%}
  {%- set values = 'array_distinct(' ~ values ~ ')' if unique else values -%}
  {{ return('array_join(slice(' ~ values ~ ', 1, ' ~ limit_num ~ '), ' ~ delimiter_text ~ ')') }}
{% endmacro %}
