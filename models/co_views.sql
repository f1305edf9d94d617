{{ config(watermark={'column': 'viewed_at', 'delay': '10 minutes'}) }}

-- Pairs of items that one visitor looked at within ten minutes of one visit: the second after the first.
select
    first_click.session_id,
    first_click.item_id,
    next_click.item_id as other_item_id,
    first_click.clicked_at as viewed_at,
    next_click.clicked_at as other_viewed_at
from {{ ref('clicks_clean') }} as first_click
inner join {{ ref('clicks_clean') }} as next_click
    on first_click.session_id = next_click.session_id
    and first_click.item_id <> next_click.item_id
    and next_click.clicked_at >= first_click.clicked_at
    and next_click.clicked_at <= first_click.clicked_at + interval 10 minutes
