select item_id, minute_start, count(*) as rows_of_minute
from {{ ref('item_views_per_minute') }}
group by item_id, minute_start
having count(*) > 1
