{#
  Descriptions become comments of the table and its columns; what is there already is left alone, and all columns change
  in one commit.
#}
{% macro penstock__persist_docs(relation, model, for_relation, for_columns) %}
  {%- set with_relation = for_relation and config.persist_relation_docs() -%}
  {%- set with_columns = for_columns and config.persist_column_docs() and model.columns -%}
  {%- if relation.is_table and (with_relation or with_columns) -%}
    {%- set outdated = adapter.outdated_comments(relation, model) -%}
    {%- if with_columns and outdated['missing'] -%}
      {% do exceptions.warn('In relation ' ~ relation.render() ~ ': The following columns are specified in the schema '
          ~ 'but are not present in the database: ' ~ outdated['missing'] | join(', ')) %}
    {%- endif -%}
    {%- if with_relation and outdated['relation'] is not none -%}
      {% do run_query('comment on table ' ~ relation ~ ' is ' ~ adapter.text_literal(outdated['relation'])) %}
    {%- endif -%}
    {%- if with_columns and outdated['columns'] -%}
      {%- set changes = [] -%}
      {%- for name, text in outdated['columns'].items() -%}
        {%- do changes.append(adapter.quote(name) ~ ' comment ' ~ adapter.text_literal(text)) -%}
      {%- endfor -%}
      {% do run_query('alter table ' ~ relation ~ ' alter column ' ~ changes | join(', ')) %}
    {%- endif -%}
  {%- endif -%}
{% endmacro %}
