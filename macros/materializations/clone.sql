{#
  A clone of a table, and so of a dynamic table, is a plain Delta table that shares the files of the other one until
  either is written; nothing keeps it up to date. Anything else becomes a view of it.
#}
{% materialization clone, adapter='penstock' %}
  {%- if not defer_relation -%}
    {{ log('No relation found in state manifest for ' ~ model.unique_id, info=True) }}
    {{ return({'relations': []}) }}
  {%- endif -%}

  {%- set existing = load_cached_relation(this) -%}
  {%- if existing and not flags.FULL_REFRESH -%}
    {{ log('Relation ' ~ existing ~ ' already exists', info=True) }}
    {{ return({'relations': []}) }}
  {%- endif -%}

  {%- set other = load_cached_relation(defer_relation) -%}
  {%- set kind = 'table' if other and other.is_table and can_clone_table() else 'view' -%}
  {%- set target_relation = this.incorporate(type=kind) -%}
  {%- if target_relation.render() == defer_relation.render() -%}
    {{ log('Target relation and defer relation are the same, skipping clone for relation: ' ~ target_relation) }}
    {{ return({'relations': []}) }}
  {%- endif -%}

  {#- Delta clones into a new table only. -#}
  {%- if existing and (kind == 'table' or existing.type != kind) -%}
    {% do adapter.drop_relation(existing) %}
  {%- endif -%}
  {% call statement('main') -%}
    {%- if kind == 'table' -%}
      {{ create_or_replace_clone(target_relation, defer_relation) }}
    {%- else -%}
      create or replace view {{ target_relation }} as select * from {{ defer_relation }}
    {%- endif -%}
  {%- endcall %}

  {% do apply_grants(target_relation, config.get('grants'), should_revoke=true) %}
  {% do persist_docs(target_relation, model) %}
  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}
