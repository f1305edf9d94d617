{{ config(materialized='dynamic_table') }}

-- One row per item, replaced as its count grows.
select
    item_id,
    count(*) as views,
    max(clicked_at) as last_viewed_at
from {{ ref('clicks_clean') }}
where event_type = 'view'
group by item_id
