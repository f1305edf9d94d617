{#
  The merge of an incremental model. Columns are named one by one: a column that the model no longer has
  (on_schema_change: append_new_columns) keeps its values, where `update set *` would want it of the new rows.
#}
{% macro penstock__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates=none) %}
  {%- set there = adapter.get_columns_in_relation(source) | map(attribute='name') | map('lower') | list -%}
  {%- set columns = [] -%}
  {%- for column in adapter.get_columns_in_relation(target) if column.name | lower in there -%}
    {%- do columns.append(column) -%}
  {%- endfor -%}
  {%- set keys = [unique_key] if unique_key is string else (unique_key or []) -%}
  {%- set conditions = (incremental_predicates or []) | list -%}
  {%- for key in keys -%}
    {%- do conditions.append('DBT_INTERNAL_SOURCE.' ~ key ~ ' = DBT_INTERNAL_DEST.' ~ key) -%}
  {%- endfor -%}
  {%- if not keys -%}{%- do conditions.append('false') -%}{%- endif -%}
  {%- set names = columns | map(attribute='quoted') | list -%}
  {%- set updated = get_merge_update_columns(
        config.get('merge_update_columns'), config.get('merge_exclude_columns'), columns) -%}
  {%- if updated is none -%}{%- set updated = names -%}{%- endif -%}  {# dbt-spark's word for all of them #}

  merge into {{ target }} as DBT_INTERNAL_DEST
  using {{ source }} as DBT_INTERNAL_SOURCE
  on ({{ conditions | join(') and (') }})
  {%- if updated %}
  when matched then update set
    {%- for name in updated %}
    {{ name }} = DBT_INTERNAL_SOURCE.{{ name }} {{- ',' if not loop.last }}
    {%- endfor %}
  {%- endif %}
  when not matched then insert ({{ names | join(', ') }})
  values (
    {%- for name in names %}DBT_INTERNAL_SOURCE.{{ name }}{{ ', ' if not loop.last }}{% endfor -%}
  )
{% endmacro %}
