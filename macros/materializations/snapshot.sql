{#
  dbt's own materialization, not dbt-spark's, which knows neither a key of several columns nor a deleted row that is
  kept as a record. What changed is a temporary view: nothing is left in the schema when a statement fails.
#}
{% materialization snapshot, adapter='penstock' %}
  {{ return(materialization_snapshot_default()) }}
{% endmaterialization %}

{# Columns are named one by one: one that the query no longer has is null in new rows. #}
{% macro penstock__snapshot_merge_sql(target, source, insert_cols) %}
  {{ default__snapshot_merge_sql(target, source, insert_cols) }}
{% endmacro %}

{% macro penstock__post_snapshot(staging_relation) %}
  {% do run_query('drop view if exists ' ~ staging_relation.render()) %}
{% endmacro %}

{# A node without a database has no such entry, and Spark has no database above a schema. #}
{% macro penstock__get_or_create_relation(database, schema, identifier, type) %}
  {{ return(default__get_or_create_relation(none, schema, identifier, type)) }}
{% endmacro %}
