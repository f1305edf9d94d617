{#
  A seed is replaced in one commit, so that a stream that joins it never sees it empty.
  Only a table of another shape or format is made anew.
#}
{% macro penstock__seed_types(model, agate_table) %}
  {%- set given = model['config'].get('column_types', {}) -%}
  {%- set types = {} -%}
  {%- for name in agate_table.column_names -%}
    {%- do types.update({name: given.get(name, adapter.convert_type(agate_table, loop.index0))}) -%}
  {%- endfor -%}
  {{ return(types) }}
{% endmacro %}

{% macro penstock__create_csv_table(model, agate_table) %}
  {%- set types = penstock__seed_types(model, agate_table) -%}
  {%- set quoted = model['config'].get('quote_columns', none) -%}
  {% set sql %}
    create or replace table {{ this.render() }} (
      {%- for name in agate_table.column_names %}
      {{ adapter.quote_seed_column(name, quoted) }} {{ types[name] }} {{- ',' if not loop.last }}
      {%- endfor %}
    )
    {{ file_format_clause() }}
    {{ partition_cols(label="partitioned by") }}
    {{ location_clause() }}
    {{ comment_clause() }}
  {% endset %}
  {% call statement('_') %}{{ sql }}{% endcall %}
  {{ return(sql) }}
{% endmacro %}

{% macro penstock__reset_csv_table(model, full_refresh, old_relation, agate_table) %}
  {%- set types = penstock__seed_types(model, agate_table) -%}
  {%- set shape = [] -%}
  {%- for name in agate_table.column_names -%}{%- do shape.append((name, types[name])) -%}{%- endfor -%}
  {%- set old_shape = [] -%}
  {%- for column in adapter.get_columns_in_relation(old_relation) -%}
    {%- do old_shape.append((column.name, column.dtype)) -%}
  {%- endfor -%}
  {%- if not old_relation.is_delta -%}
    {% do adapter.drop_relation(old_relation) %}
    {{ return(create_csv_table(model, agate_table)) }}
  {%- elif full_refresh or shape != old_shape -%}
    {{ return(create_csv_table(model, agate_table)) }}
  {%- endif -%}
  {{ return('-- the columns are as before') }}
{% endmacro %}

{% macro penstock__load_csv_rows(model, agate_table) %}
  {% do adapter.load_seed(this, agate_table, penstock__seed_types(model, agate_table)) %}
  {{ return('insert overwrite table ' ~ this.render()) }}
{% endmacro %}
