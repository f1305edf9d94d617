{# Delta where a model says nothing: also for the tables of `store_failures`, which no model configures. #}
{% macro penstock__file_format_clause() %}
  using {{ config.get('file_format') or 'delta' }}
{% endmacro %}
