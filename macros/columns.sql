{#
  Columns that come and go (`on_schema_change`). Delta drops a column of a table whose columns are known by name, which
  the table becomes with its first dropped column.
#}
{% macro penstock__alter_relation_add_remove_columns(relation, add_columns, remove_columns) %}
  {%- if add_columns -%}
    {%- set added = [] -%}
    {%- for column in add_columns -%}
      {%- do added.append(column.quoted ~ ' ' ~ column.data_type) -%}
    {%- endfor -%}
    {% do run_query('alter table ' ~ relation.render() ~ ' add columns (' ~ added | join(', ') ~ ')') %}
  {%- endif -%}
  {%- if remove_columns -%}
    {%- set properties = "'delta.columnMapping.mode' = 'name'" -%}
    {% do run_query('alter table ' ~ relation.render() ~ ' set tblproperties (' ~ properties ~ ')') %}
    {%- set removed = remove_columns | map(attribute='quoted') | join(', ') -%}
    {% do run_query('alter table ' ~ relation.render() ~ ' drop columns (' ~ removed ~ ')') %}
  {%- endif -%}
{% endmacro %}

{# With --empty a relation stands for a query without rows in SQL; what is altered is the table. #}
{% macro penstock__alter_column_type(relation, column_name, new_column_type) %}
  {% do run_query('alter table ' ~ relation.render() ~ ' alter column ' ~ column_name ~ ' type ' ~ new_column_type) %}
{% endmacro %}

{# A strategy that neither dbt-spark nor the project has is told as dbt tells it. #}
{% macro dbt_spark_validate_get_incremental_strategy(raw_strategy, file_format) %}
  {%- if raw_strategy not in ['append', 'merge', 'insert_overwrite', 'microbatch'] -%}
    {% do adapter.get_incremental_strategy_macro(context, raw_strategy) %}
  {%- endif -%}
  {%- if raw_strategy == 'merge' and file_format not in ['delta', 'iceberg', 'hudi'] -%}
    {% do exceptions.raise_compiler_error(
        'Invalid incremental strategy provided: merge\nYou can only choose this strategy when file_format is delta') %}
  {%- endif -%}
  {{ return(raw_strategy) }}
{% endmacro %}

{# Columns, as dbt's macros expect them; dbt-spark answers with the rows of DESCRIBE. #}
{% macro penstock__get_columns_in_relation(relation) %}
  {{ return(adapter.get_columns_in_relation(relation)) }}
{% endmacro %}
