-- Rows that this finds are failures. The table of clicks is upstream: it has a click before the count has it.
select v.item_id, v.views, c.clicks
from {{ ref('views_per_item') }} as v
left join (
    select item_id, count(*) as clicks from {{ ref('clicks_clean') }} group by item_id
) as c on c.item_id = v.item_id
where v.views > coalesce(c.clicks, 0)
