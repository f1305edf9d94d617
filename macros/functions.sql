{#
  A function of the project (dbt's functions/) becomes a SQL function of Spark's own: streams, tests and queries call it
  alike. Spark puts its body in the place of each call.
#}
{% macro penstock__scalar_function_sql(target_relation) %}
    CREATE OR REPLACE FUNCTION {{ target_relation.render() }} ({{ formatted_scalar_function_args_sql() }})
    RETURNS {{ model.returns.data_type }}
    {{ scalar_function_volatility_sql() }}
    RETURN {{ model.compiled_code }}
{% endmacro %}

{# Spark knows two kinds of functions; one that is stable within a statement alone is neither. #}
{% macro penstock__scalar_function_volatility_sql() %}
  {%- set volatility = model.config.get('volatility') -%}
  {%- if volatility == 'deterministic' -%}
    DETERMINISTIC
  {%- elif volatility == 'non-deterministic' -%}
    NOT DETERMINISTIC
  {%- elif volatility -%}
    {%- do unsupported_volatility_warning(volatility) -%}
  {%- endif -%}
{% endmacro %}
