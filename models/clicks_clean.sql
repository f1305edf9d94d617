{{ config(watermark={'column': 'clicked_at', 'delay': '10 minutes'}) }}

-- Clicks of people on items that the shop sells, with what the catalogue knows of the item.
-- Messages that cannot be read have nulls in their columns and end here, and so do the pages that only robots fetch.
select
    clicks.event_id,
    clicks.user_id,
    clicks.session_id,
    clicks.item_id,
    lower(trim(clicks.event_type)) as event_type,
    clicks.page,
    clicks.clicked_at,
    products.category,
    products.brand,
    products.price,
    clicks.trace
from {{ source('shop', 'clicks') }} as clicks
inner join {{ ref('products') }} as products
    on clicks.item_id = products.item_id
where clicks.event_id is not null
    and clicks.session_id is not null
    and clicks.clicked_at is not null
    and coalesce(clicks.user_id, '') not in ('', 'bot')
    and coalesce(clicks.page, '') not like '/robots%'
