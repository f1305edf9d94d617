{#
  The rows that a unit test gives, as a relation. The types are those of the project, not of what is deployed: a source
  has the columns that it declares, a dynamic table those of its query. A column that no row names is null.
#}
{% macro get_fixture_sql(rows, column_name_to_data_types) %}
  {%- set types, names = {}, {} -%}
  {%- for column in adapter.fixture_columns(this, defer_relation) -%}
    {%- do types.update({column.name | lower: column.data_type}) -%}
    {%- do names.update({column.name | lower: adapter.quote(column.name)}) -%}
  {%- endfor -%}
  {%- for row in rows or [{}] %}
    {%- set given = format_row(row, types) %}
    select
    {%- for name, type in types.items() %}
      {{ given[name] if name in given else 'cast(null as ' ~ type ~ ')' }} as {{ names[name] }} {{- ',' if not loop.last }}
    {%- endfor %}
    {{- ' where false' if not rows }}
    {{- '\n    union all' if not loop.last }}
  {%- endfor %}
{% endmacro %}

{# A struct, an array or a map may be given as YAML has it. #}
{% macro penstock__safe_cast(field, type) %}
  {%- if field is not string and (field is mapping or field is sequence) -%}
    from_json({{ adapter.text_literal(tojson(field)) }}, {{ adapter.text_literal(type) }})
  {%- else -%}
    {{ spark__safe_cast(field, type) }}
  {%- endif -%}
{% endmacro %}
