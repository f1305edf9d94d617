{#
  `not_null` and `check` of columns become constraints of the Delta table, as those of a dynamic table do: Delta makes no
  column of a table with rows non-nullable. They are added when the table is made.
#}
{% macro penstock__alter_column_set_constraints(relation, column_dict) %}
  {%- if is_incremental() -%}{{ return('') }}{%- endif -%}
  {%- for name, column in column_dict.items() -%}
    {%- set shown = adapter.quote(name) if column['quote'] else name -%}
    {%- for constraint in column['constraints'] if constraint.type in ['not_null', 'check'] -%}
      {%- set expression = constraint.expression if constraint.type == 'check' else shown ~ ' is not null' -%}
      {%- set constraint_name = constraint.name or 'c_' ~ local_md5(name ~ ';' ~ expression ~ ';' ~ loop.index) -%}
      {% call statement() %}
        alter table {{ relation }} add constraint {{ constraint_name }} check ({{ expression }})
      {% endcall %}
    {%- endfor -%}
  {%- endfor -%}
{% endmacro %}
