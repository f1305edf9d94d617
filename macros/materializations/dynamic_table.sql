{#
  A dynamic table: the model's SQL becomes a stream that keeps a table up to date.

  `dbt run` deploys and returns. All that a stream needs happens in one call, adapter.deploy_stream; an unchanged model
  changes nothing. `--full-refresh` computes the table anew from the start of its inputs; `--empty` makes the table and
  starts nothing.
#}
{% materialization dynamic_table, adapter='penstock', supported_languages=['sql', 'python'] %}
  {%- set target_relation = this.incorporate(type='table') -%}
  {%- set grant_config = config.get('grants') -%}

  {{ run_hooks(pre_hooks) }}

  {%- set deployment = adapter.deploy_stream(
        model, compiled_code, graph, full_refresh=should_full_refresh(), empty=flags.EMPTY or false,
        selected=selected_resources, run_refreshes=flags.FULL_REFRESH or false) -%}
  {{ write(compiled_code) }}
  {{ store_result('main', response=deployment) }}

  {# With `publish: {table: false}` a topic is all there is. #}
  {%- set has_table = (config.get('publish') or {}).get('table', true) -%}
  {% if has_table %}
    {% do apply_grants(target_relation, grant_config, should_revoke=false) %}
    {% do persist_docs(target_relation, model) %}
  {% endif %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [target_relation] if has_table else []}) }}
{% endmaterialization %}
