{{ config(materialized='view') }}

-- The five best companions of each item. A pair counts for more the rarer its second item is looked at otherwise:
-- without that, everybody would be shown the bestsellers.
with popularity as (

    select other_item_id, sum(times_viewed_together) as times_viewed
    from {{ ref('also_viewed') }}
    group by other_item_id

),

scored as (

    select
        pairs.item_id,
        pairs.other_item_id,
        pairs.times_viewed_together,
        round(pairs.times_viewed_together / sqrt(popularity.times_viewed), 3) as score
    from {{ ref('also_viewed') }} as pairs
    inner join popularity
        on pairs.other_item_id = popularity.other_item_id

),

ranked as (

    select
        *,
        row_number() over (
            partition by item_id
            order by score desc, times_viewed_together desc, other_item_id
        ) as rank
    from scored

)

select
    ranked.item_id,
    item.name as item_name,
    ranked.rank,
    ranked.other_item_id as recommended_item_id,
    recommended.name as recommended_name,
    recommended.category as recommended_category,
    recommended.brand as recommended_brand,
    recommended.price as recommended_price,
    ranked.times_viewed_together,
    ranked.score
from ranked
inner join {{ ref('products') }} as item
    on ranked.item_id = item.item_id
inner join {{ ref('products') }} as recommended
    on ranked.other_item_id = recommended.item_id
where ranked.rank <= 5
