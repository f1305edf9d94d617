-- How often each item is looked at, minute by minute; a minute's row is replaced as its late clicks arrive.
select
    item_id,
    window.start as minute_start,
    window.end as minute_end,
    count(*) as views,
    approx_count_distinct(user_id) as visitors
from {{ ref('clicks_clean') }}
where event_type = 'view'
group by item_id, window(clicked_at, '1 minute')
