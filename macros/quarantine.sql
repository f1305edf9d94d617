{#
  The table that keeps the bad records of a source: `select * from {{ quarantine('shop', 'clicks') }}` in a view makes
  it something to ref() and to test. The model depends on the source.
#}
{% macro quarantine(source_name, table_name) %}
  {%- set relation = source(source_name, table_name) -%}
  {{ return(api.Relation.create(schema=relation.schema, identifier=relation.identifier ~ '__quarantine')) }}
{% endmacro %}
