-- "Customers who viewed this item also viewed": how often, for each pair.
select
    item_id,
    other_item_id,
    count(*) as times_viewed_together,
    max(other_viewed_at) as last_viewed_at
from {{ ref('co_views') }}
group by item_id, other_item_id
