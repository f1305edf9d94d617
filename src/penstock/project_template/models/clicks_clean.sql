{{ config(materialized='dynamic_table') }}

-- Every click that names its item. A message that cannot be read has nulls in its columns and ends here.
select
    event_id,
    user_id,
    session_id,
    item_id,
    event_type,
    clicked_at
from {{ source('shop', 'clicks') }}
where item_id is not null and clicked_at is not null
