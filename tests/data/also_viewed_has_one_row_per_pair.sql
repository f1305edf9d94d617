select item_id, other_item_id, count(*) as rows_of_pair
from {{ ref('also_viewed') }}
group by item_id, other_item_id
having count(*) > 1
