{# The catalog of the engine has no users to grant anything to; a grant that is only written down is said so. #}
{% macro penstock__apply_grants(relation, grant_config, should_revoke=true) %}
  {% if grant_config %}
    {% do exceptions.warn('grants of ' ~ relation ~ ' are not applied: the catalog of the engine has no users.') %}
  {% endif %}
{% endmacro %}
